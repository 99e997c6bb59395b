"""What a driver costs, without Ray: the share of a core that it needs by number of ranks, and its memory for lines.

`driver`: seconds of CPU of a driver in a second of a training that goes well, by the number of ranks.  Time is
simulated: rank 0 reports ten steps a second, every rank its pace as often as its supervisor passes it on and a line a
minute, the clock ticks, the service asks.

`driver_calls_per_s`: calls between all workers and their driver in a second of it.

`driver_log_mib`: MiB that a driver takes for 15 MB of short lines that are not fetched, at most.
"""

from __future__ import annotations

import asyncio
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from remora.script import channel
from tests.attempt_plans import plan_of
from trainers.driver.calls import Calls
from trainers.driver.driver import Driver
from trainers.driver.journal import rows_of
from trainers.launch import ROWS_AT_ONCE
from trainers.outputs.manifest import Changes
from trainers.ray_train import Member
from trainers.ray_train.polls import PollSchedule
from trainers.supervisor.outbox import ReportFilter
from trainers.worker_identity import WorkerIdentity

RANKS = (1024, 8192)
#: Workers of a node.
_ON_A_NODE = 8
#: Simulated seconds, ticks in each, and steps in each.
_SECONDS, _TICKS, _STEPS = 140, 5, 10
#: Alternation of the event loop in which instructions are carried out.
_PASSES = 5
#: Seconds between two lines of a rank.
_LINE_S = 60
_LOG_BYTES, _LINE, _TEXT_BYTES = 15_000_000, "1234567", 256 << 10

Sent = tuple[int, list[channel.Message]]


def run() -> dict[str, Any]:
    """All figures, in about a minute."""
    measured = {str(ranks): cost(ranks) for ranks in RANKS}
    return {
        "driver": {ranks: one.share for ranks, one in measured.items()},
        "driver_calls_per_s": {ranks: one.calls_per_s for ranks, one in measured.items()},
        "driver_log_mib": log_mib(),
    }


@dataclass(frozen=True)
class Cost:
    """What a driver costs in a simulated second."""

    #: Seconds of CPU.
    share: float
    #: Calls between all workers and it: what they deliver, what they are instructed, and how often they are asked.
    calls_per_s: dict[str, float]


def cost(ranks: int) -> Cost:
    """Drive a driver with this number of ranks."""
    return asyncio.run(_cost(ranks))


async def _cost(ranks: int) -> Cost:
    now, calls = [0.0], _Calls()
    driver = _driver(ranks, now, calls)
    await _begin(driver, ranks)
    schedule, after, delivered, polled = PollSchedule(), 0, 0, 0
    # What supervisors do is done by their machines.
    ticks = [list(sent) for sent in _said(ranks)]
    began = time.process_time()
    for sent in ticks:
        now[0] += 1.0 / _TICKS
        answers, calls.answers = calls.answers, []
        for slot, messages in (*sent, *answers):
            await driver.deliver(1, slot, messages)
        driver.tick()
        delivered += len(sent) + len(answers)
        polled += len(schedule.take(ranks, now[0]))
        while records := await driver.poll(after, ROWS_AT_ONCE):
            after = records[-1].seq
        # Tasks that were begun meanwhile.
        for _ in range(_PASSES):
            await asyncio.sleep(0)
    share = (time.process_time() - began) / _SECONDS
    counts = {"delivered": delivered, "instructed": calls.instructed, "asked": polled}
    return Cost(round(share, 5), {name: round(count / _SECONDS, 1) for name, count in counts.items()})


class _Calls:
    """Workers that take every instruction, and answer when they are asked to look into their outputs folders."""

    def __init__(self) -> None:
        self.answers: list[Sent] = []
        self.instructed = 0

    async def instruct(self, member: Member, message: channel.Message) -> bool:
        self.instructed += 1
        if message["type"] == "look":
            self.answers.append((member.slot, [{"type": "outputs", "changes": _changes(member, message)}]))
        return True

    async def free_port(self, member: Member) -> int | None:
        del member
        return 20_000

    async def find_dead(self, members: list[Member]) -> set[int]:
        del members
        return set()


def _changes(member: Member, message: channel.Message) -> Changes:
    """Nothing has changed."""
    return Changes(rank=member.rank, group=(1, 1), written=(), removed=(), round=message["round"])


def _driver(ranks: int, now: list[float], calls: Calls | None = None) -> Driver:
    driver = Driver(calls or _Calls(), lambda: now[0], lambda: now[0])
    driver.take(
        plan_of(
            job_id="job_1",
            attempt_id="att_1",
            attempt=1,
            command=["python", "train.py"],
            bundle=None,
            storage_url="memory://",
            checkpoint_url="memory://",
            backend="ddp",
            min_workers=1,
            max_workers=ranks,
            resources={"CPU": 1.0},
            checkpoint_interval_s=None,
        )
    )
    return driver


async def _begin(driver: Driver, ranks: int) -> None:
    driver._attempt.open_group([_member(rank) for rank in range(ranks)], None)
    for rank in range(ranks):
        first: list[channel.Message] = [{"type": "hello"}, {"type": "elastic"}, {"type": "report", "step": 0}]
        await driver.deliver(1, rank, first)


def _member(rank: int) -> Member:
    return Member(
        slot=rank,
        rank=rank,
        local_rank=rank % _ON_A_NODE,
        local_world_size=_ON_A_NODE,
        node_rank=rank // _ON_A_NODE,
        ray_node_id=f"node-{rank // _ON_A_NODE}",
        address=f"10.0.{rank // _ON_A_NODE // 256}.{rank // _ON_A_NODE % 256}",
        call=lambda *_: None,
    )


@dataclass
class _Rank:
    """One worker's supervisor."""

    identity: WorkerIdentity
    report_filter: ReportFilter

    def passes_on(self, message: channel.Message, now: float) -> bool:
        return self.report_filter.is_needed(message, self.identity, now)


def _ranks(ranks: int) -> list[_Rank]:
    return [
        _Rank(
            WorkerIdentity(
                job_id="job_1",
                attempt_id="att_1",
                attempt=1,
                generation=1,
                rank=rank,
                world_size=ranks,
                local_rank=rank % _ON_A_NODE,
                local_world_size=_ON_A_NODE,
                node_rank=rank // _ON_A_NODE,
                num_nodes=ranks // _ON_A_NODE,
                master_addr="10.0.0.0",
                master_port=20_000,
            ),
            ReportFilter(),
        )
        for rank in range(ranks)
    ]


def _said(ranks: int) -> Iterator[Iterator[Sent]]:
    """What arrives before each tick: of each rank, at its own moment of each second, what its supervisor passes on."""
    everybody = _ranks(ranks)
    for rank in everybody:
        rank.passes_on({"type": "report"}, 0.0)
    for tick in range(_SECONDS * _TICKS):
        yield _of_one_tick(everybody, tick)


def _of_one_tick(everybody: list[_Rank], tick: int) -> Iterator[Sent]:
    now = tick / _TICKS
    for number, rank in enumerate(everybody):
        report: channel.Message = {
            "type": "report",
            "total_steps": 10**9,
            "metrics": {"loss": 0.5, "lr": 0.1},
        }
        messages = []
        if rank.passes_on(report, now):
            first = 1 + tick * _STEPS // _TICKS
            messages += [{**report, "step": step} for step in range(first, first + _STEPS // _TICKS)]
        pace = {"type": "pace", "generation": 1, "own_s": 0.05 + number % 7 * 1e-3, "shards": 1}
        if number % _TICKS == tick % _TICKS and rank.passes_on(pace, now):
            messages.append(pace)
        if number % (_LINE_S * _TICKS) == tick % (_LINE_S * _TICKS):
            messages.append({"type": "log", "stream": "stdout", "text": f"rank {number} is well at {now}"})
        if messages:
            yield number, messages


def log_mib() -> float:
    """MiB at most while lines come and until all of them are fetched."""
    return asyncio.run(_log_mib())


async def _log_mib() -> float:
    now = [0.0]
    driver = _driver(1, now)
    await _begin(driver, 1)
    # The service has not polled for an hour: the driver takes all of them.
    now[0] += 3600.0
    lines = _TEXT_BYTES // (len(_LINE) + 1)
    printed = lines * (_LOG_BYTES // _TEXT_BYTES)
    fetched = after = 0
    tracemalloc.start()
    try:
        for _ in range(_LOG_BYTES // _TEXT_BYTES):
            text = "\n".join([_LINE] * lines)
            await driver.deliver(1, 0, [{"type": "log", "stream": "stdout", "text": text}])
        while records := await driver.poll(after, ROWS_AT_ONCE):
            after = records[-1].seq
            fetched += sum(rows_of(record) for record in records if record.kind == "log")
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    if fetched != printed:
        raise RuntimeError(f"{fetched} of {printed} lines came out")
    return round(most / 2**20, 1)
