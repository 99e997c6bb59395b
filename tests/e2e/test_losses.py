"""A process of an attempt is killed: the attempt ends for that reason, and the job goes on from its checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from remora import Client
from remora.states import EndReason, JobState
from tests.e2e.embedded import Embedded
from tests.e2e.processes import PATIENCE_S, JobProcesses, is_alive, kill, until
from tests.e2e.scripts import Steps

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def child(processes: JobProcesses) -> psutil.Process:
    return processes.child(1)


def supervisor(processes: JobProcesses) -> psutil.Process:
    return processes.supervisor(1)


def driver(processes: JobProcesses) -> psutil.Process:
    return processes.driver()


@pytest.mark.parametrize(
    ("victim", "reason"),
    [
        # tests/integration/trainers/test_attempts.py kills these without a service.
        pytest.param(child, EndReason.SIGNAL, marks=pytest.mark.soak),
        pytest.param(supervisor, EndReason.SUPERVISOR_LOST, marks=pytest.mark.soak),
        (driver, EndReason.DRIVER_LOST),
    ],
)
def test_a_killed_process_ends_the_attempt_and_the_next_one_resumes(
    service: Embedded,
    client: Client,
    tmp_path: Path,
    victim: Callable[[JobProcesses], psutil.Process],
    reason: EndReason,
) -> None:
    script = Steps(tmp_path, steps=80)
    job = client.submit(script.spec)
    script.allow(40)
    until(lambda: client.job(job.id).checkpoint_step, "a checkpoint is committed")
    # What a driver has not reported yet dies with it; on a busy machine that is more than what is repeated.
    until(lambda: client.job(job.id).step == 40, "the service knows of every step")
    processes = JobProcesses(service.home, job.id)
    family = [processes.child(rank) for rank in (0, 1)]

    kill(victim(processes))
    until(lambda: not any(is_alive(one) for one in family), "no child of the attempt outlives it", 30.0)
    script.allow_all()

    ended = client.wait(job.id, PATIENCE_S)
    assert (ended.state, ended.attempt) == (JobState.SUCCEEDED, 2), ended.message
    first, second = client.attempts(job.id)
    assert (first.end_reason, second.end_reason) == (reason, EndReason.COMPLETED), first.message
    assert second.resumed_from_step is not None
    assert 1 <= second.resumed_from_step <= 40
    assert [point.step for point in client.metrics(job.id)] == list(range(1, 81))
    for rank in (0, 1):
        twice = [step for step in range(1, 81) if script.done(rank).count(step) > 1]
        assert all(second.resumed_from_step < step <= 40 for step in twice), (
            "only what was not saved is repeated"
        )
    until(lambda: not processes.left(), "nothing is left of the job", 20.0)
