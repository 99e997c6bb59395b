"""Everything that can be killed is killed at random moments of a queue of short jobs, and every job ends once.

A seed that fails is run again by `make soak SEED=<seed>`.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from service.settings import Settings
from tests.chaos.soak_blows import Blows, StandBy, left_in_memory, stand_by
from tests.chaos.soak_queue import Queue
from tests.chaos.soak_rounds import VICTIMS, rounds_of
from tests.e2e.embedded import Embedded
from tests.e2e.processes import until

#: With all other tests: each kind of process once.
ROUNDS = int(os.environ.get("REMORA_SOAK_ROUNDS", len(VICTIMS)))
SEED = int(os.environ.get("REMORA_SOAK_SEED", "1"))

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(300 + 60 * ROUNDS)]


def test_every_acknowledged_job_ends_once_and_no_command_runs_twice(tmp_path: Path) -> None:
    # Its scripts write down in a folder of the test that they ran.
    service = Embedded(tmp_path / "home", variables={"REMORA_ISOLATION": "none"})
    try:
        service.start()
        queue = Queue(service.url, tmp_path)
        with stand_by(service) as second:
            soak(service, second, queue)
    finally:
        # It asserts that no process, socket or temporary folder of the service is left.
        service.end()


def soak(service: Embedded, second: StandBy, queue: Queue) -> None:
    blows = Blows(service, second, queue.acknowledged)
    try:
        for blow in rounds_of(SEED, ROUNDS):
            queue.submit(blow.jobs)
            # The moment is part of what the seed decides; nothing is waited for.
            threading.Event().wait(blow.after_s)
            blows.strike(blow)
        # Whatever happened, what comes now runs.
        queue.submit(((2, 1),))
        queue.wait()
        queue.check()
        check_left(service, blows, queue)
    except BaseException as error:
        error.add_note("\n".join([*blows.reported, f"Run it again: make soak SEED={SEED}"]))
        raise
    runs = len(queue.marks())
    print(
        f"seed {SEED}: {len(queue.acknowledged)} jobs, {runs} starts of a rank; {'; '.join(blows.reported)}"
    )


def check_left(service: Embedded, blows: Blows, queue: Queue) -> None:
    """Nothing of the jobs is left while the service goes on."""
    with service.client() as client:
        attempts = {one.id for job_id in queue.acknowledged for one in client.attempts(job_id)}
    until(lambda: not blows.of_jobs(), f"no process of a job is left: {blows.of_jobs()}", 60.0)
    most = Settings().ready_drivers
    until(lambda: len(blows.drivers()) <= most, f"at most {most} drivers wait: {blows.drivers()}", 60.0)
    until(lambda: not left_in_memory(attempts), f"no memory is left: {left_in_memory(attempts)}", 60.0)
