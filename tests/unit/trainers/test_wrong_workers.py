"""A worker group goes on without a worker that computes wrongly, and its node gets no other one of this attempt."""

from __future__ import annotations

from dataclasses import replace

import pytest

from remora.states import EndReason
from tests.unit.trainers.stage import Stage
from tests.unit.trainers.virtual_time import scene
from trainers.driver.in_place import SICK_PAUSE_S
from trainers.driver.sick_nodes import MOST_NODES

VERIFIES = {"REMORA_VERIFY_EVERY": "4"}


def accuse(stage: Stage, slot: int, *ranks: int) -> None:
    """A script says that ranks compute wrongly, and leaves the group."""
    text = "in step 12 they have found other bits"
    generation = stage.attempt.generation
    stage.say(slot, "miscomputed", generation=generation, ranks=list(ranks), step=12, text=text)
    stage.park(slot, text)


@scene
async def test_the_others_go_on_and_the_node_is_named_once() -> None:
    stage = Stage(3, elastic_variables=VERIFIES)
    for slot in (1, 0, 2):
        accuse(stage, slot, 1)
    await stage.settled()
    assert stage.order == [0, 2]
    assert stage.regrouped == [("loss", 2)]
    assert stage.events("worker.miscomputed") == [{"rank": 1, "address": "10.0.0.1"}]
    assert set(stage.messages("stop")) == {1}, "its command ends"


@scene
async def test_no_worker_that_joins_is_on_its_node() -> None:
    stage = Stage(3, elastic_variables=VERIFIES)
    accuse(stage, 0, 1)
    accuse(stage, 2, 1)
    await stage.settled()
    (member,) = stage.new_members(1)
    with pytest.raises(TimeoutError, match="is sick"):
        stage.in_place.expect([replace(member, ray_node_id="node-1")])
    assert not stage.in_place.may_grow()
    await stage.after(SICK_PAUSE_S)
    stage.join()
    await stage.after(2.0)
    assert stage.regrouped == [("loss", 2), ("grow", 3)]


@scene
async def test_a_worker_says_nothing_about_itself_nor_about_another_group() -> None:
    stage = Stage(3, elastic_variables=VERIFIES)
    stage.say(1, "miscomputed", generation=1, ranks=[1], step=12, text="it is me")
    stage.say(1, "miscomputed", generation=7, ranks=[0], step=12, text="of another group")
    stage.say(1, "miscomputed", generation=1, ranks=[17], step=12, text="of no rank")
    stage.say(1, "miscomputed", generation=1, ranks="zero", step=12, text="no numbers")
    assert not stage.in_place.is_changing
    assert stage.events("worker.miscomputed") == []
    assert any("was not understood and dropped" in text for text in stage.log)


@scene
async def test_an_attempt_calls_a_few_nodes_sick_and_then_ends() -> None:
    workers = MOST_NODES + 3
    stage = Stage(workers, max_workers=workers, elastic_variables=VERIFIES)
    for _ in range(MOST_NODES):
        for slot in stage.order[:-1]:
            accuse(stage, slot, len(stage.order) - 1)
        await stage.settled()
    assert len(stage.events("worker.miscomputed")) == MOST_NODES
    accuse(stage, stage.order[0], 1)
    verdict = stage.attempt.verdict
    assert verdict is not None
    assert (verdict.end_reason, verdict.goes_on) == (EndReason.DIVERGED, False)
    assert len(stage.events("worker.miscomputed")) == MOST_NODES


@scene
async def test_what_a_script_says_whose_job_asks_for_no_checks_drains_nothing() -> None:
    stage = Stage(3)
    stage.say(0, "miscomputed", generation=1, ranks=[1], step=12, text="it is wrong")
    assert not stage.in_place.is_changing
    assert stage.events("worker.miscomputed") == []


@scene
async def test_no_new_worker_group_begins_on_its_node() -> None:
    stage = Stage(3, elastic_variables=VERIFIES)
    accuse(stage, 0, 1)
    accuse(stage, 2, 1)
    await stage.settled()
    (member,) = stage.new_members(1)
    stage.in_place.check_nodes([member])
    with pytest.raises(TimeoutError, match="is sick"):
        stage.in_place.check_nodes([member, replace(member, ray_node_id="node-1")])


@scene
async def test_nodes_between_which_nothing_is_decided_are_named_once_and_not_drained() -> None:
    stage = Stage(2, elastic_variables=VERIFIES)
    for slot in (1, 0):
        text = "ranks 0, 1 have found unlike bits"
        stage.say(slot, "miscomputed", generation=1, ranks=[0, 1], is_known=False, step=12, text=text)
    (event,) = stage.events("worker.doubted")
    assert event == {"ranks": [0, 1], "addresses": ["10.0.0.0", "10.0.0.1"]}
    assert stage.events("worker.miscomputed") == []
    assert stage.messages("stop") == []
    stage.in_place.check_nodes(stage.new_members(1))


@scene
async def test_doubts_of_a_script_whose_job_asks_for_no_checks_are_not_reported() -> None:
    stage = Stage(2)
    stage.say(0, "miscomputed", generation=1, ranks=[0, 1], is_known=False, step=12, text="one of us")
    assert stage.events("worker.doubted") == []
