"""The life cycle of an attempt in its driver: every event in every phase, and whole attempts in virtual time."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remora.spec.worker_sizes import WorkerSizes
from remora.states import EndReason
from tests.unit.trainers.stage import Stage
from tests.unit.trainers.virtual_time import play
from trainers.driver.change import CHANGE_EDGES, Change, ChangeState, Effects, End, Limits
from trainers.driver.hang_monitor import HangMonitor
from trainers.driver.phases import (
    MEANINGS,
    PHASE_EDGES,
    PHASES_OF_CHANGES,
    Effect,
    Lifecycle,
    Phase,
    WrongPhase,
)
from trainers.driver.regrouping import Regrouping
from trainers.driver.repeated_failures import RepeatedFailures
from trainers.driver.stacks import Stacks
from trainers.driver.verdict import Verdict

HANG = Verdict(goes_on=False, end_reason=EndReason.HANG, message="no step ended")
LOST = Verdict(goes_on=True, end_reason=EndReason.NODE_LOST, message="a node was lost")
FAILED = Verdict(goes_on=False, end_reason=EndReason.EXIT_CODE, message="exit code 3", exit_code=3)


def new_change() -> Change:
    """A loss that left two workers, which are enough."""
    regrouping = Regrouping(generation=1, cause="loss", began_at=0.0, staying=[0, 1])
    limits = Limits(sizes=WorkerSizes(2, 4), park_s=10.0, regroup_s=600.0)
    return Change(regrouping, limits, RepeatedFailures())


def begin_change(life: Lifecycle) -> bool:
    change = new_change()
    if not life.begin_change(change):
        return False
    change.begin(0.0)
    return True


def inside(*events: Callable[[Change], Effects]) -> Callable[[Lifecycle], tuple[Effect, ...]]:
    """Events of the change under way, of which those effects are carried out that concern the attempt."""

    def happen(life: Lifecycle) -> tuple[Effect, ...]:
        found: tuple[Effect, ...] = ()
        for event in events:
            change = life.change
            for effect in () if change is None else event(change):
                if isinstance(effect, End):
                    verdict = effect.verdict
                    found += life.restart_group() if verdict is None else life.conclude(verdict)
        return found

    return happen


EVENTS: dict[str, Callable[[Lifecycle], object]] = {
    "begin_group": Lifecycle.begin_group,
    "group_is_up": Lifecycle.group_is_up,
    "end_group": Lifecycle.end_group,
    "restart_group": Lifecycle.restart_group,
    "close_group": Lifecycle.close_group,
    "close_group_lost": lambda one: one.close_group(LOST),
    "close_group_failed": lambda one: one.close_group(FAILED),
    "stop": lambda one: one.stop(EndReason.CANCELLED),
    "stop_again": lambda one: one.stop(EndReason.RUN_TIME_EXCEEDED),
    "conclude": lambda one: one.conclude(FAILED),
    "finish": Lifecycle.finish,
    "end": Lifecycle.end,
    "suspect": lambda one: one.suspect(HANG),
    "step_ended": Lifecycle.step_ended,
    "begin_change": begin_change,
    "park": inside(*(lambda one, slot=slot: one.park(slot, 7, 1.0, is_planned=False) for slot in (0, 1))),
    "park_without_state": inside(
        *(lambda one, slot=slot: one.park(slot, -1, 1.0, is_planned=False) for slot in (0, 1))
    ),
    "lose": inside(lambda one: one.lose({1}, 1.0)),
    "admit": inside(lambda one: one.admit({2: -1}, set(), 1.0)),
    "prepared": inside(lambda one: one.prepared((0, 1), set(), 2000, 1.0)),
    "join": inside(*(lambda one, slot=slot: one.join(slot, 1.0) for slot in (0, 1))),
    "time": inside(lambda one: one.tick(1e6)),
}

#: Events that lead a new life cycle into each phase.
WAYS: dict[Phase, tuple[str, ...]] = {
    Phase.FORMING: (),
    Phase.TRAINING: ("begin_group",),
    Phase.PARKING: ("begin_group", "begin_change"),
    Phase.WAITING: ("begin_group", "begin_change", "park", "lose"),
    Phase.JOINING: ("begin_group", "begin_change", "park", "prepared"),
    Phase.STOPPING: ("begin_group", "end_group"),
    Phase.ENDED: ("begin_group", "finish", "end"),
}


def happen(life: Lifecycle, event: str) -> tuple[Effect, ...]:
    """Let an event happen, and check what holds after every event; returns its effects."""
    before = (life.phase, life.stop_reason, life.verdict)
    try:
        answer = EVENTS[event](life)
    except WrongPhase:
        assert event in ("begin_group", "end"), "every other event can come at any time"
        assert (life.phase, life.stop_reason, life.verdict) == before, "a refused event changes nothing"
        return ()
    phase, stop_reason, verdict = before
    effects = answer if isinstance(answer, tuple) else ()
    if not phase.is_changing or life.change is None:
        assert life.phase is phase or (phase, life.phase) in PHASE_EDGES, "every move is an edge"
    assert stop_reason in (None, life.stop_reason), "the first stop reason counts"
    assert verdict in (None, life.verdict), "the first verdict counts"
    if life.is_final:
        assert life.phase in (Phase.STOPPING, Phase.ENDED), "an attempt that is to end does nothing else"
    assert (life.change is not None) is life.phase.is_changing, "no change outlives its worker group"
    assert len(set(effects)) == len(effects)
    return effects


def life_in(phase: Phase) -> Lifecycle:
    life = Lifecycle()
    for event in WAYS[phase]:
        happen(life, event)
    assert life.phase is phase
    return life


@pytest.mark.parametrize("phase", Phase)
def test_every_pair_of_events_in_every_phase(phase: Phase) -> None:
    for first, second in product(EVENTS, repeat=2):
        life = life_in(phase)
        happen(life, first)
        happen(life, second)


def test_every_edge_is_taken_and_every_phase_is_explained() -> None:
    taken = {(PHASES_OF_CHANGES[old], PHASES_OF_CHANGES[new]) for old, new in CHANGE_EDGES}
    for phase, event in product(Phase, EVENTS):
        life = life_in(phase)
        happen(life, event)
        if not phase.is_changing or life.change is None:
            taken.add((phase, life.phase))
    assert {(old, new) for old, new in taken if old is not new} == set(PHASE_EDGES)
    assert set(MEANINGS) == set(Phase)
    assert set(PHASES_OF_CHANGES) == set(ChangeState)


@given(st.lists(st.sampled_from(sorted(EVENTS)), max_size=40))
def test_no_two_groups_are_there_at_once_and_a_stop_always_ends(events: list[str]) -> None:
    life, groups = Lifecycle(), 0
    for event in events:
        before = life.phase
        effects = happen(life, event)
        if event == "begin_group" and before is Phase.FORMING and life.phase is Phase.TRAINING:
            groups += 1
        elif event.startswith("close_group") or life.phase is Phase.ENDED:
            groups = 0
        assert groups <= 1
        assert groups == 1 or Effect.STOP_GROUP not in effects, "only a worker group that is there is ended"
    if life.phase is Phase.ENDED:
        return
    happen(life, "stop")
    assert life.phase is Phase.STOPPING
    assert life.stop_reason is not None
    happen(life, "close_group")
    assert life.phase is Phase.STOPPING
    assert happen(life, "begin_group") == ()
    assert life.phase is Phase.STOPPING, "no worker group begins after a stop"
    happen(life, "finish")
    happen(life, "end")
    assert life.phase is Phase.ENDED


def test_a_worker_group_cannot_begin_beside_another_one() -> None:
    for phase in set(Phase) - {Phase.FORMING}:
        life = life_in(phase)
        with pytest.raises(WrongPhase, match=phase.value):
            life.begin_group()


def test_only_an_attempt_that_stops_can_end() -> None:
    for phase in set(Phase) - {Phase.STOPPING}:
        with pytest.raises(WrongPhase, match=phase.value):
            life_in(phase).end()


@pytest.mark.parametrize("phase", Phase)
def test_answers_say_whether_an_event_was_taken(phase: Phase) -> None:
    assert life_in(phase).begin_change(new_change()) is (phase is Phase.TRAINING)
    assert life_in(phase).suspect(HANG) is (phase is Phase.TRAINING)
    if phase is Phase.FORMING:
        assert life_in(phase).begin_group() is True
    stopped = life_in(phase)
    stopped.stop(EndReason.CANCELLED)
    if stopped.is_final:
        assert stopped.begin_group() is False


def test_what_a_failed_worker_group_leads_to() -> None:
    life = life_in(Phase.STOPPING)
    happen(life, "close_group_failed")
    assert (life.verdict, life.phase) == (FAILED, Phase.STOPPING)
    life = life_in(Phase.STOPPING)
    happen(life, "close_group_lost")
    assert (life.verdict, life.phase) == (None, Phase.FORMING)


def test_a_stop_is_carried_out_once() -> None:
    life = life_in(Phase.PARKING)
    assert happen(life, "stop") == (Effect.REPORT_DRAINING, Effect.ASK_TO_STOP)
    assert happen(life, "stop_again") == ()
    assert life.stop_reason is EndReason.CANCELLED


def test_workers_that_cannot_even_park_after_a_suspected_hang_end_the_attempt() -> None:
    life = life_in(Phase.TRAINING)
    assert life.suspect(HANG)
    assert not life.suspect(HANG), "once per step"
    happen(life, "begin_change")
    assert happen(life, "park_without_state") == (Effect.STOP_GROUP,)
    assert life.verdict is HANG


def test_after_a_step_a_suspected_hang_is_forgotten() -> None:
    life = life_in(Phase.TRAINING)
    assert life.suspect(HANG)
    life.step_ended()
    assert happen(life, "restart_group") == (Effect.STOP_GROUP,)
    assert life.verdict is None
    happen(life, "close_group_lost")
    assert life.phase is Phase.FORMING, "another worker group follows"


def test_workers_are_waited_for_from_the_first_question_on() -> None:
    life = Lifecycle()
    assert life.waited_s(100.0) == 0.0
    assert life.waited_s(130.0) == 30.0
    life.group_is_up()
    assert life.waited_s(200.0) == 0.0
    life.wait_again(190.0)
    assert life.waited_s(200.0) == 10.0


# --- the driver carries the effects out


def test_a_script_that_parks_while_its_worker_group_is_judged_begins_no_change() -> None:
    """The change would outlive the worker group, and hold up all that looks at the next one."""

    async def scene() -> None:
        stage = Stage(3)
        stage.attempt.receive(0, {"type": "exit", "exit_code": None, "stopped": True})
        judging = stage.attempt.spawn(stage.attempt.judge(set(), {2}))
        await stage.after(0.5)
        stage.park(1)
        assert not stage.in_place.is_changing
        assert await judging is True
        _check(stage)

    play(scene())


ACTS = (
    "kill",
    "freeze",
    "hang",
    "park",
    "join",
    "drain",
    "grow",
    "wait",
    "wait long",
    "fail",
    "restart",
    "stop",
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(ACTS), min_size=1, max_size=8), st.integers(0, 2**32))
def test_whatever_happens_phase_and_worker_group_agree_and_every_wait_ends(
    acts: list[str], seed: int
) -> None:
    async def scene() -> None:
        chance = random.Random(seed)
        stage = Stage(chance.randint(1, 4), min_workers=chance.choice([1, 2]), max_workers=5)
        monitor = HangMonitor(stage.attempt, stage.in_place, Stacks(stage.group_members))
        for act in acts:
            await _act(stage, act, chance)
            monitor.tick()
            _check(stage)
        for _ in range(20_000):
            if stage.attempt.lifecycle.phase not in (Phase.PARKING, Phase.WAITING, Phase.JOINING):
                break
            await stage.after(0.4)
            _check(stage)
        assert not stage.in_place.is_changing, "a change never ends"
        stage.attempt.stop(EndReason.CANCELLED)
        if stage.attempt.group is not None:
            assert await stage.attempt.judge(set(), set()) is False, "a stop always ends"
        _check(stage)
        await stage.attempt.end(None)
        assert stage.attempt.lifecycle.phase is Phase.ENDED
        assert stage.account.records(0, 100_000)[-1].kind == "ended"

    play(scene())


async def _act(stage: Stage, act: str, chance: random.Random) -> None:
    attempt, members = stage.attempt, stage.group_members
    slot = chance.choice(sorted(members.by_slot))
    match act:
        case "kill":
            stage.kill(slot)
        case "freeze":
            stage.frozen.add(slot)
        case "hang":
            stage.hanging.add(slot)
        case "park" if slot in members.present and slot not in stage.dead | stage.frozen:
            stage.park(slot)
        case "join" if stage.in_place.may_grow():
            stage.join(is_ready=chance.random() < 0.7)
        case "drain":
            stage.in_place.drain({f"node-{slot}"}, stage.now() + 30.0)
        case "grow":
            attempt.request_stop("grow", "There is capacity.", None)
        case "wait":
            await stage.after(chance.choice([0.005, 0.05, 1.0]))
        case "wait long":
            await stage.after(40.0)
        case "fail" if attempt.group is not None:
            goes_on = await attempt.judge(set(), {slot} & members.present)
            assert goes_on is (attempt.lifecycle.phase is Phase.FORMING)
            if goes_on:
                fresh = stage.new_members(2)
                attempt.open_group(fresh, None)
                for member in fresh:
                    stage.steps[member.slot] = 10
                    stage.say(member.slot, "elastic")
        case "restart":
            attempt.restart_group()
        case "stop":
            attempt.stop(EndReason.CANCELLED)


def _check(stage: Stage) -> None:
    phase, group = stage.attempt.lifecycle.phase, stage.attempt.group
    assert stage.in_place.is_changing is phase.is_changing
    if phase is Phase.FORMING:
        assert group is None
    if phase is Phase.TRAINING or phase.is_changing:
        assert group is not None
        assert not stage.attempt.lifecycle.is_final
    if phase is Phase.TRAINING:
        assert group is not None
        assert not group.is_stopping
