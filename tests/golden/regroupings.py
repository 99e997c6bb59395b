"""Many regroupings of one worker group, and what its processes hold before and after them."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from tests.golden.driver import Driver, Worker

#: Regroupings between two looks, and before the first one.
REGROUPINGS, WARM_UP = 30, 4


@dataclass(frozen=True)
class Held:
    """What a process holds."""

    threads: int
    sockets: int
    #: Of its memory what belongs to no file.
    memory_mib: float


def held(worker: Worker) -> Held:
    """What a worker's process holds now."""
    process = Path(f"/proc/{worker.process.pid}")
    sockets = 0
    for one in (process / "fd").iterdir():
        with contextlib.suppress(OSError):
            sockets += str(one.readlink()).startswith("socket:")
    fields = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    return Held(int(fields["Threads"]), sockets, int(fields["RssAnon"].split()[0]) / 1024)


def regroup(driver: Driver, times: int) -> None:
    """Regroup as often as that: as agreed, and after a loss, alternately."""
    for number in range(times):
        driver.reach(driver.step + 1)
        if number % 2:
            driver.recover()
        else:
            driver.hold_and_part()
            driver.regroup()
