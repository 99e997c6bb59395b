"""What a driver does for many ranks grows with their number, not with its square; counted, not timed."""

from __future__ import annotations

import math
import tracemalloc
from typing import Any

import pytest

from remora.spec.worker_sizes import WorkerSizes
from tests.steps import grows_linearly, steps_of
from tests.unit.trainers.stage import Stage
from tests.unit.trainers.virtual_time import play
from trainers.driver.driver import Driver
from trainers.driver.group import WorkerGroup
from trainers.driver.progress import Progress
from trainers.driver.regrouping import Regrouping, WorkerLocation, assign_ranks
from trainers.driver.stragglers import Stragglers


def group_of(world_size: int) -> WorkerGroup:
    return WorkerGroup(
        generation=1, world_size=world_size, started_at=0.0, progress=Progress(), checkpoint_interval_s=None
    )


def hear_all(group: WorkerGroup, **message: Any) -> None:
    for rank in range(group.world_size):
        for _ in group.receive(rank, message, 1.0):
            pass


def test_a_look_for_stragglers() -> None:
    def look(ranks: int) -> int:
        seen = Stragglers(ranks)

        def hear() -> None:
            for second in range(3):
                for rank in range(ranks):
                    for _ in seen.measure(rank, 1.0 + rank % 7, 1, second):
                        pass

        return steps_of(hear)

    assert grows_linearly(look, 50, times=10)


class Seconds(float):
    """Counts how often two of it are compared."""

    compared = 0

    def __lt__(self, other: float) -> bool:
        Seconds.compared += 1
        return float.__lt__(self, other)


def test_comparisons_of_a_look_for_stragglers() -> None:
    def look(ranks: int) -> int:
        Seconds.compared = 0
        seen = Stragglers(ranks)
        for rank in range(ranks):
            # In an order that no sort knows.
            for _ in seen.measure(rank, Seconds(1.0 + rank * 7919 % ranks / ranks), 1, 0.0):
                pass
        return Seconds.compared

    small, large = look(100), look(1000)
    assert small > 0
    # As many as a sort needs.
    assert large <= 1.2 * 10 * math.log(1000) / math.log(100) * small


@pytest.mark.parametrize(
    "message",
    [
        {"type": "exit", "exit_code": 0},
        {"type": "exit", "exit_code": 1},
        {"type": "report", "step": 1},
        {"type": "hello"},
    ],
    ids=lambda message: f"{message['type']}-{message.get('exit_code', '')}",
)
def test_a_message_of_every_rank(message: dict[str, Any]) -> None:
    def hear(ranks: int) -> int:
        group = group_of(ranks)
        return steps_of(lambda: hear_all(group, **message))

    assert grows_linearly(hear, 50, times=10)


def test_troubles_after_the_commands_have_ended_well() -> None:
    def hear(ranks: int) -> int:
        group = group_of(ranks)
        hear_all(group, type="exit", exit_code=0)
        return steps_of(lambda: hear_all(group, type="trouble", message="the port was taken"))

    assert grows_linearly(hear, 50, times=10)


def test_the_memory_that_one_message_of_a_worker_needs() -> None:
    """Sets of all workers that were built for each message."""

    def needed(ranks: int) -> int:
        most: list[int] = []

        async def scene() -> None:
            stage = Stage(ranks, max_workers=ranks)
            driver = Driver()
            driver.take(stage.attempt.plan)
            driver._group_members, driver._attempt, driver._in_place = (
                stage.group_members,
                stage.attempt,
                stage.in_place,
            )
            await driver.deliver(1, 1, [{"type": "report", "step": 11}])
            tracemalloc.start()
            await driver.deliver(1, 1, [{"type": "report", "step": 11}])
            most.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()

        play(scene())
        return most[0]

    assert needed(2000) < needed(200) + 4096


def test_a_change_of_the_whole_worker_group() -> None:
    def change(ranks: int) -> int:
        def carry_out() -> None:
            change = Regrouping(generation=1, cause="loss", began_at=0.0, staying=list(range(ranks)))
            for slot in range(ranks):
                change.park(slot, 7)
                assert len(change.missing) == ranks - slot - 1
            next_members = change.next_members(WorkerSizes(1, ranks))
            assign_ranks(
                [WorkerLocation(slot, f"node-{slot // 8}", "10.0.0.1", slot % 8) for slot in next_members]
            )

        return steps_of(carry_out)

    assert grows_linearly(change, 50, times=10)


def test_the_memory_that_one_parked_worker_needs() -> None:
    """Sets of all workers that were built whenever one of them parked."""

    def needed(ranks: int) -> int:
        change = Regrouping(generation=1, cause="loss", began_at=0.0, staying=list(range(ranks)))
        tracemalloc.start()
        change.park(5, 7)
        assert change.missing
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    assert needed(2000) < needed(200) + 4096
