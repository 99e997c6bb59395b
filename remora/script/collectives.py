"""Which collectives this process began last, from PyTorch's own flight recorder; standard library only.

PyTorch keeps the newest collectives of each process group, those of gloo and NCCL, also where C++ begins them
(DistributedDataParallel); the supervisor sets the number that it keeps (`TORCH_FR_BUFFER_SIZE`).  Nothing is recorded
here, so a step costs nothing more.  https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any

#: Process groups that are reported, those that were used last, and characters of a name.
MOST_GROUPS, MOST_TEXT = 16, 64
#: The recorder of NCCL, and that of all other backends.
_DUMPS = ("_dump_nccl_trace_json", "_dump_fr_trace_json")


def last_collectives() -> list[dict[str, Any]]:
    """For each process group `{group, what, number, waits}`: the collective that was begun last, and whether it waits.

    `number` counts the collectives of the group from 1, on all of its ranks alike.  Empty where this process has not
    loaded `torch.distributed`, or this version of PyTorch records nothing.
    """
    c10d = sys.modules.get("torch._C._distributed_c10d")
    entries: list[Any] = []
    for name in _DUMPS:
        dump = getattr(c10d, name, None)
        if dump is not None:
            try:
                entries += json.loads(dump()).get("entries") or []
            except Exception:  # noqa: S112 - a script that hangs is not to fail for its report
                continue
    return newest_of(entries)


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
