"""One change in place: every event in every state, and whole changes against workers that fail (in virtual time)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remora.spec.worker_sizes import WorkerSizes
from remora.states import EndReason
from trainers.driver.change import (
    CHANGE_EDGES,
    CHANGE_MEANINGS,
    JOIN_CAP_S,
    JOIN_S,
    QUIET_S,
    AssignRanks,
    Change,
    ChangeState,
    CountLoss,
    Effects,
    End,
    FindDead,
    Finish,
    LeaveBehind,
    Limits,
    Prepare,
    ReportShort,
    SendPark,
    WrongState,
)
from trainers.driver.regrouping import Cause, Regrouping
from trainers.driver.repeated_failures import MOST_FAILURES, RepeatedFailures

PARK_S, REGROUP_S = 10.0, 600.0


class Watched(Change):
    """Notes the edges that it takes."""

    def __init__(
        self,
        cause: Cause = "loss",
        slots: tuple[int, ...] = (0, 1),
        sizes: WorkerSizes = WorkerSizes(2, 4),  # noqa: B008 - frozen
        failures: RepeatedFailures | None = None,
        began_at: float = 0.0,
    ) -> None:
        regrouping = Regrouping(generation=1, cause=cause, began_at=began_at, staying=list(slots))
        limits = Limits(sizes=sizes, park_s=PARK_S, regroup_s=REGROUP_S)
        self.taken: set[tuple[ChangeState, ChangeState]] = set()
        super().__init__(regrouping, limits, failures or RepeatedFailures())

    def _enter(self, state: ChangeState, until: float = float("inf")) -> None:
        before = self.state
        super()._enter(state, until)
        if state is not before:
            self.taken.add((before, state))


Event = Callable[[Change, float], Effects]


def parks(slot: int, step: int = 7, *, is_planned: bool = False) -> Event:
    return lambda one, now: one.park(slot, step, now, is_planned=is_planned)


def joins(slot: int) -> Event:
    return lambda one, now: one.join(slot, now)


def prepared(*members: int, silent: tuple[int, ...] = (), port: int | None = 2000) -> Event:
    return lambda one, now: one.prepared(members, set(silent), port, now)


def dropped(one: Change, now: float) -> Effects:
    one.drop()
    return ()


EVENTS: dict[str, Event] = {
    "parks_0": parks(0),
    "parks_1": parks(1),
    "parks_0_as_agreed": parks(0, is_planned=True),
    "parks_1_as_agreed": parks(1, is_planned=True),
    "parks_0_without_state": parks(0, -1),
    "loses_0": lambda one, now: one.lose({0}, now),
    "loses_all": lambda one, now: one.lose({0, 1, 2}, now),
    "loses_the_joiner": lambda one, now: one.lose({2}, now),
    "loses_a_stranger": lambda one, now: one.lose({9}, now),
    "admits": lambda one, now: one.admit({2: -1}, {2}, now),
    "drains_0": lambda one, now: one.drain({0}, now),
    "looked": Change.looked,
    "prepared": prepared(0, 1),
    "prepared_others": prepared(0, 1, 2),
    "prepared_without_1": prepared(0, 1, silent=(1,)),
    "prepared_without_a_port": prepared(0, 1, port=None),
    "joins_0": joins(0),
    "joins_1": joins(1),
    "a_second": lambda one, now: one.tick(now + 1.0),
    "an_hour": lambda one, now: one.tick(now + 3600.0),
    "dropped": dropped,
}

#: Cause and events that lead a new change into each state.
WAYS: dict[ChangeState, tuple[Cause, tuple[str, ...]]] = {
    ChangeState.AGREED: ("drain", ()),
    ChangeState.PARTING: ("loss", ()),
    ChangeState.SHORT: ("loss", ("parks_1", "loses_0")),
    ChangeState.PREPARING: ("loss", ("parks_0", "parks_1")),
    ChangeState.JOINING: ("loss", ("parks_0", "parks_1", "prepared")),
    ChangeState.DONE: ("loss", ("parks_0", "parks_1", "prepared", "joins_0", "joins_1")),
    ChangeState.DROPPED: ("loss", ("dropped",)),
}


def change_in(state: ChangeState) -> Watched:
    cause, events = WAYS[state]
    one = Watched(cause)
    one.begin(0.0)
    for event in events:
        EVENTS[event](one, 0.0)
    assert one.state is state
    return one


def happen(one: Watched, event: str, now: float) -> Effects:
    """Let an event happen, and check what holds after every event; returns its effects."""
    before = one.state
    was_over = one.is_over
    effects = EVENTS[event](one, now)
    kinds = [type(effect) for effect in effects]
    assert len(set(kinds)) == len(kinds)
    if was_over:
        assert (effects, one.state) == ((), before), "nothing follows a change that is over"
    assert (one.state is ChangeState.DONE and not was_over) is (Finish in kinds)
    if End in kinds:
        assert one.state is ChangeState.DROPPED
    if one.state is not before:
        expected = {
            ChangeState.PARTING: SendPark,
            ChangeState.SHORT: ReportShort,
            ChangeState.PREPARING: Prepare,
            ChangeState.JOINING: AssignRanks,
        }
        assert one.state not in expected or expected[one.state] in kinds, "every wait is for an answer"
    return effects


@pytest.mark.parametrize("state", ChangeState)
def test_every_pair_of_events_in_every_state(state: ChangeState) -> None:
    for first, second in product(EVENTS, repeat=2):
        one = change_in(state)
        happen(one, first, 1.0)
        happen(one, second, 2.0)


def test_every_edge_is_taken_and_every_state_is_explained() -> None:
    taken: set[tuple[ChangeState, ChangeState]] = set()
    for state, events in product(ChangeState, product(EVENTS, repeat=2)):
        one = change_in(state)
        for event in events:
            happen(one, event, 1.0)
        taken |= one.taken
    assert taken == set(CHANGE_EDGES)
    assert set(CHANGE_MEANINGS) == set(ChangeState)


def test_a_move_without_an_edge_is_refused() -> None:
    one = change_in(ChangeState.JOINING)
    with pytest.raises(WrongState, match="no edge leads from joining to short"):
        one._enter(ChangeState.SHORT)
    assert one.state is ChangeState.JOINING


# --- what each event leads to


def test_the_way_of_a_loss() -> None:
    one = Watched(slots=(0, 1, 2), began_at=5.0)
    sent = SendPark(frozenset({0, 1, 2}), 1)
    assert one.begin(5.0) == (CountLoss(), FindDead((0, 1, 2)), sent)
    assert one.lose({1}, 5.5) == (), "the others are awaited"
    assert parks(0)(one, 6.0) == ()
    assert parks(2)(one, 7.0) == (Prepare((0, 2)),)
    assert prepared(0, 2)(one, 8.0) == (AssignRanks((0, 2), 2000),)
    assert joins(0)(one, 9.0) == ()
    assert joins(2)(one, 9.1239) == (Finish(2, "loss", 4.124, park_s=2.0, prepare_s=1.0, join_s=1.124),)


def test_scripts_that_park_as_agreed_lose_no_time() -> None:
    one = Watched("drain", slots=(0, 1))
    one.drain({0}, 0.0)
    assert one.begin(0.0) == ()
    assert parks(0, is_planned=True)(one, 1.0) == ()
    assert parks(1, is_planned=True)(one, 1.0) == (Prepare((0, 1)),), "both are needed"
    assert one.state is ChangeState.PREPARING


@pytest.mark.parametrize("breaks_by", ["a loss", "a park", "time"])
def test_what_is_not_as_agreed_is_a_loss(breaks_by: str) -> None:
    one = Watched("grow", slots=(0, 1, 2))
    one.begin(0.0)
    parks(0, is_planned=True)(one, 0.1)
    match breaks_by:
        case "a loss":
            assert one.lose({1}, 1.0) == (CountLoss(), FindDead((0, 2)), SendPark(frozenset({2}), 1))
        case "a park":
            assert parks(1)(one, 1.0) == (CountLoss(), FindDead((0, 1, 2)), SendPark(frozenset({2}), 1))
        case _:
            assert CountLoss() not in one.tick(PARK_S - 0.01)
            assert one.tick(PARK_S) == (CountLoss(), SendPark(frozenset({1, 2}), 1)), "a look is under way"
    assert one.state is ChangeState.PARTING


def test_scripts_that_do_not_park_in_time_are_left_behind() -> None:
    one = Watched(slots=(0, 1, 2))
    one.begin(100.0)
    parks(0)(one, 100.0)
    parks(1)(one, 100.0)
    one.looked(100.0)
    assert not any(isinstance(effect, LeaveBehind) for effect in one.tick(100.0 + PARK_S - 0.01))
    late = one.tick(100.0 + PARK_S)
    assert late == (LeaveBehind(frozenset({2}), is_hanging=True), Prepare((0, 1)))


def test_workers_are_checked_for_being_dead_when_nothing_happens() -> None:
    one = Watched()
    one.begin(0.0)
    assert one.tick(QUIET_S) == (), "one look at a time"
    one.looked(5.0)
    assert one.tick(5.0 + QUIET_S - 0.01) == ()
    assert one.tick(5.0 + QUIET_S) == (FindDead((0, 1)),)
    one.looked(6.5)
    parks(0)(one, 7.0)
    assert one.tick(7.9) == (), "it was quiet for less than a second"
    assert one.tick(8.0) == (FindDead((0, 1)),)
    one.looked(8.0)
    one.lose({1}, 8.9)
    assert one.tick(9.5) == ()
    one = change_in(ChangeState.JOINING)
    one.looked(0.0)
    joins(0)(one, 3.0)
    assert one.tick(3.9) == ()
    assert one.tick(4.0) == (FindDead((0, 1)),)


def test_silent_workers_are_left_behind_before_ranks_are_assigned() -> None:
    one = Watched(slots=(0, 1, 2, 3))
    one.begin(0.0)
    for slot in range(4):
        parks(slot)(one, 0.0)
    assert prepared(0, 1, 2, 3, silent=(2,))(one, 1.0) == (
        LeaveBehind(frozenset({2}), is_hanging=False),
        Prepare((0, 1, 3)),
    )
    assert prepared(0, 1, 2, 3)(one, 1.0) == (), "the answers to an older question do not count"
    without = prepared(0, 1, 3, port=None)(one, 2.0)
    assert without == (LeaveBehind(frozenset({0})), Prepare((1, 3))), "it is that of rank 0's node"


def test_a_node_that_drains_while_all_are_asked_is_left_out() -> None:
    one = Watched(slots=(0, 1, 2))
    one.begin(0.0)
    for slot in range(3):
        parks(slot)(one, 0.0)
    assert one.drain({1}, 1.0) == (Prepare((0, 2)),)
    assert one.drain({1}, 1.0) == (), "that has been asked"


def test_too_few_wait_for_others_and_not_for_ever() -> None:
    one = change_in(ChangeState.SHORT)
    one.looked(0.0)
    one.tick(REGROUP_S - 0.01)
    assert one.state is ChangeState.SHORT
    (ended,) = one.tick(REGROUP_S)
    assert isinstance(ended, End)
    assert ended.verdict is not None
    assert ended.verdict.end_reason is EndReason.NODE_LOST
    assert ended.verdict.message == "No 2 workers could be had for 600 s."


def test_enough_workers_go_on_with_those_that_join() -> None:
    one = change_in(ChangeState.SHORT)
    assert one.admit({2: -1}, set(), 1.0) == (Prepare((1, 2)),)
    assert one.lose({2}, 2.0) == (ReportShort(),)
    assert one.admit({3: -1}, {3}, 3.0) == (Prepare((1, 3)),), "rank 0 holds the state"
    assert prepared(1, 3)(one, 4.0) == (AssignRanks((1, 3), 2000),)


def test_of_those_with_the_state_one_on_an_on_demand_node_leads() -> None:
    one = Watched(slots=(0, 1))
    one.begin(0.0)
    one.admit({}, {1}, 0.0)
    parks(0)(one, 0.0)
    assert parks(1)(one, 0.0) == (Prepare((1, 0)),)


def test_a_joiner_that_comes_while_the_group_is_formed_is_for_the_next_try() -> None:
    one = change_in(ChangeState.JOINING)
    assert one.admit({2: -1}, set(), 1.0) == ()
    assert one.lose({2}, 1.0) == (), "it was of no group"
    assert one.admit({3: -1}, set(), 1.0) == ()
    assert one.lose({0}, 2.0) == (SendPark(frozenset({1}), 2),)
    assert parks(1)(one, 3.0) == (Prepare((1, 3)),)


def test_a_joiner_with_a_rank_is_lost_like_any_other() -> None:
    one = Watched("grow")
    one.begin(0.0)
    one.admit({2: -1}, set(), 0.0)
    parks(0, is_planned=True)(one, 0.0)
    parks(1, is_planned=True)(one, 0.0)
    prepared(0, 1, 2)(one, 0.0)
    assert one.lose({2}, 1.0) == (CountLoss(), FindDead((0, 1)), SendPark(frozenset({0, 1}), 2))


@pytest.mark.parametrize("by", ["a loss", "a park", "time"])
def test_a_group_that_does_not_form_parks_again(by: str) -> None:
    one = change_in(ChangeState.JOINING)
    one.looked(0.0)
    joins(0)(one, 0.0)
    event: Event = {"a loss": EVENTS["loses_0"], "a park": parks(1), "time": Change.tick}[by]
    awaited = {"a loss": {1}, "a park": {0}, "time": {0, 1}}[by]
    sent = event(one, JOIN_S)
    assert sent[-1] == SendPark(frozenset(awaited), 2)
    assert CountLoss() not in sent, "that was counted"
    assert joins(1)(one, JOIN_S) == (), "it is too late for that group"


def test_every_try_to_form_a_group_gets_more_time() -> None:
    one = change_in(ChangeState.PREPARING)
    now, patience_s = 0.0, JOIN_S
    for _ in range(10):
        prepared(0, 1)(one, now)
        assert not any(isinstance(effect, SendPark) for effect in one.tick(now + patience_s - 0.01))
        now += patience_s
        assert any(isinstance(effect, SendPark) for effect in one.tick(now))
        parks(0)(one, now)
        parks(1)(one, now)
        patience_s = min(JOIN_CAP_S, 2 * patience_s)
    assert patience_s == JOIN_CAP_S


def test_without_a_state_only_the_storage_is_left() -> None:
    one = Watched()
    one.begin(0.0)
    parks(0, -1)(one, 0.0)
    assert parks(1, -1)(one, 0.0) == (End(),)
    empty = Watched(slots=())
    assert empty.begin(0.0)[-1] == End()


def test_a_step_that_fails_again_and_again_ends_the_attempt() -> None:
    failures = RepeatedFailures()
    for count in range(MOST_FAILURES + 1):
        failures.join(0)
        failures.note(0, 0, "a bad call")
        one = Watched(failures=failures)
        one.begin(0.0)
        parks(0)(one, 0.0)
        (last,) = parks(1)(one, 0.0)
        if count < MOST_FAILURES:
            assert last == Prepare((0, 1))
    assert isinstance(last, End)
    assert last.verdict is not None
    assert last.verdict.end_reason is EndReason.HANG
    assert "after step 7" in last.verdict.message


def test_a_script_that_was_asked_to_park_has_not_failed() -> None:
    failures = RepeatedFailures()
    for _ in range(MOST_FAILURES + 1):
        failures.join(0)
        one = Watched(failures=failures)
        one.begin(0.0)
        failures.note(0, 0, "its peers are gone")
        parks(0)(one, 0.0)
        assert parks(1)(one, 0.0) == (Prepare((0, 1)),)
        prepared(0, 1)(one, 0.0)
        failures.note(0, 0, "a peer is slow")


def test_groups_that_worked_and_broke_at_one_step_are_counted() -> None:
    failures = RepeatedFailures()
    last: Effects = ()
    for _ in range(MOST_FAILURES + 2):
        one = Watched(failures=failures)
        one.begin(0.0)
        parks(0)(one, 0.0)
        last = parks(1)(one, 0.0)
        for event in (prepared(0, 1), joins(0), joins(1)):
            event(one, 0.0)
        failures.note(0, 0, "a bad call")
    assert [type(effect) for effect in last] == [End], "the first change was none of them"


def test_a_script_that_leaves_a_group_before_it_works_has_not_failed() -> None:
    failures = RepeatedFailures()
    for _ in range(MOST_FAILURES + 2):
        failures.join(0)
        one = Watched("grow", failures=failures)
        one.begin(0.0)
        for event in (parks(0, is_planned=True), parks(1, is_planned=True), prepared(0, 1)):
            event(one, 0.0)
        failures.note(0, 0, "a peer is slow")
        parks(0)(one, 1.0)
        assert parks(1)(one, 1.0) == (Prepare((0, 1)),)


def test_a_joiner_is_lost_once() -> None:
    one = change_in(ChangeState.JOINING)
    one.looked(0.0)
    one.admit({2: -1}, set(), 0.0)
    one.lose({2}, 1.0)
    one.lose({2}, 1.9)
    assert one.tick(1.0 + QUIET_S) == (FindDead((0, 1)),), "the second report is no news"


# --- whole changes


class World:
    """Workers that park and join when asked, unless they are dead, frozen or hang; and a clock."""

    def __init__(self, cause: Cause, workers: int, least: int) -> None:
        self.now = 0.0
        self.sizes = WorkerSizes(least, 6)
        self.one = Watched(cause, tuple(range(workers)), self.sizes)
        self.generation = 1
        #: Workers of the newest group, and those that have joined it.
        self.members = tuple(range(workers))
        self.joined: set[int] = set()
        self.is_noticed = False
        self.steps = dict.fromkeys(range(workers), 7)
        self.parked: set[int] = set()
        self.lost: set[int] = set()
        self.dead: set[int] = set()
        self.hanging: set[int] = set()
        self.pending: list[Callable[[], Effects]] = []
        self.ends: list[Finish | End] = []
        self.take(self.one.begin(0.0))

    def happen(self, event: Event) -> None:
        self.take(event(self.one, self.now))

    def take(self, effects: Effects) -> None:
        for effect in effects:
            match effect:
                case FindDead(slots):
                    self.pending.append(lambda slots=slots: self.look(set(slots)))  # type: ignore[misc]
                case SendPark(slots, generation):
                    assert generation == self.generation
                    self.is_noticed = True
                    for slot in slots:
                        self.pending.append(lambda slot=slot: self.park(slot))  # type: ignore[misc]
                case LeaveBehind(left):
                    self.lost |= left
                case Prepare(members):
                    self.check(members)
                    self.pending.append(lambda members=members: self.answer(members))  # type: ignore[misc]
                case AssignRanks(members):
                    self.check(members)
                    assert self.is_noticed or self.generation == 1, "a group that is there has to park first"
                    self.is_noticed = False
                    self.generation += 1
                    # Who is left out of the next group ends.
                    self.lost |= set(self.members) - set(members)
                    self.members, self.joined, self.parked = members, set(), set()
                    for slot in members:
                        self.pending.append(lambda slot=slot: self.join(slot))  # type: ignore[misc]
                case Finish():
                    assert self.joined >= set(self.members)
                    assert effect.size == len(self.members)
                    self.ends.append(effect)
                case End():
                    self.ends.append(effect)
        assert len(self.ends) == (self.one.state is ChangeState.DONE or bool(self.ends))

    def check(self, members: tuple[int, ...]) -> None:
        assert not set(members) & self.lost, "a loss is never forgotten"
        assert len(set(members)) == len(members) == self.sizes.fit(len(members))
        here = [slot for slot in self.parked if slot not in self.lost]
        assert self.steps[members[0]] >= 0, "rank 0 holds the state"
        newest = max(self.steps[slot] for slot in here)
        assert max(self.steps[slot] for slot in members) == newest, "no step is lost"

    def look(self, slots: set[int]) -> Effects:
        found = slots & self.dead
        self.lost |= found
        return (*self.one.lose(found, self.now), *self.one.looked(self.now))

    def park(self, slot: int) -> Effects:
        if slot in self.dead | self.hanging | self.lost:
            return ()
        self.parked.add(slot)
        return self.one.park(slot, self.steps[slot], self.now, is_planned=not self.is_noticed)

    def answer(self, members: tuple[int, ...]) -> Effects:
        silent = set(members) & self.dead
        return self.one.prepared(members, silent, None if members[0] in self.dead else 2000, self.now)

    def join(self, slot: int) -> Effects:
        # A group forms when all of its workers come; one that hangs keeps the others waiting.
        if set(self.members) & (self.dead | self.hanging) or slot not in self.members or self.is_noticed:
            return ()
        self.joined.add(slot)
        self.steps[slot] = 7
        return self.one.join(slot, self.now)

    def act(self, act: str, slot: int) -> None:
        known = slot in self.steps and slot not in self.lost
        match act:
            case "dies":
                self.dead.add(slot)
            case "hangs":
                self.hanging.add(slot)
            case "is lost" if known:
                self.lost.add(slot)
                self.happen(lambda one, now: one.lose({slot}, now))
            case "parks" if slot in self.members and known and slot not in self.dead | self.hanging:
                self.parked.add(slot)
                self.happen(parks(slot, self.steps[slot]))
            case "comes":
                new = len(self.steps)
                self.steps[new] = -1
                self.parked.add(new)
                self.happen(lambda one, now: one.admit({new: -1}, set(), now))
            case "drains":
                self.happen(lambda one, now: one.drain({slot}, now))
            case "answers" if self.pending:
                self.take(self.pending.pop(slot % len(self.pending))())
            case "passes":
                self.now += slot
                self.happen(Change.tick)


ACTS = ["dies", "hangs", "is lost", "parks", "comes", "drains", "answers", "answers", "passes"]


@settings(max_examples=1000, deadline=None)
@given(
    st.sampled_from(["loss", "grow", "drain"]),
    st.integers(1, 5),
    st.integers(1, 3),
    st.lists(st.tuples(st.sampled_from(ACTS), st.integers(0, 6)), max_size=40),
)
def test_whatever_happens_a_change_ends_once_and_forgets_no_event(
    cause: Cause, workers: int, least: int, acts: list[tuple[str, int]]
) -> None:
    world = World(cause, workers, min(workers, least))
    for act, slot in acts:
        world.act(act, slot)
    for _ in range(100_000):
        if world.ends:
            break
        while world.pending and not world.ends:
            world.act("answers", 0)
        world.act("passes", 1)
    (end,) = world.ends
    well = set(world.steps) - world.lost
    match end:
        case End(None):
            assert not any(world.steps[slot] >= 0 for slot in well & world.parked), "no worker has the state"
        case End():
            assert not world.sizes.fit(len(well - world.dead)), "there are too few"
    for act, slot in product(["is lost", "parks", "comes", "drains", "passes"], range(3)):
        world.act(act, slot)
    while world.pending:
        world.act("answers", 0)
    assert world.ends == [end], "nothing follows the end"
