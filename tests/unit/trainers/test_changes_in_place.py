"""Changes in place, played without processes in virtual time: living workers go on, and none waits for ever."""

from __future__ import annotations

import random
from typing import Any

import pytest

from remora.states import EndReason
from tests.unit.trainers.stage import BEGIN, Stage
from tests.unit.trainers.virtual_time import scene
from trainers.driver.change import JOIN_S
from trainers.driver.in_place import JOIN_PAUSE_S, LOAD_S
from trainers.driver.regrouping import PARK_S

# --- losses


@scene
async def test_the_others_go_on_when_a_worker_is_lost() -> None:
    stage = Stage(3)
    assert stage.kill(1) == {1}
    assert await stage.settled() < 1.0
    assert stage.order == [0, 2]
    assert stage.attempt.generation == 2
    assert stage.regrouped == [("loss", 2)]
    assert stage.events("node.lost") == [{"ranks": [1]}]
    reported = {slot: message for slot, message in stage.sent if message["type"] == "regroup"}
    assert reported[2] == {
        "type": "regroup", "generation": 2, "rank": 1, "world_size": 2, "local_rank": 0, "local_world_size": 1,
        "node_rank": 1, "num_nodes": 2, "master_addr": "10.0.0.0", "master_port": 20_000,
    }  # fmt: skip
    assert stage.attempt.progress.lost_since is not None, "time counts as lost until the next step"
    assert stage.messages("stop") == []


@scene
async def test_the_nodes_of_workers_that_go_on_and_of_those_that_join_are_reported() -> None:
    stage = Stage(3)
    stage.kill(1)
    await stage.settled()
    joiner = stage.join()
    assert joiner == 3
    await stage.after(2.0)
    stage.in_place.drain({"node-0"}, stage.now() + 60.0)
    await stage.after(2.0)
    assert stage.regrouped == [("loss", 2), ("grow", 3), ("drain", 2)]
    assert [sorted(nodes) for nodes in stage.workers] == [
        ["10.0.0.0", "10.0.0.1", "10.0.0.2"], ["10.0.0.0", "10.0.0.2"], ["10.0.0.0", "10.0.0.2", "10.0.0.3"],
        ["10.0.0.2", "10.0.0.3"],
    ]  # fmt: skip


@scene
async def test_the_first_script_to_notice_a_loss_is_believed_and_the_cause_is_looked_for() -> None:
    stage = Stage(3)
    stage.dead.add(1)
    stage.park(2)
    await stage.settled()
    assert (stage.order, stage.regrouped) == ([0, 2], [("loss", 2)])
    assert stage.in_place.absorb({1}, {1}, set()) == {1}, "the controller is late, and drops it now"
    assert not stage.in_place.is_changing


@scene
async def test_the_next_one_becomes_rank_0_when_it_is_lost() -> None:
    stage = Stage(3)
    stage.kill(0)
    await stage.settled()
    assert stage.order == [1, 2]
    addresses = {message["master_addr"] for _, message in stage.sent if message["type"] == "regroup"}
    assert addresses == {"10.0.0.1"}


@scene
async def test_a_second_loss_while_the_group_is_formed() -> None:
    stage = Stage(4)

    def lose_another(slot: int, message: dict[str, Any]) -> None:
        if message["type"] == "regroup" and message["generation"] == 2 and 3 not in stage.dead:
            assert stage.kill(3) == {3}

    stage.watch = lose_another
    stage.kill(1)
    assert await stage.settled() < PARK_S, "no wait for a timeout is needed"
    assert (stage.order, stage.attempt.generation) == ([0, 2], 3)
    assert stage.regrouped == [("loss", 2)]


@scene
async def test_a_loss_just_after_everybody_has_joined_is_not_forgotten() -> None:
    stage = Stage(3)
    stage.joined = lambda: stage.kill(2) and None
    stage.kill(1)
    await stage.settled()
    assert (stage.order, stage.regrouped) == ([0], [("loss", 2), ("loss", 1)])


@scene
async def test_a_worker_that_parks_again_just_after_it_joined_is_not_forgotten() -> None:
    stage = Stage(2)
    stage.joined = lambda: stage.park(0) if stage.attempt.generation == 2 else None
    stage.park(0)
    await stage.settled()
    assert stage.attempt.generation == 3


@scene
async def test_a_group_whose_workers_hold_other_weights_does_not_go_on_without_one() -> None:
    stage = Stage(3)
    text = "After step 100 rank 2 does not hold the weights of rank 0, first in 0.weight."
    stage.attempt.receive(1, {"type": "diverged", "generation": 1, "text": text})
    stage.attempt.receive(2, {"type": "diverged", "generation": 1, "text": "another word"})
    stage.attempt.receive(1, {"type": "exit", "exit_code": 1, "signal": None})
    stage.park(0, "a peer was lost")
    assert not stage.in_place.is_changing
    assert stage.in_place.absorb({1}, {1}, set()) == set()
    assert not await stage.attempt.judge({1}, set())
    verdict = stage.attempt.verdict
    assert verdict is not None
    assert (verdict.end_reason, verdict.message) == (EndReason.DIVERGED, text)


@scene
async def test_patience_begins_again_with_every_try() -> None:
    stage = Stage(4)
    stage.hanging.add(3)
    stage.slow = {0: 3.0, 2: 3.0}
    stage.kill(1)
    await stage.settled()
    assert stage.order == [0, 2], "who parks slowly is still there after one that did not park at all"


@scene
async def test_ranks_are_assigned_again_without_workers_that_hang() -> None:
    stage = Stage(4)

    def hang(slot: int, message: dict[str, Any]) -> None:
        if message["type"] == "regroup":
            stage.hanging.add(3)

    stage.watch = hang
    stage.kill(1)
    took = await stage.settled()
    assert (stage.order, stage.regrouped) == ([0, 2], [("loss", 2)])
    assert took == pytest.approx(JOIN_S + PARK_S, abs=5.0)


@scene
async def test_a_group_that_needs_long_to_form_gets_longer_with_every_try() -> None:
    stage = Stage(2)
    stage.slow = dict.fromkeys((0, 1), 0.0)

    def send_much_state(slot: int, message: dict[str, Any]) -> None:
        stage.slow[slot] = 100.0 if message["type"] == "regroup" else 0.0

    stage.watch = send_much_state
    stage.park(0)
    took = await stage.settled()
    assert stage.order == [0, 1]
    assert took < 7 * JOIN_S + 10


@scene
async def test_a_group_that_breaks_at_one_step_again_and_again_ends_with_what_its_scripts_say() -> None:
    stage = Stage(2)
    stage.joined = lambda: stage.park(1, "a peer was lost: Invalid scalar type")
    stage.park(1)
    await stage.settled()
    verdict = stage.attempt.verdict
    assert verdict is not None
    assert verdict.end_reason is EndReason.HANG
    assert verdict.message == (
        "The worker group broke 4 times after step 10 although none of its workers was lost;"
        " rank 1 said: a peer was lost: Invalid scalar type."
    )
    assert stage.attempt.generation == 1 + 4
    assert stage.messages("stop") == [0, 1]
    assert len(stage.events("worker_group.hung")) == 1


@scene
async def test_a_group_that_gets_on_may_break_as_often_as_it_likes() -> None:
    stage = Stage(2)

    def get_on_and_break() -> None:
        if stage.attempt.generation < 20:
            stage.steps[0] += 1
            stage.steps[1] += 1
            stage.park(1)

    stage.joined = get_on_and_break
    stage.park(1)
    await stage.settled()
    assert (stage.attempt.verdict, stage.attempt.generation) == (None, 20)


@scene
async def test_breaks_of_which_each_costs_a_worker_end_nothing() -> None:
    stage = Stage(8, max_workers=8)
    stage.joined = lambda: stage.kill(max(stage.order)) and None if len(stage.order) > 1 else None
    stage.kill(7)
    await stage.settled()
    assert (stage.order, stage.attempt.verdict) == ([0], None)


# --- frozen and hanging workers


@scene
async def test_a_frozen_worker_is_left_behind() -> None:
    stage = Stage(3)
    stage.frozen.add(1)
    stage.park(0)
    assert await stage.settled() < PARK_S
    assert stage.order == [0, 2]


@pytest.mark.parametrize("frozen", [0, 2])
@scene
async def test_a_worker_that_freezes_after_it_has_parked_is_left_behind(frozen: int) -> None:
    stage = Stage(3)
    stage.dead.add(1)

    def freeze(slot: int, message: dict[str, Any]) -> None:
        if message["type"] == "release":
            stage.frozen.add(frozen)

    stage.watch = freeze
    stage.park(0)
    assert await stage.settled() < 3 * PARK_S
    assert stage.order == [2 - frozen]


@pytest.mark.parametrize("frozen", [0, 2])
@scene
async def test_a_worker_that_freezes_while_it_waits_for_the_others_is_left_behind(frozen: int) -> None:
    stage = Stage(3)

    def freeze(slot: int, message: dict[str, Any]) -> None:
        if message["type"] == "part" and slot == frozen:
            stage.loop.call_later(0.5, stage.frozen.add, frozen)

    stage.watch = freeze
    stage.slow[2 - frozen] = 1.0
    stage.kill(1)
    assert await stage.settled() < PARK_S
    assert stage.order == [2 - frozen]


@scene
async def test_a_script_that_does_not_park_is_ended() -> None:
    stage = Stage(3)
    stage.hanging.add(2)
    stage.kill(1)
    took = await stage.settled()
    assert stage.order == [0]
    assert stage.messages("stop")[0] == 2
    assert took == pytest.approx(PARK_S, abs=2.5)


@scene
async def test_a_script_in_the_middle_of_a_long_step_is_waited_for() -> None:
    stage = Stage(3)
    for step in (11, 12):
        await stage.after(40.0)
        stage.attempt.receive(0, {"type": "report", "step": step})
    stage.slow[2] = 39.0
    stage.kill(1)
    assert await stage.settled() > 38.0
    assert (stage.order, stage.messages("stop")) == ([0, 2], [])


@scene
async def test_a_worker_that_thaws_after_it_was_left_behind_disturbs_no_other() -> None:
    stage = Stage(3)
    stage.frozen.add(1)
    stage.park(0)
    await stage.settled()
    stage.frozen.clear()
    stage.say(1, "parted", generation=1, step=10, why="its peers are gone")
    assert not stage.in_place.is_changing
    stage.say(0, "parted", generation=1, step=10, why="a word about the group before")
    assert not stage.in_place.is_changing
    assert stage.in_place.absorb({1}, set(), set()) == {1}, "it ends, and is dropped"


# --- too few


@scene
async def test_too_few_wait_with_their_state_until_others_join() -> None:
    stage = Stage(3, min_workers=2)
    stage.kill(0, 1)
    await stage.after(60.0)
    assert stage.in_place.is_changing
    assert stage.in_place.may_grow(), "this is what they wait for"
    assert stage.account.records(0, 1000)[-1].body == {"state": "starting", "world_size": 0, "workers": {}}
    joiner = stage.join(is_ready=False)
    assert not stage.in_place.may_grow(), "one is on its way"
    await stage.after(30.0)
    stage.say(joiner, "elastic")
    stage.say(joiner, "parted", generation=2, step=-1, why="joining")
    await stage.settled()
    assert stage.order == [2, joiner]
    assert stage.steps[joiner] == 10
    assert stage.regrouped == [("loss", 2)]


@scene
async def test_too_few_do_not_wait_for_ever() -> None:
    stage = Stage(3, min_workers=2)
    stage.kill(0, 1)
    took = await stage.settled()
    assert took == pytest.approx(stage.attempt.plan.regroup_s, abs=5.0)
    await stage.after(1.0)
    assert stage.messages("stop") == [2]
    assert stage.attempt.verdict is not None
    assert stage.attempt.verdict.end_reason is EndReason.NODE_LOST
    assert stage.attempt.verdict.message == "No 2 workers could be had for 600 s."
    assert stage.attempt.is_over()


@scene
async def test_the_last_one_with_the_state_dies_while_it_waits() -> None:
    stage = Stage(2, min_workers=2)
    stage.kill(0)
    await stage.after(20.0)
    stage.dead.add(1)
    await stage.settled()
    assert stage.attempt.group is not None
    assert stage.attempt.group.is_stopping, "the next worker group starts from the storage"


@scene
async def test_no_worker_is_left() -> None:
    stage = Stage(2)
    assert stage.kill(0, 1) == set(), "this is for a new worker group"
    assert not stage.in_place.is_changing


@scene
async def test_without_any_state_the_group_starts_again() -> None:
    stage = Stage(2)
    stage.steps = {0: -1, 1: -1}
    stage.park(0)
    await stage.settled()
    await stage.after(1.0)
    assert stage.attempt.group is not None
    assert stage.attempt.group.is_stopping
    assert set(stage.messages("stop")) == {0, 1}


# --- joiners


@scene
async def test_a_worker_joins_at_an_agreed_step() -> None:
    stage = Stage(2)
    assert stage.in_place.may_grow()
    joiner = stage.join()
    await stage.after(2.0)
    assert stage.order == [0, 1, joiner]
    assert stage.regrouped == [("grow", 3)]
    assert stage.steps == {0: 11, 1: 11, joiner: 11}
    assert stage.attempt.progress.lost_since is None, "nothing was lost"


@scene
async def test_a_joiner_that_was_not_ready_for_one_change_gets_one_of_its_own() -> None:
    stage = Stage(3)
    joiner = stage.join(is_ready=False)

    def become_ready(slot: int, message: dict[str, Any]) -> None:
        if message["type"] == "regroup" and message["generation"] == 2:
            stage.say(joiner, "parted", generation=1, step=-1, why="joining")

    stage.watch = become_ready
    stage.say(joiner, "elastic")
    stage.kill(1)
    await stage.settled()
    assert stage.order == [0, 2]
    await stage.after(2.0)
    assert stage.order == [0, 2, joiner]
    assert stage.regrouped == [("loss", 2), ("grow", 3)]


@scene
async def test_a_joiner_that_is_ready_helps_out_after_a_loss() -> None:
    stage = Stage(2)
    joiner = stage.join()
    stage.kill(1)
    await stage.settled()
    assert stage.order == [0, joiner]


@pytest.mark.parametrize("by", ["node", "script"])
@scene
async def test_a_joiner_that_vanishes_before_it_has_a_rank_stops_no_worker(by: str) -> None:
    stage = Stage(3)
    joiner = stage.join()

    def vanish() -> None:
        assert stage.in_place.is_changing
        if by == "script":
            stage.hanging.add(joiner)
            stage.in_place.note_exit(joiner)
        else:
            stage.dead.add(joiner)

    stage.slow[2] = 2.5
    stage.kill(1)
    stage.loop.call_later(0.5, vanish)
    assert await stage.settled() < PARK_S
    assert stage.order == [0, 2]
    assert stage.attempt.generation == 2, "it was not assigned a rank"
    gone = {joiner} & stage.dead
    assert stage.in_place.absorb({joiner}, gone, set()) == {joiner}, "the controller is late"
    assert stage.in_place.may_grow() is False, "first the loss is to be won back"
    stage.attempt.receive(0, {"type": "report", "step": 11})
    assert stage.in_place.may_grow() is (by == "node"), "a script that fails is not tried again at once"
    await stage.after(JOIN_PAUSE_S)
    assert stage.in_place.may_grow()


@scene
async def test_a_joiner_whose_supervisor_fails_is_not_replaced_at_once() -> None:
    stage = Stage(2)
    joiner = stage.join(is_ready=False)
    assert stage.in_place.absorb({joiner}, set(), set()) == {joiner}
    assert not stage.in_place.may_grow()
    await stage.after(JOIN_PAUSE_S)
    assert stage.in_place.may_grow()


@scene
async def test_a_joiner_that_is_never_ready_is_ended() -> None:
    stage = Stage(2)
    joiner = stage.join(is_ready=False)
    await stage.after(LOAD_S - 10)
    assert not stage.in_place.may_grow()
    await stage.after(20.0)
    assert stage.messages("stop") == [joiner]
    await stage.after(JOIN_PAUSE_S)
    assert stage.in_place.may_grow(), "another one may be tried"
    assert stage.in_place.absorb({joiner}, set(), set()) == {joiner}


@scene
async def test_joiners_that_could_not_be_started_are_not_waited_for() -> None:
    stage = Stage(2)
    members = stage.new_members(1)
    stage.in_place.expect(members)
    stage.in_place.expect_no_more(members)
    assert stage.in_place.may_grow()
    assert set(stage.group_members.by_slot) == {0, 1}


@scene
async def test_no_worker_joins_a_group_that_has_ended() -> None:
    stage = Stage(2)
    stage.attempt.receive(1, {"type": "exit", "exit_code": 0})
    assert not stage.in_place.may_grow()
    with pytest.raises(TimeoutError, match="ended before others could join"):
        stage.join()


# --- drains


@scene
async def test_a_node_that_drains_is_left_in_place() -> None:
    stage = Stage(3)
    stage.in_place.drain({"node-1", "node-of-others"}, BEGIN + 30.0)
    stage.in_place.drain({"node-1"}, BEGIN + 30.0)
    await stage.after(2.0)
    assert stage.order == [0, 2]
    assert stage.regrouped == [("drain", 2)]
    assert (stage.messages("stop"), stage.group_members.departed) == ([1], {1})
    assert stage.events("worker_group.drain") == [{"deadline_at": BEGIN + 30.0}]
    assert stage.events("node.lost") == []
    assert stage.attempt.progress.lost_since is None, "nothing was lost"
    assert stage.in_place.absorb({1}, set(), set()) == {1}, "its end is no failure"
    stage.in_place.drain({"node-1"}, BEGIN + 30.0)
    assert len(stage.events("worker_group.drain")) == 1


@scene
async def test_a_drain_that_leaves_too_few_asks_for_a_checkpoint() -> None:
    stage = Stage(2, min_workers=2)
    stage.in_place.drain({"node-1"}, BEGIN + 30.0)
    await stage.after(0.1)
    decisions = [message for _, message in stage.sent if message["type"] == "decide"]
    assert {(message["action"], message["stop"]) for message in decisions} == {("checkpoint", True)}
    assert not stage.in_place.is_changing


@scene
async def test_the_only_one_left_keeps_the_state_although_its_node_drains() -> None:
    stage = Stage(2)
    stage.hanging = {0, 1}
    stage.in_place.drain({"node-1"}, BEGIN + 60.0)
    await stage.after(1.0)
    stage.hanging.clear()
    stage.kill(0)
    await stage.settled()
    assert stage.order == [1], "it goes on until its node is gone"
    assert stage.regrouped == [("loss", 1)]


@scene
async def test_a_drain_during_a_change_counts_in_it() -> None:
    stage = Stage(4)
    stage.slow = {0: 1.0, 3: 1.0}
    stage.kill(1)
    stage.in_place.drain({"node-2"}, BEGIN + 60.0)
    await stage.settled()
    assert stage.order == [0, 3]
    await stage.after(1.0)
    assert stage.messages("stop") == [2]


@scene
async def test_a_node_that_dies_before_it_was_drained_is_a_loss() -> None:
    stage = Stage(3)
    stage.hanging = {0, 1, 2}
    stage.in_place.drain({"node-1"}, BEGIN + 5.0)
    await stage.after(6.0)
    stage.hanging.clear()
    stage.kill(1)
    await stage.settled()
    assert (stage.order, stage.regrouped) == ([0, 2], [("loss", 2)])


@scene
async def test_a_worker_that_freezes_after_all_agreed_to_park_is_left_behind() -> None:
    stage = Stage(4)

    def freeze(slot: int, message: dict[str, Any]) -> None:
        if message["type"] == "decide":
            stage.frozen.add(3)

    stage.watch = freeze
    stage.in_place.drain({"node-1"}, None)
    await stage.after(1.0)
    await stage.settled()
    assert (stage.order, stage.regrouped) == ([0, 2], [("loss", 2)])


@scene
async def test_a_worker_held_by_a_frozen_peer_after_all_agreed_to_park_is_asked_to_part() -> None:
    stage = Stage(4)
    stage.unheard = {(2, "decide"), (3, "decide"), (3, "part")}
    stage.in_place.drain({"node-1"}, None)
    await stage.after(0.1)
    stage.slow[2] = 1.0
    assert stage.in_place.is_changing
    await stage.settled()
    assert stage.order == [0, 2]
    assert 2 not in stage.messages("stop")


@scene
async def test_a_loss_while_all_park_as_agreed_is_a_loss() -> None:
    stage = Stage(4)
    stage.unheard = {(1, "decide"), (2, "decide"), (3, "decide")}
    stage.in_place.drain({"node-1"}, None)
    await stage.after(0.1)
    assert stage.in_place.is_changing
    assert stage.messages("part") == []
    stage.dead.add(3)
    stage.park(2)
    assert await stage.settled() < 0.5, "no wait for a timeout is needed"
    assert (stage.order, stage.regrouped) == ([0, 2], [("loss", 2)])
    assert 1 in stage.messages("part")


@pytest.mark.parametrize("ends_by", ["deadline", "commit"])
@scene
async def test_a_planned_stop_does_not_end_scripts_that_park_for_a_change(ends_by: str) -> None:
    """Its deadline passes, or its checkpoint is stored, after a loss has begun a change."""
    stage = Stage(4, min_workers=3)
    for rank in range(4):
        stage.slow[rank] = 8.0
    stage.in_place.drain({"node-2", "node-3"}, stage.now() + 14.0)
    await stage.after(8.5)
    decided = [message for _, message in stage.sent if message["type"] == "decide"]
    assert {message["action"] for message in decided} == {"checkpoint"}, "too few would stay"
    group = stage.attempt.group
    assert group is not None
    if ends_by == "commit":
        stage.attempt.receive(0, {"type": "shard", "step": 11, "files": (), "asked": True})
    stage.kill(3)
    assert stage.in_place.is_changing
    if ends_by == "commit":
        stage.attempt.apply(group, group.committed(11, stage.now()))
    await stage.settled()
    assert stage.messages("stop") == []
    assert (stage.order, stage.regrouped) == ([0, 1, 2], [("loss", 3)])
    stage.in_place.drain({"node-2"}, stage.now() + 30.0)
    await stage.after(0.1)
    assert len(stage.events("worker_group.drain")) == 2, "the next worker group is asked again"


# --- ends


@scene
async def test_an_attempt_that_is_stopped_changes_no_more() -> None:
    stage = Stage(3)
    stage.slow[2] = 1.0
    stage.kill(1)
    await stage.after(0.2)
    stage.attempt.stop(EndReason.CANCELLED)
    await stage.after(60.0)
    assert stage.messages("regroup") == []
    assert stage.in_place.absorb({2}, set(), {2}) == set(), "every end is for the judge"
    assert not stage.in_place.is_changing


@scene
async def test_a_group_that_is_judged_while_it_is_formed_does_not_come_back() -> None:
    stage = Stage(3)

    def fail(slot: int, message: dict[str, Any]) -> None:
        if message["type"] == "release":
            stage.attempt.group_could_not_start("as planned")

    stage.watch = fail
    stage.kill(1)
    await stage.after(60.0)
    assert stage.attempt.group is None
    assert (stage.attempt.generation, stage.regrouped) == (1, [])


@scene
async def test_a_script_that_fails_by_itself_is_for_the_judge() -> None:
    stage = Stage(3)
    assert stage.in_place.absorb({1}, set(), set()) == set()


@scene
async def test_a_loss_after_others_are_through_is_for_the_judge() -> None:
    stage = Stage(3)
    stage.attempt.receive(0, {"type": "exit", "exit_code": 0})
    assert stage.kill(1) == set(), "who is through cannot take part in another group"
    assert not stage.in_place.is_changing


@scene
async def test_a_group_that_is_being_ended_neither_changes_nor_counts_as_lost() -> None:
    stage = Stage(3)
    stage.attempt.restart_group()
    stage.park(1)
    assert not stage.in_place.is_changing
    assert stage.kill(2) == set()
    assert stage.attempt.group is not None
    assert stage.attempt.group.progress.lost_since is None


@scene
async def test_workers_that_cannot_regroup_are_for_the_judge() -> None:
    stage = Stage(3)
    stage.group_members.elastic.discard(2)
    assert stage.in_place.absorb({1}, {1}, set()) == set()
    assert not stage.in_place.may_grow()
    stage.in_place.drain({"node-1"}, None)
    await stage.after(0.1)
    assert {message["action"] for _, message in stage.sent if message["type"] == "decide"} == {"checkpoint"}


@scene
async def test_a_defect_of_ours_does_not_leave_scripts_parked(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage(3)

    def break_down(slot: int, message: dict[str, Any]) -> None:
        if message["type"] == "part":
            raise RuntimeError("as planned")

    stage.watch = break_down
    stage.kill(1)
    await stage.settled()
    assert stage.attempt.group is not None
    assert stage.attempt.group.is_stopping
    assert "a change in place failed" in caplog.text


@pytest.mark.parametrize(
    "message",
    [
        {"type": "parted"},
        {"type": "parted", "generation": "x", "step": 3},
        {"type": "parted", "generation": 1, "step": None},
        {"type": "joined", "generation": []},
        {"type": "joined", "generation": 1e400},
    ],
)
@scene
async def test_nonsense_is_dropped_with_a_remark(message: dict[str, Any]) -> None:
    stage = Stage(2)
    stage.in_place.receive(1, message)
    assert not stage.in_place.is_changing
    (said,) = stage.log
    assert "was not understood and dropped" in said


# --- whatever happens


@pytest.mark.parametrize("seed", range(60))
@scene
async def test_whatever_happens_no_worker_waits_for_ever(seed: int) -> None:
    chance = random.Random(seed)
    stage = Stage(4, min_workers=chance.choice([1, 1, 2, 3]), max_workers=6)
    injected = 0

    def strike(slot: int, message: dict[str, Any]) -> None:
        nonlocal injected
        if chance.random() > 0.2 or injected >= 4:
            return
        injected += 1
        victim = chance.choice(list(stage.group_members.by_slot))
        match chance.choice(["kill", "freeze", "hang", "join", "drain", "park"]):
            case "kill" if victim not in stage.dead:
                stage.kill(victim)
            case "freeze":
                stage.frozen.add(victim)
            case "hang":
                stage.hanging.add(victim)
            case "join" if stage.in_place.may_grow():
                stage.join()
            case "drain":
                stage.in_place.drain({f"node-{victim}"}, stage.now() + 30.0)
            case "park" if victim in stage.group_members.present and victim not in stage.dead | stage.frozen:
                stage.park(victim)

    stage.watch = strike
    for victim in chance.sample(range(4), 2):
        stage.kill(victim)
        await stage.after(chance.choice([0.0, 0.005, 0.05, 1.0, 20.0]))
    await stage.settled()
    assert len(stage.dead) >= 2
    group = stage.attempt.group
    assert group is not None
    well = stage.group_members.present - stage.dead - stage.frozen - stage.hanging
    if stage.attempt.verdict is not None:
        assert len(well) < stage.attempt.plan.sizes.min, "it ends only when there are too few"
    elif group.is_stopping:
        assert all(stage.steps[slot] < 0 for slot in well), "it goes back only when no worker has the state"
    else:
        assert len(stage.group_members.present) >= stage.attempt.plan.sizes.min
        assert all(stage.steps[slot] >= 10 for slot in well), "no step is lost"
    assert stage.log == []
