"""Thirty regroupings leave the processes of workers as they were: threads, sockets and memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.golden import sharded_worker
from tests.golden.driver import Driver
from tests.golden.regroupings import REGROUPINGS, WARM_UP, held, regroup
from tests.golden.sharded_worker import ShardedJob
from tests.golden.worker import Job

pytestmark = [pytest.mark.timeout(600)]

#: What the two or three groups hold that end just now, or whose last collective is still known; not one each.
THREADS, SOCKETS = 12, 20
#: What a process of any such group may hold, however little it held at first: with one left of each regrouping it
#: would have more.
MOST_THREADS, MOST_SOCKETS = 24, 38


class ShardedDriver(Driver):
    body = staticmethod(sharded_worker.work)


@pytest.mark.parametrize(
    ("kind", "job"),
    [
        pytest.param(Driver, Job("resnet", "bitwise", epochs=400), id="bitwise", marks=pytest.mark.soak),
        pytest.param(Driver, Job("resnet", "sample-exact", epochs=400), id="sample-exact"),
        pytest.param(ShardedDriver, ShardedJob("resnet", epochs=400), id="sharded", marks=pytest.mark.soak),
        pytest.param(
            ShardedDriver, ShardedJob("plain", shard=1, epochs=400), id="copies", marks=pytest.mark.soak
        ),
    ],
)
def test_thirty_regroupings_leave_nothing(kind: type[Driver], job: Any, tmp_path: Path) -> None:
    with kind(job, tmp_path) as driver:
        driver.start(3)
        regroup(driver, WARM_UP)
        before = [held(worker) for worker in driver.living]
        regroup(driver, REGROUPINGS)

        def is_over() -> bool:
            """The last groups may still be ending."""
            for worker, then in zip(driver.living, before, strict=True):
                now = held(worker)
                if now.threads > max(MOST_THREADS, then.threads + THREADS):
                    return False
                if now.sockets > max(MOST_SOCKETS, then.sockets + SOCKETS):
                    return False
            return True

        try:
            driver.wait(is_over, "threads and sockets are as they were")
        finally:
            after = [held(worker) for worker in driver.living]
            print(*zip(before, after, strict=True), sep="\n")
        for then, now in zip(before, after, strict=True):
            assert now.memory_mib < then.memory_mib + 15
