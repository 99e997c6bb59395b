"""Traces from the request that submits a job to its first step and its end, as a collector receives them."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from remora.process_log import JsonLines
from remora.states import JobState
from service.store import unsent_spans
from service.store.database import Database
from service.store.tables import jobs
from service.tracing.collector import TIMEOUT_S
from tests.contracts.service.otlp_receivers import OtlpReceiver, ReceivedSpan, otlp_receiver
from tests.contracts.service.owners import Owner, owner_of

pytestmark = pytest.mark.postgresql_in_soak

SENDER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Traced:
    """An owner whose service sends its traces to a collector."""

    def __init__(self, owner: Owner, receiver: OtlpReceiver) -> None:
        self.owner = owner
        self.world = owner.world
        self.receiver = receiver

    def submit(self, traceparent: str | None = None, **fields: Any) -> str:
        headers = {} if traceparent is None else {"traceparent": traceparent}
        answer = self.owner.client.post(
            "/v1/jobs", json={"command": "python train.py", **fields}, headers=headers
        )
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def train(self, job_id: str) -> None:
        """The job's group begins a second after the attempt, and does its first step two seconds later."""
        self.owner.run_until(job_id, JobState.ADMITTED)
        self.world.now += 1.0
        driver = self.owner.train(job_id)
        self.world.now += 2.0
        driver.report("progress", at=self.world.now, phase="training", step=1)
        self.world.tick()

    def of_job(self, job_id: str) -> list[ReceivedSpan]:
        found = [one for one in self.receiver.spans if one.attributes.get("remora.job.id") == job_id]
        return sorted(found, key=lambda one: (one.began_ns, one.name))

    def stored(self, job_id: str) -> str | None:
        found: str | None = self.world.database.query(
            lambda c: c.execute(sa.select(jobs.c.traceparent).where(jobs.c.id == job_id)).scalar_one()
        )
        return found


@contextmanager
def traced_by(
    receiver: OtlpReceiver, database: Database, url: str, home: Path, **settings: Any
) -> Iterator[Traced]:
    with owner_of(database, url, home, otlp_endpoint=receiver.url, **settings) as owner:
        yield Traced(owner, receiver)
        owner.world.controller.traces.close()


@contextmanager
def json_lines() -> Iterator[list[dict[str, Any]]]:
    """What this process logs meanwhile, each line as it would be written as JSON."""
    lines: list[dict[str, Any]] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(json.loads(self.format(record)))

    kept, root = Kept(), logging.getLogger()
    kept.setFormatter(JsonLines("test"))
    before = root.level
    root.addHandler(kept)
    root.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        root.removeHandler(kept)
        root.setLevel(before)


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    with otlp_receiver() as made:
        yield made


@pytest.fixture
def service(
    receiver: OtlpReceiver, database: Database, database_url: str, tmp_path: Path
) -> Iterator[Traced]:
    with traced_by(receiver, database, database_url, tmp_path) as made:
        yield made


def test_one_trace_leads_from_the_request_to_the_first_step(service: Traced) -> None:
    job_id = service.submit()
    service.receiver.wait()
    (request,) = service.receiver.named("POST /v1/jobs")
    service.train(job_id)
    found = {one.name: one for one in service.of_job(job_id)}
    assert set(found) == {"queued", "waiting_for_nodes", "start", "starting", "running"}
    assert {one.trace_id for one in found.values()} == {request.trace_id}
    assert request.parent_id == ""
    assert (request.service, found["start"].service) == ("remora-api", "remora-controller")
    queued, start = found["queued"], found["start"]
    assert queued.parent_id == start.parent_id == request.span_id
    assert found["waiting_for_nodes"].parent_id == queued.span_id
    assert found["starting"].parent_id == found["running"].parent_id == start.span_id
    assert queued.began_ns <= found["waiting_for_nodes"].began_ns < queued.ended_ns
    assert queued.ended_ns == start.began_ns == found["starting"].began_ns
    assert found["starting"].ended_ns == found["running"].began_ns
    assert found["running"].ended_ns == start.ended_ns
    assert found["running"].ended_ns - found["running"].began_ns == pytest.approx(2e9, abs=1e9)
    assert start.moments == ("first_step",)
    assert not any(one.is_error for one in found.values())


def test_what_follows_the_first_step_is_sent_once_and_at_the_end_the_reason(service: Traced) -> None:
    job_id = service.submit()
    service.train(job_id)
    begun = len(service.of_job(job_id))
    service.world.tick(4)
    assert len(service.of_job(job_id)) == begun, "nothing is sent again"
    service.owner.end(job_id, "exit_code")
    service.world.tick(4)
    more = service.of_job(job_id)[begun:]
    assert [one.name for one in more] == ["training", "end"]
    assert len({one.span_id for one in service.of_job(job_id)}) == begun + 2
    end = more[-1]
    assert end.parent_id == service.receiver.only("start").span_id
    assert end.attributes["remora.end_reason"] == "exit_code"
    assert end.is_error


def test_the_trace_of_the_sender_goes_on_to_the_commands_of_the_job(service: Traced) -> None:
    job_id = service.submit(SENDER)
    service.receiver.wait()
    request = service.receiver.only("POST /v1/jobs")
    assert (request.trace_id, request.parent_id) == (SENDER[3:35], SENDER[36:52])
    assert service.stored(job_id) == f"00-{request.trace_id}-{request.span_id}-01"
    service.train(job_id)
    start = service.receiver.only("start")
    plan = service.world.launcher.driver_of(job_id).plan
    assert plan.traceparent == f"00-{start.trace_id}-{start.span_id}-01"


def test_log_lines_of_an_attempt_and_of_a_request_have_the_ids_of_their_spans(
    service: Traced, monkeypatch: pytest.MonkeyPatch
) -> None:
    with json_lines() as lines:
        job_id = service.submit(SENDER)
        service.train(job_id)
        start = service.receiver.only("start")
        (launched,) = [one for one in lines if "was launched" in one["message"]]
        assert (launched["job"], launched["trace_id"], launched["span_id"]) == (
            job_id,
            start.trace_id,
            start.span_id,
        )
        context = service.owner.client.app.state.remora  # type: ignore[attr-defined]
        read = context.database.read

        async def logged(work: Any) -> Any:
            logging.getLogger("service.test").warning("it reads")
            return await read(work)

        monkeypatch.setattr(context.database, "read", logged)
        asked = service.owner.client.get(f"/v1/jobs/{job_id}", headers={"traceparent": SENDER})
    assert asked.status_code == 200
    reading = [one for one in lines if one["message"] == "it reads"][-1]
    service.receiver.wait_for("GET /v1/jobs/{job_id}")
    request = service.receiver.only("GET /v1/jobs/{job_id}")
    assert (reading["job"], reading["trace_id"], reading["span_id"]) == (
        job_id,
        request.trace_id,
        request.span_id,
    )


def test_killed_between_the_sending_and_the_mark_the_next_controller_sends_the_same_spans(
    service: Traced, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def kill(*_: object, **__: object) -> None:
        raise Killed

    job_id = service.submit()
    service.owner.train(job_id)
    driver = service.world.launcher.driver_of(job_id)
    driver.report("progress", at=service.world.now, phase="training", step=1)
    with monkeypatch.context() as patch:
        patch.setattr(unsent_spans, "mark", kill)
        with pytest.raises(Killed):
            service.world.tick(2)
    first = service.of_job(job_id)
    assert first
    service.world.succeed()
    service.world.tick(2)
    again = service.of_job(job_id)
    assert len(again) == 2 * len(first)
    assert again == [one for one in first for _ in range(2)], "spans, ids and times are the same"


def test_of_two_controllers_one_sends(service: Traced) -> None:
    other = service.world.new_controller()
    job_id = service.submit()
    service.train(job_id)
    other.trace(lambda: service.world.now)
    service.owner.end(job_id)
    other.trace(lambda: service.world.now)
    service.world.tick(2)
    ids = [one.span_id for one in service.of_job(job_id)]
    assert len(ids) == len(set(ids))
    other.close()


def test_a_collector_that_hangs_holds_no_job_up_and_gets_everything_later(
    service: Traced, caplog: pytest.LogCaptureFixture
) -> None:
    service.receiver.answers += [0] * 2
    job_id = service.submit()
    began = time.monotonic()
    service.train(job_id)
    assert time.monotonic() - began < 2 * TIMEOUT_S + 10.0
    assert service.owner.job(job_id).state is JobState.RUNNING
    assert service.of_job(job_id) == []
    lines = [
        record.getMessage() for record in caplog.records if "traces cannot be sent" in record.getMessage()
    ]
    assert len(lines) <= 2, "one of the API, and one of the controller"
    service.receiver.released.set()
    service.world.now += 61.0
    service.world.controller.holder.step(service.world.now)
    service.world.tick(2)
    assert {"queued", "start"} <= {one.name for one in service.of_job(job_id)}


@pytest.mark.parametrize(
    "sent",
    [
        "",
        "hello",
        SENDER.replace("-01", ""),
        SENDER.upper(),
        SENDER.replace("00-", "ff-", 1),
        f"00-{'0' * 32}-b7ad6b7169203331-01",
        f"00-0af7651916cd43dd8448eb211c80319c-{'0' * 16}-01",
        f"{SENDER}-and-more",
        "00-" + "a" * 5000,
    ],
)
def test_what_is_no_traceparent_begins_a_trace(service: Traced, sent: str) -> None:
    job_id = service.submit(sent)
    stored = service.stored(job_id)
    assert stored is not None
    assert len(stored) == 55
    assert SENDER[3:35] not in stored


def test_who_asks_for_no_record_gets_none(service: Traced) -> None:
    job_id = service.submit(f"{SENDER[:-1]}0")
    service.train(job_id)
    service.owner.end(job_id)
    service.world.tick(2)
    assert service.of_job(job_id) == []
    plan = service.world.launcher.history[-1].plan
    assert str(plan.traceparent).startswith(SENDER[:36])
    assert str(plan.traceparent).endswith("-00")


def test_jobs_of_an_array_have_traces_of_their_own_that_name_the_request(service: Traced) -> None:
    spec = {"command": "python train.py", "array": {"grid": {"lr": [1, 2]}}}
    answer = service.owner.client.post("/v1/arrays", json=spec, headers={"traceparent": SENDER})
    assert answer.status_code == 201, answer.text
    service.receiver.wait()
    request = service.receiver.only("POST /v1/arrays")
    listed = service.owner.client.get("/v1/jobs", params={"array": answer.json()["id"]}).json()["items"]
    for job in listed:
        service.train(job["id"])
    starts = service.receiver.named("start")
    assert len({one.trace_id for one in starts}) == 2
    assert {one.parent_id for one in starts} == {""}
    assert {one.links for one in starts} == {((request.trace_id, request.span_id),)}


def test_headers_are_sent_and_never_logged(
    receiver: OtlpReceiver,
    database: Database,
    database_url: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    file = tmp_path / "headers"
    file.write_text("# for the collector\nAuthorization: Bearer s3cret-token\n")
    caplog.set_level(logging.DEBUG)
    receiver.answers += [401, 401]
    with traced_by(receiver, database, database_url, tmp_path, otlp_headers_file=file) as service:
        service.train(service.submit())
        receiver.wait(2)
    assert {one["authorization"] for one in receiver.headers} == {"Bearer s3cret-token"}
    assert "answers 401" in caplog.text
    assert "s3cret" not in caplog.text


def test_spans_that_the_collector_will_never_take_are_dropped(service: Traced) -> None:
    job_id = service.submit()
    service.receiver.wait()
    service.receiver.answers += [400]
    service.train(job_id)
    service.owner.end(job_id)
    service.world.tick(2)
    assert [one.name for one in service.of_job(job_id)] == ["training", "end"]


def test_without_a_collector_the_senders_trace_still_reaches_the_commands(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    with owner_of(database, database_url, tmp_path) as owner:
        service = Traced(owner, OtlpReceiver())
        job_id, other = service.submit(SENDER), service.submit()
        assert (service.stored(job_id), service.stored(other)) == (SENDER, None)
        for one in (job_id, other):
            owner.train(one)
        plans = {one.plan.job_id: one.plan.traceparent for one in service.world.launcher.history}
    assert str(plans[job_id]).startswith(SENDER[:36])
    assert plans[other] is None
