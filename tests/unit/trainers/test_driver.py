"""The driver sorts what supervisors deliver: by worker group, by worker, and by what is still of use."""

from __future__ import annotations

import asyncio
import http.server
import threading
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from remora.states import EndReason
from tests.attempt_plans import plan_of
from tests.unit.trainers.stage import Stage
from tests.unit.trainers.virtual_time import play
from trainers.attempt_claims import Claims, Refused
from trainers.checkpoints.catalog import Catalog
from trainers.driver import driver as driver_module
from trainers.driver.driver import Driver, DriverTaken
from trainers.driver_protocol import PROTOCOL
from trainers.job_storage import JobStorages
from trainers.plan import AttemptPlan, Record
from trainers.storage import Storage, StorageError
from trainers.stored_ends import StoredEnds


class Desk:
    """A driver whose workers are a stage's."""

    def __init__(self, workers: int = 2) -> None:
        self.stage = Stage(workers)
        self.driver = Driver()
        self.driver.take(self.stage.attempt.plan)
        self.driver._account = self.stage.account
        self.driver._group_members = self.stage.group_members
        self.driver._attempt = self.stage.attempt
        self.driver._in_place = self.stage.in_place

    async def deliver(self, slot: int, *messages: dict[str, Any], generation: int = 1) -> dict[str, Any]:
        return await self.driver.deliver(generation, slot, list(messages))


def desk(act: Any) -> Any:
    def played() -> None:
        async def scene() -> None:
            work: Coroutine[Any, Any, None] = act(Desk())
            await work

        play(scene())

    played.__name__ = act.__name__
    return played


@desk
async def test_reports_of_the_present_group_count_and_others_do_not(at: Desk) -> None:
    await at.deliver(0, {"type": "report", "step": 12, "metrics": {"loss": 1.0}})
    await at.deliver(0, {"type": "report", "step": 99, "metrics": {"loss": 2.0}}, generation=7)
    await at.deliver(5, {"type": "report", "step": 99, "metrics": {"loss": 2.0}})
    metrics = [one.body for one in at.stage.account.records(0, 100) if one.kind == "metric"]
    assert [metric["step"] for metric in metrics] == [12]
    assert at.stage.attempt.progress.step == 12


@desk
async def test_lines_of_any_worker_are_stored(at: Desk) -> None:
    line = {"type": "log", "stream": "stdout", "text": "hello"}
    await at.deliver(1, line)
    await at.deliver(1, line, generation=7)
    await at.deliver(5, line)
    lines = [one.body for one in at.stage.account.records(0, 100) if one.kind == "log"]
    assert [line["rank"] for line in lines] == [1, 1, -1]


@desk
async def test_an_end_counts_whatever_group_the_worker_thought_it_was_in(at: Desk) -> None:
    at.stage.attempt.follow(2)
    await at.deliver(1, {"type": "exit", "exit_code": 3}, generation=1)
    group = at.stage.attempt.group
    assert group is not None
    assert group.exits[1].exit_code == 3


@desk
async def test_the_end_of_a_worker_that_has_left_says_nothing_about_the_group(at: Desk) -> None:
    at.stage.kill(1)
    await at.deliver(1, {"type": "exit", "exit_code": 1})
    group = at.stage.attempt.group
    assert group is not None
    assert group.exits == {}


@desk
async def test_workers_that_wait_to_join_end_with_the_others(at: Desk) -> None:
    joiner = at.stage.join(is_ready=False)
    for slot in (0, 1):
        await at.deliver(slot, {"type": "exit", "exit_code": 0})
    await at.stage.after(0.1)
    assert at.stage.messages("stop") == [joiner]


@desk
async def test_nonsense_from_a_script_does_not_reach_the_supervisor_as_an_error(at: Desk) -> None:
    answer = await at.deliver(
        1, {"type": "parted"}, {"type": "joined", "generation": "?"}, {"type": "report"}
    )
    assert answer["log_is_full"] is False
    assert len(at.stage.log) == 3


@desk
async def test_a_driver_without_free_memory_takes_steps_and_no_lines_until_their_command_is_over(
    at: Desk,
) -> None:
    line = {"type": "log", "stream": "stdout", "text": "x" * 65_536}
    while (answer := await at.deliver(0, line))["log_room"]:
        assert answer["log_is_taken"] is True
    held = at.stage.account._journal.line_bytes
    answer = await at.deliver(1, line, {"type": "report", "step": 12})
    assert (answer["log_is_taken"], answer["log_room"]) == (False, 0)
    await at.deliver(0, {"type": "report", "step": 12})
    assert at.stage.attempt.progress.step == 12
    assert at.stage.account._journal.line_bytes == held
    await at.deliver(1, {**line, "hurried": True})
    assert at.stage.account._journal.line_bytes > held


@desk
async def test_one_that_prints_may_send_all_bytes_and_many_share_them(at: Desk) -> None:
    line = {"type": "log", "stream": "stdout", "text": "hello"}
    alone = (await at.deliver(0, line))["log_room"]
    both = (await at.deliver(1, line))["log_room"]
    assert both < alone < 2.1 * both


@desk
async def test_a_stop_is_reported_once_and_ends_a_change_in_place(at: Desk) -> None:
    at.stage.hanging.add(0)
    at.stage.kill(1)
    await at.driver.stop(EndReason.CANCELLED)
    await at.driver.stop(EndReason.RUN_TIME_EXCEEDED)
    assert not at.stage.in_place.is_changing
    assert at.stage.messages("stop") == [0]
    assert at.stage.attempt.stop_reason is EndReason.CANCELLED
    assert at.stage.account.records(0, 100)[-1].body == {"state": "draining"}


@desk
async def test_after_its_last_word_nothing_is_stopped(at: Desk) -> None:
    await at.driver._end(None)
    await at.driver.stop(EndReason.CANCELLED)
    records = await at.driver.poll(0, 100)
    assert records[-1].body["end_reason"] == "completed"


@pytest.mark.parametrize("elastic", [True, False])
def test_a_group_grows_in_one_way_only(elastic: bool) -> None:
    async def scene() -> None:
        at = Desk()
        if not elastic:
            at.stage.group_members.elastic.clear()
        at.driver._call = lambda function: function()  # type: ignore[method-assign,assignment]
        assert at.driver.grows_in_place() is elastic
        assert at.driver.may_grow() is not elastic

    play(scene())


class Beginner(Driver):
    """A driver that begins nothing beyond taking its plan."""

    def _begin(self, plan: AttemptPlan) -> None:
        self.take(plan)


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AttemptPlan:
    """A plan in a storage of its own; nothing is waited for between two tries to reach it."""
    monkeypatch.setattr(driver_module, "_CLAIM_PAUSE_S", 0.0)
    storage = str(tmp_path / "storage")
    return plan_of(
        job_id="job_1", attempt_id="att_1", attempt=1, command=["true"], bundle=None, storage_url=storage,
        checkpoint_url=storage, backend="ddp", min_workers=1, max_workers=1, resources={"CPU": 1.0},
    )  # fmt: skip


def test_of_two_drivers_of_an_attempt_the_first_begins_it(
    plan: AttemptPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_module, "_REFUSED_S", 1000.0)

    async def scene() -> None:
        first, second = Beginner(), Beginner()
        assert await first.poll(0, 10) is None, "it has no plan, which is not the same as no news"
        await first.start(plan)
        await first.start(plan)
        assert await first.poll(0, 10) == []
        with pytest.raises(Refused, match="belongs to another driver"):
            await second.start(plan)
        assert await second.poll(0, 10) is None
        with pytest.raises(DriverTaken):
            await first.start(replace(plan, attempt_id="att_other"))

    asyncio.run(scene())


def test_an_attempt_that_was_closed_is_begun_by_no_driver(
    plan: AttemptPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = asyncio.Event()
    Claims(Storage(plan.storage_url), plan.job_id).close(plan.attempt_id)

    monkeypatch.setattr(driver_module, "_REFUSED_S", 0.0)

    async def scene() -> None:
        monkeypatch.setattr(driver_module, "end_this_actor", ended.set)
        with pytest.raises(Refused, match="has ended already"):
            await Beginner().start(plan)
        await asyncio.wait_for(ended.wait(), 10.0)

    asyncio.run(scene())


def test_its_last_records_lie_in_the_storage_before_they_are_handed_out(
    plan: AttemptPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    handed_out: list[list[str]] = []
    ends = StoredEnds(Storage(plan.storage_url), plan.job_id)

    async def scene() -> None:
        driver = Beginner()
        await driver.start(plan)
        write = StoredEnds.write

        def writes(self: StoredEnds, attempt_id: str, records: Sequence[Record]) -> bool:
            handed_out.append([one.kind for one in driver._account.records(0, 100)])
            return write(self, attempt_id, records)

        monkeypatch.setattr(StoredEnds, "write", writes)
        await driver._end(None)
        (last,) = [one.body for one in await driver.poll(0, 100) or () if one.kind == "ended"]
        assert ends.read(plan.attempt_id, 0)[-1].body == last

    asyncio.run(scene())
    assert len(handed_out) == 1
    assert "ended" not in handed_out[0]


@pytest.mark.parametrize(
    "error", [StorageError("it is full"), TypeError("not JSON"), TimeoutError()], ids=repr
)
def test_what_cannot_be_stored_is_handed_out(
    plan: AttemptPlan, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fails(*_: object) -> bool:
        raise error

    async def scene() -> None:
        monkeypatch.setattr(StoredEnds, "write", fails)
        driver = Beginner()
        await driver.start(plan)
        await driver._end(None)
        assert [one.kind for one in await driver.poll(0, 100) or ()][-1] == "ended"

    asyncio.run(scene())


def test_closing_takes_no_attempt_from_its_driver(plan: AttemptPlan) -> None:
    claims = Claims(Storage(plan.storage_url), plan.job_id)
    claims.take(plan.attempt_id, "first")
    claims.close(plan.attempt_id)
    claims.take(plan.attempt_id, "first")


def test_a_storage_that_fails_for_a_moment_delays_the_start(
    plan: AttemptPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [StorageError("it does not answer")] * 2

    def fails_twice(plan: AttemptPlan, name: str, storages: JobStorages) -> None:
        if failures:
            raise failures.pop()
        Claims(Storage(plan.storage_url), plan.job_id).take(plan.attempt_id, name)

    monkeypatch.setattr(driver_module, "claim", fails_twice)

    async def scene() -> None:
        driver = Beginner()
        await driver.start(plan)
        assert await driver.poll(0, 10) == []

    asyncio.run(scene())


def test_a_driver_of_an_attempt_that_a_newer_one_has_fenced_begins_nothing(plan: AttemptPlan) -> None:
    Catalog(Storage(plan.checkpoint_url), plan.job_id).fence(plan.attempt + 1)
    driver = Driver()
    driver.take(plan)
    with pytest.raises(Refused, match="newer attempt"):
        driver._run_controller()


@pytest.fixture
def read_only() -> Iterator[str]:
    """The URL of a storage over HTTP, which has nothing and takes nothing."""

    class Nothing(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404)

        do_HEAD = do_GET  # noqa: N815 - the name that the library looks for

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Nothing) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        yield f"http://127.0.0.1:{server.server_port}/store"
        server.shutdown()


def test_an_attempt_whose_checkpoints_cannot_be_stored_is_lost_with_a_sentence(
    plan: AttemptPlan, read_only: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_module, "_CLAIM_S", 0.0)
    driver = Driver()
    driver.take(replace(plan, checkpoint_url=read_only))
    monkeypatch.setattr(driver, "_call", lambda function, *arguments: function(*arguments))
    with pytest.raises(StorageError):
        driver._run_controller()
    verdict = driver._attempt.verdict
    assert verdict is not None
    assert verdict.end_reason is EndReason.DRIVER_LOST, "a loss that is bounded, see service.queue.retry"
    assert "storage for checkpoints cannot be used" in verdict.message


def test_a_service_that_speaks_an_older_protocol_than_the_one_before_gets_no_driver(tmp_path: Path) -> None:
    async def scene() -> None:
        driver = Driver()
        fields = {"job_id": "job_1", "attempt_id": "att_1", "attempt": 1, "command": ["true"], "bundle": None}
        places = {"storage_url": str(tmp_path), "checkpoint_url": str(tmp_path)}
        plan = plan_of(
            **fields,
            **places,
            backend="ddp",
            min_workers=1,
            max_workers=1,
            resources={},
            protocol=PROTOCOL - 2,
        )
        assert await driver.protocol() is None, "it has no attempt yet"
        with pytest.raises(Refused, match=f"speaks protocol {PROTOCOL - 2}, and the driver"):
            await driver.start(plan)
        driver.take(replace(plan, protocol=PROTOCOL + 1))
        assert await driver.protocol() == PROTOCOL

    play(scene())
    assert not (tmp_path / "jobs").exists(), "it has claimed nothing"
