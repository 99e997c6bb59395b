"""Threads, sockets and memory of a worker before and after thirty regroupings in place.

    python -m benchmarks.regroupings

Three workers train a small ResNet; each regrouping gives them other process groups, as agreed or as after a loss.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.remora_cluster import until
from tests.golden.driver import Driver
from tests.golden.regroupings import REGROUPINGS, WARM_UP, Held, held, regroup
from tests.golden.worker import Job

WORKERS = 3
#: Seconds in which the last groups that were left have ended.
SETTLED_S = 20.0


def run(regroupings: int = REGROUPINGS) -> dict[str, Any]:
    """What the worker holds that holds most of each, before and after."""
    with (
        tempfile.TemporaryDirectory(prefix="remora-regroupings-") as out,
        Driver(Job("resnet", "sample-exact", epochs=1000), Path(out)) as driver,
    ):
        driver.start(WORKERS)
        regroup(driver, WARM_UP)
        before = looked_at(driver)
        regroup(driver, regroupings)
        with contextlib.suppress(TimeoutError):
            until(lambda: most(looked_at(driver), _threads) <= most(before, _threads), SETTLED_S)
        after = looked_at(driver)
    return {
        "regroupings": {
            "times": regroupings,
            **{
                name: {"before": round(most(before, of), 1), "after": round(most(after, of), 1)}
                for name, of in _FIGURES.items()
            },
        }
    }


def looked_at(driver: Driver) -> list[Held]:
    """What each worker holds."""
    return [held(worker) for worker in driver.living]


def most(workers: list[Held], of: Callable[[Held], float]) -> float:
    """The largest figure of a kind."""
    return max(of(one) for one in workers)


def _threads(one: Held) -> float:
    return float(one.threads)


_FIGURES: dict[str, Callable[[Held], float]] = {
    "threads": _threads,
    "sockets": lambda one: one.sockets,
    "memory_mib": lambda one: one.memory_mib,
}


if __name__ == "__main__":
    print(json.dumps(run()))
