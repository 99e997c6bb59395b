"""Workers of a real raylet are forked from one process, and are what they would be if they had been started."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import ray
from ray._raylet import ObjectID

from cluster.local.connection import connect
from cluster.local.folders import ClusterFolders
from cluster.local.head import start_head, stop_head, wait_until_reachable
from cluster.local.records import MachineRecord
from cluster.ray.joining import FORKED_VARIABLE
from cluster.ray.workers.launcher import MOST_STARTS
from tests.integration.trainers.lab import until
from trainers.preloaded import FORKED

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def head(tmp_path: Path) -> Iterator[MachineRecord]:
    """A head that forks its workers, with this process connected to it."""
    head = start_head(tmp_path, **{FORKED_VARIABLE: FORKED})
    try:
        wait_until_reachable(tmp_path, head)
        connect(tmp_path, head.ray_address)
        yield head
    finally:
        ray.shutdown()
        stop_head(tmp_path)
        ClusterFolders(tmp_path).remove_temporary()


@ray.remote(num_cpus=0)
class Worker:
    """Reports about its process."""

    def pid(self) -> int:
        return os.getpid()

    def drawn(self) -> tuple[str, float, float, str]:
        """What no two processes draw alike."""
        return (ObjectID.from_random().hex(), random.random(), float(np.random.rand()), uuid.uuid4().hex)

    def place(self) -> dict[str, Any]:
        """What a process has from who started it; without what differs from one to the next."""
        umask = os.umask(0o022)
        os.umask(umask)
        return {
            "environment": {k: v for k, v in os.environ.items() if k not in ("RAY_JOB_ID", "_")},
            "folder": str(Path.cwd()),
            "umask": umask,
            "mask": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
            "signals": {one.name: signal.getsignal(one) is signal.SIG_IGN for one in signal.Signals},
            "nice": os.nice(0),
            "oom": Path("/proc/self/oom_score_adj").read_text(),
            "session": os.getsid(0),
            "leads": os.getpgid(0) != os.getpgid(os.getppid()),
            "exit statuses": [subprocess.run([one]).returncode for one in ("true", "false")],
            "streams": [Path(f"/proc/self/fd/{one}").readlink().suffix for one in (1, 2)],
        }


def a_worker() -> tuple[Any, psutil.Process]:
    """An actor that is up, and its process."""
    actor = Worker.remote()
    return actor, psutil.Process(ray.get(actor.pid.remote(), timeout=30))


def warm_process(process: psutil.Process) -> psutil.Process | None:
    """What a worker was forked from; None: it was started."""
    parent = process.parent()
    return parent if parent is not None and any(one.endswith("warm.py") for one in parent.cmdline()) else None


def test_workers_are_forked_and_draw_numbers_of_their_own(head: MachineRecord) -> None:
    workers = [a_worker() for _ in range(3)]
    warm = {warm_process(process) for _, process in workers}
    assert len(warm) == 1
    assert None not in warm
    drawn = [ray.get(actor.drawn.remote()) for actor, _ in workers]
    for alike in zip(*drawn, strict=True):
        assert len(set(alike)) == 3


def test_a_worker_belongs_to_the_job_that_wants_it(head: MachineRecord, tmp_path: Path) -> None:
    """A controller that takes over is another one of Ray's jobs, which Ray reads once, when it is imported."""
    a_worker()
    ray.shutdown()
    connect(tmp_path, head.ray_address)
    _, other = a_worker()
    assert warm_process(other) is not None


def test_a_forked_worker_is_like_one_that_was_started_which_follows_when_forking_fails(
    head: MachineRecord,
) -> None:
    actor, process = a_worker()
    forked = ray.get(actor.place.remote())
    for _ in range(MOST_STARTS):
        warm = warm_process(process)
        assert warm is not None, "the next worker starts another warm process"
        warm.kill()
        until(lambda: not warm.is_running(), "it is dead")  # noqa: B023
        assert ray.get(actor.pid.remote()), "a worker outlives what it was forked from"
        next_one, process = a_worker()
    assert warm_process(process) is None
    started = ray.get(next_one.place.remote())
    assert forked == started
    (log,) = Path(head.temporary).glob("session_2*/logs/raylet.err")
    sentence = (
        f"a worker process is started, not forked: its node's warm process has ended {MOST_STARTS} times"
    )
    assert sentence in log.read_text()


def test_the_warm_process_ends_with_its_raylet_and_nothing_else_does(head: MachineRecord) -> None:
    actor, process = a_worker()
    warm = warm_process(process)
    assert warm is not None
    ray.kill(actor)
    until(lambda: not process.is_running(), "the worker has ended")
    assert warm.is_running(), (
        "a raylet ends the process group of a worker, and the warm process is in none of them"
    )
    raylet = psutil.Process(int(warm.environ()["RAY_RAYLET_PID"]))
    raylet.kill()
    until(lambda: not warm.is_running(), "it ends", 30.0)
