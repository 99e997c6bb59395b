"""What a client returns as a job has the calls of that client for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

import pytest

from remora import AsyncClient, Client, JobState
from remora.views import Job, MetricPoint
from tests.command_line import Cli
from tests.unit.remora.fake_service import FakeService

T = TypeVar("T")


def point(step: int) -> MetricPoint:
    return MetricPoint(step=step, at=1, attempt=1, world_size=2, values={"loss": 1 / step, "lost": None})


def scenes_of(service: FakeService, *steps: int) -> list[Callable[[Job], None]]:
    """The job reports one of these steps before each look at it, and has ended at the last look."""

    def scene(step: int, state: JobState) -> Callable[[Job], None]:
        def happen(job: Job) -> None:
            service.metrics.append(point(step))
            service.change(job, state=state, step=step, total_steps=max(steps))

        return happen

    *first, last = steps
    return [*(scene(one, JobState.RUNNING) for one in first), scene(last, JobState.SUCCEEDED)]


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("blocking", "asynchronous"):
        monkeypatch.setattr(f"remora.client.{module}.POLL_S", 0)


def test_a_submitted_job_is_followed_by_its_own_calls(service: FakeService) -> None:
    with Client(service.url) as client:
        job = client.submit({"command": "true", "name": "digits"})
        service.add_log(service.jobs[job.id], "hello")
        assert [line.text for line in job.logs()] == ["hello"]
        service.scenes = scenes_of(service, 1, 2, 3)
        assert [one.step for one in job.metrics(follow=True)] == [1, 2, 3]
        assert [one.step for one in job.metrics()] == [1, 2, 3]
        assert job.state is JobState.QUEUED, "it is as it was"
        assert job.refresh().state is JobState.SUCCEEDED
        assert job.wait(5) == job.refresh() == client.job(job.id)
        assert (job.attempts(), job.checkpoints(), job.outputs()) == ([], [], [])


def test_the_asynchronous_client_does_the_same(service: FakeService) -> None:
    async def gather(stream: AsyncIterator[T]) -> list[T]:
        return [item async for item in stream]

    async def go() -> None:
        async with AsyncClient(service.url) as client:
            job = await client.submit({"command": "true"})
            assert (await job.cancel()).id == job.id
            service.scenes = scenes_of(service, 1, 2)
            assert [one.step for one in await gather(job.metrics(follow=True))] == [1, 2]
            assert [one.step for one in await job.metrics()] == [1, 2]
            assert (await job.wait(5)) == (await job.refresh())

    asyncio.run(go())


def test_a_job_is_one_line_and_equals_the_same_state_of_it(service: FakeService) -> None:
    known = service.add_job(step=385, total_steps=2500)
    with Client(service.url) as client:
        job = client.find("last")
    assert repr(job) == str(job) == f"<Job {known.id} 'digits': running, step 385 of 2500>"
    assert job == known
    assert known == job
    assert len({job, job.model_copy()}) == 1
    assert job.model_dump() == known.model_dump()


def test_the_command_prints_each_step_as_it_comes(cli: Cli, service: FakeService) -> None:
    service.add_job()
    service.scenes = [lambda _: None, *scenes_of(service, 1, 2)]
    assert cli("metrics", "last", "-f") == 0
    assert cli.out.splitlines() == ["step 1  workers 2  loss 1", "step 2  workers 2  loss 0.5"]
    assert cli("metrics", "last", "-f", "--json") == 0
    assert [json.loads(line)["step"] for line in cli.out.splitlines()] == [1, 2]
    assert cli("metrics", "last", "-f", "--points", "5") != 0
    assert "leave out --output and --points" in cli.err


def test_who_looks_for_a_checkpoint_finds_the_outputs(cli: Cli, service: FakeService) -> None:
    job = service.add_job(state=JobState.SUCCEEDED)
    service.outputs = {"model/w.pt": b"weights"}
    assert cli("download", "last") != 0
    assert f"it has outputs: remora outputs {job.id} --download DIR" in cli.err
