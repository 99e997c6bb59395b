"""The service dies in parts or whole while a job trains; training does not notice, and nothing is lost or doubled."""

from __future__ import annotations

from pathlib import Path

import pytest

from remora import Client
from remora.errors import ConnectionFailed
from remora.states import JobState
from remora.views import Event, Job, LogLine
from tests.e2e.embedded import API, CONTROLLER, Embedded, Follower
from tests.e2e.processes import PATIENCE_S, JobProcesses, is_alive, until
from tests.e2e.scripts import Steps

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_the_service_is_killed_and_started_again_while_a_job_trains(
    service: Embedded, client: Client, tmp_path: Path
) -> None:
    script = Steps(tmp_path, steps=120)
    job = client.submit(script.spec)
    watched = Watched(client, job)
    script.allow(60)
    until(lambda: (client.job(job.id).step or 0) >= 10, "it trains")
    child = JobProcesses(service.home, job.id).child(1)

    service.kill()
    with pytest.raises(ConnectionFailed), Client(service.url, retry_s=0.0) as hasty:
        hasty.health()
    script.allow(100)
    script.until_done(100)
    assert is_alive(child), "training did not notice"

    service.start()
    until(lambda: client.job(job.id).step == 100, "what happened meanwhile is known")
    script.allow_all()
    watched.ended_as_if_nothing_had_happened(script)


# The test before this one kills the API, too.
@pytest.mark.parametrize("module", [CONTROLLER, pytest.param(API, marks=pytest.mark.soak)])
def test_one_part_of_the_service_is_killed_while_a_job_trains(
    service: Embedded, client: Client, tmp_path: Path, module: str
) -> None:
    script = Steps(tmp_path, steps=100)
    job = client.submit(script.spec)
    watched = Watched(client, job)
    script.allow(60)
    until(lambda: (client.job(job.id).step or 0) >= 10, "it trains")
    service.kill_part(module)
    script.allow_all()
    watched.ended_as_if_nothing_had_happened(script)


class Watched:
    """A job whose events and logs a client follows from its beginning."""

    def __init__(self, client: Client, job: Job) -> None:
        self._client = client
        self._id = job.id
        self._events: Follower[Event] = Follower(client.events(job.id, follow=True))
        self._lines: Follower[LogLine] = Follower(client.logs(job.id, follow=True))

    def ended_as_if_nothing_had_happened(self, script: Steps) -> None:
        ended = self._client.wait(self._id, PATIENCE_S)
        ends = [f"{one.end_reason}: {one.message}" for one in self._client.attempts(self._id)]
        assert (ended.state, ended.attempt) == (JobState.SUCCEEDED, 1), ends
        assert (ended.repeated_steps, ended.step) == (0, script.steps)
        points = self._client.metrics(self._id)
        assert [point.step for point in points] == list(range(1, script.steps + 1))
        assert [point.values["square"] for point in points] == [point.step**2 for point in points]
        self._each_line_once(script)
        self._each_event_once()

    def _each_line_once(self, script: Steps) -> None:
        followed = self._lines.all()
        assert followed == list(self._client.logs(self._id))
        assert [line.seq for line in followed] == list(range(1, len(followed) + 1))
        for rank in (0, 1):
            assert [line.text for line in followed if line.rank == rank] == script.log_of(rank)
            assert script.done(rank) == list(range(1, script.steps + 1))

    def _each_event_once(self) -> None:
        followed = self._events.all()
        assert followed == list(self._client.events(self._id))
        assert [event.seq for event in followed] == list(range(1, len(followed) + 1))
        for once in ("job.running", "attempt.started", "worker_group.started", "job.succeeded"):
            assert [event.kind for event in followed].count(once) == 1, once
