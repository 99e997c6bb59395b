"""From what a script prints to what the service fetches: real processes and a real driver, without Ray between them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.attempt_plans import plan_of
from tests.unit.trainers import supervisor_stage
from tests.unit.trainers.supervisor_stage import Stage, without_ray
from trainers.driver import pending
from trainers.driver.account import AWAY_S, HOLD_BYTES
from trainers.driver.driver import Driver
from trainers.ray_train import Member
from trainers.supervisor import outbox

LINES = 800_000
#: Prints lines of eight bytes, and says each 100,000 lines that it has.
PRINTS = f"""
import sys
from remora import training
for number in range({LINES}):
    if number % 100_000 == 0:
        training.report(number)
    sys.stdout.write(f"{{number:7}}\\n")
"""


class RealDriver(supervisor_stage.Driver):
    """Hands what supervisors deliver to a driver, whose clock the test sets."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.deliveries = 0
        self.real = Driver(now=lambda: self.now)
        self.real.take(
            plan_of(
                job_id="job_1", attempt_id="att_1", attempt=1, command=[], bundle=None, storage_url="memory://",
                checkpoint_url="memory://", backend="ddp", min_workers=1, max_workers=1, resources={"CPU": 1.0},
                checkpoint_interval_s=None,
            )
        )  # fmt: skip
        member = Member(
            slot=0, rank=0, local_rank=0, local_world_size=1, node_rank=0, ray_node_id="node", address="10.0.0.1",
            call=lambda *_: None,
        )  # fmt: skip
        self.real._attempt.open_group([member], None)

    def get(self, call: tuple[int, int, list[dict[str, Any]]]) -> dict[str, Any]:
        with self.changed:
            answer = asyncio.run(self.real.deliver(*call))
            self.deliveries += 1
            self.messages += [message for message in call[2] if message["type"] != "log"]
            self.changed.notify_all()
            assert self.held_bytes <= pending.MOST_LINE_BYTES + 2 * outbox._BATCH_BYTES
        return answer

    @property
    def held_bytes(self) -> int:
        return self.real._account._journal.line_bytes

    def until(self, seen: Any) -> None:
        with self.changed:
            assert self.changed.wait_for(seen, 60.0), self.messages[-3:]

    def fetch(self, after: int) -> list[Any]:
        with self.changed:
            return self.real._account.records(after, 10_000)


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    driver = RealDriver()
    without_ray(driver, tmp_path, monkeypatch)
    monkeypatch.setattr(outbox, "_ASK_AGAIN_S", 0.01)
    stage = Stage(driver, tmp_path)
    yield stage
    stage.close()


def lines_of(records: list[Any]) -> list[str]:
    return [line for one in records if one.kind == "log" for line in one.body["text"].split("\n")]


def test_a_script_that_prints_waits_for_a_slow_service_and_no_line_is_lost(stage: Stage) -> None:
    driver = stage.driver
    assert isinstance(driver, RealDriver)
    stage.start(PRINTS, rank=0, log_limit_bytes=1 << 40)
    # 1. No service fetches a line: the driver has what it may have, and repeated requests find no free space.
    driver.until(lambda: driver.real._account.free_log_bytes(1) == 0)
    asked = driver.deliveries
    driver.until(lambda: driver.deliveries >= asked + 20)
    assert driver.held_bytes <= HOLD_BYTES + 2 * outbox._BATCH_BYTES
    assert driver.all("exit") == [], "it waits in its write"
    # 2. All of them are fetched, as fast as they come.
    lines: list[str] = []
    after = 0
    over = threading.Event()

    def watch() -> None:
        stage.end()
        with driver.changed:
            over.set()
            driver.changed.notify_all()

    threading.Thread(target=watch).start()
    while (records := driver.fetch(after)) or not over.is_set():
        if records:
            after = records[-1].seq
            lines += lines_of(records)
        else:
            deliveries = driver.deliveries
            driver.until(lambda seen=deliveries: driver.deliveries > seen or over.is_set())
    assert len(lines) == LINES
    assert all(int(line) == number for number, line in enumerate(lines))


def test_a_script_goes_on_when_the_service_is_away_and_what_is_left_out_is_said(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending, "MOST_LINE_BYTES", 2 << 20)
    driver = stage.driver
    assert isinstance(driver, RealDriver)
    driver.now = AWAY_S + 1.0
    stage.start(PRINTS, rank=0, log_limit_bytes=1 << 40)
    assert stage.end()["exit_code"] == 0
    records: list[Any] = []
    while new := driver.fetch(records[-1].seq if records else 0):
        records += new
    first, *lines = lines_of(records)
    assert first == f"{LINES - len(lines)} lines were left out here: they were not fetched in time"
    assert [int(line) for line in lines] == list(range(LINES - len(lines), LINES))
    steps = [one.body["step"] for one in records if one.kind == "metric"]
    assert driver.real._attempt.progress.step == LINES - 100_000
    assert steps == [], "it reported no values"
