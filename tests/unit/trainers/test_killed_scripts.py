"""A script that gets SIGKILL alone: the others go on in place, unless it happens again and again."""

from __future__ import annotations

import pytest

from remora.states import EndReason
from tests.unit.trainers.stage import Stage
from tests.unit.trainers.virtual_time import scene
from trainers.driver.kills import LOSS_NOTICED_S, MOST_KILLS, REMEMBERED_S, Kills, Restarts
from trainers.ray_train import Member


def test_a_limited_number_of_kills_is_tolerated() -> None:
    kills = Kills()
    assert [kills.tolerate(slot, 0, 10 * slot, 60.0 * slot) for slot in range(MOST_KILLS + 2)] == [
        *[True] * MOST_KILLS, False, False,
    ]  # fmt: skip


@pytest.mark.parametrize(("later_s", "step", "is_tolerated"), [
    (REMEMBERED_S, 11, True),
    (REMEMBERED_S - 1, 11, False),
    # No step was done since: what kills it will kill it again.
    (100 * REMEMBERED_S, 10, False),
])  # fmt: skip
def test_kills_of_long_ago_are_forgotten_once_training_got_on(
    later_s: float, step: int, is_tolerated: bool
) -> None:
    kills = Kills()
    for slot in range(MOST_KILLS):
        kills.tolerate(slot, slot, 10, 0.0)
    assert kills.tolerate(7, 0, step, later_s) is is_tolerated


def test_a_script_that_died_with_its_node_was_not_killed_alone() -> None:
    kills = Kills()
    for slot in range(MOST_KILLS):
        kills.tolerate(slot, 5 + slot, 10, 0.0)
    assert kills.discount({1, 7}) == [6], "whose loss is to be reported"
    assert kills.tolerate(8, 0, 10, 0.0)
    assert not kills.tolerate(9, 0, 10, 0.0)


def test_a_restart_needs_a_new_checkpoint_and_there_are_three_in_an_hour() -> None:
    restarts = Restarts()
    assert not restarts.allow(None, 0.0), "nothing is saved"
    assert restarts.allow(10, 0.0)
    assert not restarts.allow(10, 100.0), "it died again before anything new was saved"
    assert restarts.allow(20, 200.0)
    assert restarts.allow(30, 300.0)
    assert not restarts.allow(40, 400.0), "too often"
    assert restarts.allow(40, REMEMBERED_S), "the first one is long ago"
    assert not restarts.allow(40, 9 * REMEMBERED_S)


@pytest.mark.parametrize(("lost", "after_s", "is_discounted"), [
    ({1, 2}, 1.0, True),
    ({0}, 1.0, False),
    # The worker of that slot has begun again since.
    ({1}, LOSS_NOTICED_S, False),
])  # fmt: skip
def test_a_kill_that_was_one_of_a_lost_node_does_not_count(
    lost: set[int], after_s: float, is_discounted: bool
) -> None:
    restarts = Restarts()
    assert restarts.allow(10, 0.0, killed=1)
    restarts.discount(lost, after_s)
    restarts.discount(lost, after_s)
    assert restarts.allow(10, 100.0, killed=2) is is_discounted


def plain(workers: int, saved: int | None) -> Stage:
    """Scripts that own their training, with the step of their newest checkpoint."""
    stage = Stage(workers)
    stage.group_members.elastic.clear()
    stage.attempt.commits.newest_step = saved
    return stage


@scene
async def test_scripts_that_own_their_training_all_begin_again_when_one_is_killed() -> None:
    stage = plain(3, saved=10)
    stage.say(1, "killed")
    await stage.after(1.0)
    assert stage.events("worker.killed") == [{"rank": 1}]
    assert sorted(stage.messages("stop")) == [0, 1, 2], "the others wait for nothing"
    assert await stage.attempt.judge(set(), set()), "another worker group follows"
    assert stage.attempt.progress.losses == 1


async def commands_end(stage: Stage, ranks: set[int]) -> None:
    """They do, because they were stopped."""
    for rank in ranks:
        stage.attempt.receive(rank, {"type": "exit", "stopped": True, "exit_code": None, "signal": 9})
    await stage.attempt.notify_rank_ended()


@scene
async def test_the_same_workers_get_the_commands_of_the_next_group() -> None:
    stage, begun = plain(2, saved=10), []

    async def begin_again(members: list[Member]) -> None:
        begun.append([member.slot for member in members])
        stage.attempt.open_group(members, None)

    stage.attempt.begin_again = begin_again
    stage.say(1, "killed")
    await stage.after(1.0)
    assert [message["again"] for _, message in stage.sent if message["type"] == "stop"] == [True, True]
    assert begun == [], "the commands have not ended yet"
    await commands_end(stage, {0, 1})
    await stage.after(1.0)
    assert begun == [[0, 1]]
    assert stage.attempt.steady_group is not None
    assert stage.attempt.generation == 2


@pytest.mark.parametrize("silent", [True, False])
@scene
async def test_where_the_same_workers_cannot_begin_again_others_do(silent: bool) -> None:
    stage = plain(2, saved=10)

    async def begin_again(members: list[Member]) -> None:
        raise TimeoutError("a node is sick")

    stage.attempt.begin_again = begin_again
    stage.say(1, "killed")
    await commands_end(stage, {0} if silent else {0, 1})
    await stage.after(20.0)
    assert [message.get("again", False) for _, message in stage.sent] == [True, True, False, False]
    assert await stage.attempt.judge({1}, set()), "another worker group follows"
    assert stage.attempt.group is None


@scene
async def test_a_killed_one_that_has_not_waited_for_a_late_driver_is_replaced() -> None:
    stage, begun = plain(2, saved=10), []

    async def begin_again(members: list[Member]) -> None:
        begun.append(members)

    stage.attempt.begin_again = begin_again
    stage.ended.add(1)
    stage.say(1, "killed")
    stage.attempt.receive(1, {"type": "exit", "stopped": False, "exit_code": None, "signal": 9})
    await commands_end(stage, {0})
    await stage.after(1.0)
    assert begun == [], "one of the workers would have no supervisor"
    assert [(slot, message.get("again", False)) for slot, message in stage.sent] == [
        (0, True), (0, False), (1, False),
    ]  # fmt: skip
    assert await stage.attempt.judge(set(), set()), "another worker group follows, and no retry is used up"


@scene
async def test_a_group_of_the_same_workers_that_one_of_them_does_not_take_part_in_is_replaced() -> None:
    stage = plain(2, saved=10)

    async def begin_again(members: list[Member]) -> None:
        stage.attempt.open_group(members, None)
        raise TimeoutError("the worker has ended, and takes no other assignment")

    stage.attempt.begin_again = begin_again
    stage.say(1, "killed")
    await commands_end(stage, {0, 1})
    await stage.after(1.0)
    assert await stage.attempt.judge(set(), set()), "another worker group follows, and no retry is used up"
    assert stage.attempt.verdict is None


@pytest.mark.parametrize("end", [
    {"exit_code": 1, "signal": None},
    # It needs no other command, and its supervisor has returned.
    {"exit_code": 0, "signal": None, "stopped": True},
])  # fmt: skip
@scene
async def test_a_worker_whose_command_ended_before_the_stop_came_does_not_begin_again(
    end: dict[str, object],
) -> None:
    stage, begun = plain(2, saved=10), []

    async def begin_again(members: list[Member]) -> None:
        begun.append(members)

    stage.attempt.begin_again = begin_again
    stage.say(1, "killed")
    stage.attempt.receive(0, {"type": "exit", "stopped": False, **end})
    await commands_end(stage, {1})
    await stage.after(1.0)
    assert begun == [], "its supervisor has ended"
    assert [message.get("again", False) for _, message in stage.sent] == [True, True, False, False]
    assert await stage.attempt.judge(set(), set()), "another worker group follows"


@scene
async def test_the_workers_of_commands_that_were_killed_together_begin_again() -> None:
    stage, begun = plain(2, saved=10), []

    async def begin_again(members: list[Member]) -> None:
        begun.append([member.slot for member in members])

    stage.attempt.begin_again = begin_again
    for slot in (0, 1):
        stage.say(slot, "killed")
    for rank in (0, 1):
        stage.attempt.receive(rank, {"type": "exit", "stopped": False, "exit_code": None, "signal": 9})
    await stage.attempt.notify_rank_ended()
    await stage.after(1.0)
    assert begun == [[0, 1]]


@scene
async def test_an_attempt_that_is_stopped_meanwhile_does_not_begin_again() -> None:
    stage, begun = plain(2, saved=10), []

    async def begin_again(members: list[Member]) -> None:
        begun.append(members)

    stage.attempt.begin_again = begin_again
    stage.say(1, "killed")
    stage.attempt.stop(EndReason.CANCELLED)
    await commands_end(stage, {0, 1})
    await stage.after(1.0)
    assert begun == []
    assert not await stage.attempt.judge(set(), set())


@pytest.mark.parametrize("is_early", [True, False])
@scene
async def test_a_kill_that_is_not_the_first_failure_or_has_no_checkpoint_is_judged(is_early: bool) -> None:
    stage = plain(2, saved=None if is_early else 10)
    if not is_early:
        stage.attempt.receive(0, {"type": "exit", "exit_code": 1, "signal": None})
    stage.say(1, "killed")
    await stage.after(1.0)
    assert (stage.events("worker.killed"), stage.messages("stop")) == ([], [])


@scene
async def test_scripts_that_died_with_their_node_cost_no_restart() -> None:
    stage = plain(2, saved=10)
    stage.say(1, "killed")
    assert stage.in_place.absorb({1}, {1}, {1}) == set()
    assert stage.attempt.restarts.allow(10, stage.now())


@scene
async def test_the_others_go_on_when_a_script_is_killed() -> None:
    stage = Stage(3)
    stage.hanging.add(1)
    stage.say(1, "killed")
    assert await stage.settled() < 1.0, "no wait for a timeout is needed"
    assert (stage.order, stage.regrouped) == ([0, 2], [("loss", 2)])
    assert stage.events("worker.killed") == [{"rank": 1}]
    assert stage.events("node.lost") == [], "its node lives"
    assert stage.in_place.absorb({1}, set(), set()) == {1}, "the end of its supervisor is no failure"
    stage.attempt.receive(0, {"type": "report", "step": 11})
    assert stage.in_place.may_grow(), "another one may take its place"


@scene
async def test_scripts_that_are_killed_together_are_one_loss() -> None:
    stage = Stage(4)
    stage.hanging |= {0, 2}
    stage.say(0, "killed")
    stage.say(2, "killed")
    await stage.settled()
    assert (stage.order, stage.regrouped) == ([1, 3], [("loss", 2)])
    assert stage.attempt.progress.losses == 1


@scene
async def test_the_last_one_that_is_killed_fails() -> None:
    stage = Stage(2)
    stage.say(0, "killed")
    stage.say(1, "killed")
    assert stage.in_place.absorb({0}, set(), set()) == {0}
    assert stage.in_place.absorb({1}, set(), set()) == set(), "no worker is left to go on"
    assert stage.events("worker.killed") == [{"rank": 0}]


@scene
async def test_a_script_that_is_killed_again_and_again_fails() -> None:
    stage = Stage(2)
    for _ in range(MOST_KILLS):
        victim = stage.order[-1]
        stage.say(victim, "killed")
        await stage.settled()
        stage.in_place.absorb({victim}, set(), set())
        stage.attempt.receive(0, {"type": "report", "step": stage.steps[0] + 1})
        stage.join()
        await stage.after(5.0)
        assert len(stage.order) == 2
    victim = stage.order[-1]
    stage.say(victim, "killed")
    assert not stage.in_place.is_changing
    assert stage.in_place.absorb({victim}, set(), set()) == set()


@scene
async def test_a_script_that_dies_with_its_node_is_a_lost_node_however_it_is_reported() -> None:
    stage = Stage(MOST_KILLS + 3, max_workers=MOST_KILLS + 3)
    for victim in range(MOST_KILLS + 1):
        stage.say(victim, "killed")
        await stage.settled()
        assert stage.kill(victim) == {victim}
    assert len(stage.events("worker.killed")) == MOST_KILLS + 1
    assert stage.events("node.lost") == [{"ranks": [0]}] * (MOST_KILLS + 1)
    assert len(stage.order) == 2


@scene
async def test_no_worker_goes_on_without_others_that_have_ended() -> None:
    stage = Stage(2)
    stage.attempt.receive(0, {"type": "exit", "exit_code": 0})
    stage.say(1, "killed")
    assert stage.in_place.absorb({1}, set(), set()) == set()


@scene
async def test_scripts_that_cannot_change_their_group_end_with_the_one_that_is_killed() -> None:
    stage = Stage(2)
    stage.group_members.elastic.clear()
    stage.say(1, "killed")
    assert not stage.in_place.is_changing
