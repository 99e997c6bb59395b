"""Whether a rendezvous can still come about (pure; time is an argument).

Ranks that call `torch.distributed.init_process_group` wait in it until all have come, for half an hour as a rule.  When
all ranks that still run wait there, none is left that could join: a rank ended without joining, or the script asks
for another number of ranks, or for another place, than its environment says.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from remora.states import EndReason
from trainers.driver.verdict import Verdict, name_ranks

#: Seconds after the start of a worker group at which its ranks are looked at first; doubled for each further look.
FIRST_S = 60.0
#: Seconds between the end of a rank and that look, when it comes earlier.
AFTER_END_S = 5.0
#: Seconds between looks while a rank waits, and for which all others have to be seen waiting after a rank ended.
AGAIN_S = 30.0
#: Seconds for which all ranks have to be seen waiting; those that look up each other's names slowly take less.
SURE_S = 120.0
#: Seconds after which a rank that keeps others waiting is named.
REPORT_S = 300.0
#: Seconds after the start after which it is not looked at any more: PyTorch gives up then by itself.
LAST_S = 1800.0

_WAITS = re.compile(r"^\s+init_process_group \((?:.*/)?torch/distributed/distributed_c10d\.py", re.MULTILINE)
_PROCESS = re.compile(r"^Process \d+ \(", re.MULTILINE)
_UNREAD = "Its stack cannot be read: "


def is_waiting(stacks: str) -> bool:
    """True when every Python process of a command waits in the rendezvous; see `trainers.processes.python_stacks`."""
    if "more processes of this command are left out" in stacks:
        return False
    processes = [one for one in _PROCESS.split(stacks)[1:] if _UNREAD not in one]
    return bool(processes) and all(_WAITS.search(one) for one in processes)


@dataclass(frozen=True)
class Absent:
    """Some ranks have kept the others waiting for long; they may still come."""

    waiting: tuple[int, ...]
    missing: tuple[int, ...]
    message: str


class RendezvousWatch:
    """What looks at the ranks of one worker group show."""

    def __init__(self, began_at: float) -> None:
        """The group began at that time of a monotonic clock."""
        self._began_at = began_at
        self._look_at = began_at + FIRST_S
        self._ended = 0
        #: Since when all have been seen waiting, and some.
        self._all_since: float | None = None
        self._some_since: float | None = None
        self._has_reported = False

    def is_due(self, now: float, ended: int) -> bool:
        """True when it is time for a look; `ended` ranks have ended successfully."""
        if ended > self._ended:
            self._ended = ended
            self._look_at = min(self._look_at, now + AFTER_END_S)
        return self._look_at <= now < self._began_at + LAST_S

    def look(
        self, now: float, stacks: Mapping[int, str], ended: Iterable[int], world_size: int
    ) -> Verdict | Absent | None:
        """What follows from the stacks of the ranks that run, and the ranks that ended well."""
        waiting = tuple(sorted(rank for rank, text in stacks.items() if is_waiting(text)))
        missing = tuple(sorted(stacks.keys() - set(waiting)))
        self._all_since = (self._all_since or now) if waiting and not missing else None
        self._some_since = (self._some_since or now) if waiting else None
        self._look_at = now + (AGAIN_S if waiting else now - self._began_at)
        gone = tuple(sorted(ended))
        if self._all_since is not None and now - self._all_since >= (AGAIN_S if gone else SURE_S):
            return _no_rank_comes(gone, waiting, world_size)
        if self._some_since is None or now - self._some_since < REPORT_S or self._has_reported:
            return None
        self._has_reported = True
        text = (
            f"The rendezvous (init_process_group) has kept {name_ranks(waiting)} waiting for {REPORT_S / 60:g} minutes"
            f" and lacks {name_ranks(missing)}; the events `worker.stack` say what is done there instead."
        )
        return Absent(waiting, missing, text)


def _no_rank_comes(ended: tuple[int, ...], waiting: tuple[int, ...], world_size: int) -> Verdict:
    if ended:
        text = (
            f"{name_ranks(ended).capitalize()} ended with exit code 0, and the rendezvous (init_process_group) still"
            f" keeps {name_ranks(waiting)} waiting; let the script call it on every rank, or on none."
        )
        return Verdict(goes_on=False, end_reason=EndReason.START_FAILED, message=text)
    everybody = "The only rank waits" if world_size == 1 else f"All {world_size} ranks wait"
    text = (
        f"{everybody} in the rendezvous (init_process_group), so no rank is left that could join: let the script take"
        " RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT from its environment, as init_process_group does without"
        " arguments; where it does, the nodes cannot reach each other."
    )
    # Nodes that do not reach each other may be others in the next attempt.
    return Verdict(goes_on=False, end_reason=EndReason.HANG, message=text)
