"""Which collectives this process began last, from PyTorch's own flight recorder; standard library only.

PyTorch keeps the newest collectives of each process group, those of gloo and NCCL, also where C++ begins them
(DistributedDataParallel); the supervisor sets the number that it keeps (`TORCH_FR_BUFFER_SIZE`).  Nothing is recorded
here, so a step costs nothing more.  https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html

NCCL's recorder asks the device for each collective and the communicators for their state, which in a hang may wait for
ever.  So each recorder is asked in a thread of its own, which is waited for until a limit and then left alone.  One
that keeps Python's lock meanwhile stops this process: the supervisor, which waits outside, says that nothing has come.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

#: Process groups that are reported, those that were used last, and characters of a name.
MOST_GROUPS, MOST_TEXT = 16, 64
#: The recorder of all backends but NCCL, and that of NCCL.
_DUMPS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
#: Seconds in which all recorders have to answer; fewer than the supervisor waits for the script.
DUMP_S = 1.5


def last_collectives() -> list[dict[str, Any]]:
    """For each process group `{group, what, number, waits}`: the collective that was begun last, and whether it waits.

    `number` counts the collectives of the group from 1, on all of its ranks alike.  Empty where this process has not
    loaded `torch.distributed`, or this version of PyTorch records nothing.  A recorder that does not answer within
    `DUMP_S` seconds is left out, and is not asked again before it has answered.
    """
    until = time.monotonic() + DUMP_S
    c10d = sys.modules.get("torch._C._distributed_c10d")
    asked = [_Recorder.ask(name, dump) for name in _DUMPS if (dump := getattr(c10d, name, None)) is not None]
    return newest_of(entry for one in asked if one is not None for entry in one.entries(until))


class _Recorder:
    """One question to a recorder."""

    #: Those that have not answered, by name; asked by one thread at a time.
    _under_way: ClassVar[dict[str, _Recorder]] = {}
    _asking = threading.Lock()

    def __init__(self, dump: Callable[[], Any]) -> None:
        self._dump = dump
        self._entries: list[Any] = []
        self._thread = threading.Thread(target=self._run, name="remora-recorder", daemon=True)
        self._thread.start()

    @classmethod
    def ask(cls, name: str, dump: Callable[[], Any]) -> _Recorder | None:
        """Ask a recorder; None where it still owes an answer."""
        with cls._asking:
            known = cls._under_way.get(name)
            if known is not None and known._thread.is_alive():
                return None
            cls._under_way[name] = one = cls(dump)
        return one

    def entries(self, until: float) -> list[Any]:
        """What it has answered by that time of `time.monotonic`."""
        self._thread.join(max(0.0, until - time.monotonic()))
        return [] if self._thread.is_alive() else self._entries

    def _run(self) -> None:
        try:
            self._entries = json.loads(self._dump()).get("entries") or []
        except Exception:
            # A script that hangs is not to fail for its report.
            self._entries = []


def newest_of(entries: Iterable[Any]) -> list[dict[str, Any]]:
    """The newest collective of each group among entries of the flight recorder, the group that was used last first."""
    newest: dict[str, tuple[tuple[int, int], int, dict[str, Any]]] = {}
    for entry in entries:
        try:
            found = _read(entry)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError):
            continue
        if found is None:
            continue
        order, at, one = found
        known = newest.get(one["group"])
        # A later group may have taken the name of one that is gone.
        if known is None or order > known[0]:
            newest[one["group"]] = (order, at, one)
    ordered = sorted(newest.values(), key=lambda known: -known[1])
    return [one for _, _, one in ordered[:MOST_GROUPS]]


def _read(entry: dict[str, Any]) -> tuple[tuple[int, int], int, dict[str, Any]] | None:
    if entry["is_p2p"]:
        return None
    backend, _, what = str(entry["profiling_name"]).partition(":")
    name = str(entry["process_group"][0])
    number = int(entry["collective_seq_id"])
    waits = not entry["retired"] and entry["state"] != "completed"
    one = {
        "group": f"{backend}:{name}"[:MOST_TEXT],
        "what": (what or backend)[:MOST_TEXT],
        "number": number,
        "waits": waits,
    }
    return (int(entry["pg_id"]), number), int(entry["time_created_ns"]), one
