"""What the cloud refuses is asked for again after minutes, then ever more seldom, until it comes."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from cluster.policies.catalogue_conflicts import ClusterFacts
from cluster.policies.documents import read_document
from cluster.scheduling.health import STRIKES, closed_offerings, launch_not_before
from cluster.scheduling.refusals import FIRST_S, FORGOTTEN_S, after_refusal, made_good, taken_back
from cluster.scheduling.view import ClusterView, NodeView, Refusal
from remora.states import NodeState

NOW = 1_000_000.0
OFFERING = "Standard_D4s_v5/1/spot"
LONGEST_S = 4 * 3600.0
POLICIES = read_document(
    "pools: {cpu: {sizes: [Standard_D4s_v5], zones: [1], capacity: spot, max_nodes: 3},"
    " other: {sizes: [Standard_D8s_v5], zones: [1], capacity: spot, max_nodes: 3}}",
    ClusterFacts(),
)


def refused(before: Refusal | None, now: float) -> Refusal:
    return after_refusal(before, OFFERING, now + LONGEST_S, "sold out", now)


def test_each_refusal_in_a_row_closes_for_twice_as_long_up_to_what_the_answer_is_good_for() -> None:
    known, now, closed = None, NOW, []
    for _ in range(9):
        known = refused(known, now)
        closed.append(known.until - now)
        now = known.until
    assert closed == [180, 360, 720, 1440, 2880, 5760, 11_520, 14_400, 14_400]
    assert known is not None
    assert known.tries == 9


def test_an_answer_that_is_good_for_seconds_only_closes_for_seconds() -> None:
    assert after_refusal(None, OFFERING, NOW + 5.0, "busy", NOW).until == NOW + 5.0


def test_many_machines_that_are_refused_at_once_are_one_refusal() -> None:
    first = refused(None, NOW)
    assert refused(first, NOW) == refused(first, NOW + 100.0) == first


def test_a_row_is_forgotten_after_as_long_as_its_last_refusal_closed_it_and_an_hour_at_least() -> None:
    first = refused(None, NOW)
    assert refused(first, first.until + FORGOTTEN_S).tries == 2
    assert refused(first, first.until + FORGOTTEN_S + 1.0).tries == 1


@given(st.lists(st.floats(0.0, 50_000.0), max_size=20))
def test_however_refusals_come_none_closes_for_longer_than_twice_the_one_before(gaps: list[float]) -> None:
    known, now, closed = None, NOW, []
    for gap in gaps:
        now = now + gap
        if known is None or now >= known.until:
            known = refused(known, now)
            closed.append(known.until - known.at)
    # Differences of times of this size are exact to a ten-thousandth.
    assert all(FIRST_S - 1e-4 <= one <= LONGEST_S + 1e-4 for one in closed)
    assert all(after <= 2 * before + 1e-4 for before, after in pairwise(closed))


def node(created_at: float, **fields: object) -> NodeView:
    return NodeView(id=f"node_{created_at}", pool="cpu", created_at=created_at, offering=OFFERING, **fields)  # type: ignore[arg-type]


def test_a_newer_machine_that_has_joined_ends_the_row() -> None:
    known = [refused(refused(None, NOW), NOW + 180.0)]
    older = node(NOW, state=NodeState.READY, ready_at=NOW + 500.0)
    assert made_good(known, [older, node(NOW + 600.0, state=NodeState.LAUNCHED)]) == known
    (after,) = made_good(known, [node(NOW + 600.0, state=NodeState.READY, ready_at=NOW + 700.0)])
    assert refused(after, after.until).until - after.until == FIRST_S


def test_who_reopens_a_pool_takes_back_what_it_was_refused_before_and_nothing_else() -> None:
    known = [refused(None, NOW)]
    sizes = {OFFERING: "Standard_D4s_v5"}
    assert taken_back(known, POLICIES, {"other": NOW + 1.0, "gone": NOW + 1.0}, sizes) == known
    assert taken_back(known, POLICIES, {"cpu": NOW - 1.0}, sizes) == known
    (after,) = taken_back(known, POLICIES, {"cpu": NOW + 1.0}, sizes)
    assert after.until == NOW + 1.0
    assert taken_back([after], POLICIES, {"cpu": NOW + 1.0}, sizes) == [after], "once"
    assert refused(after, NOW + 2.0).until == NOW + 2.0 + FIRST_S


def test_who_reopens_a_pool_takes_back_what_failed_there_too() -> None:
    failed = [
        node(
            NOW + number,
            state=NodeState.FAILED,
            is_failure=True,
            had_machine=True,
            leaving_since=NOW + 1000.0 + number,
        )
        for number in range(STRIKES)
    ]
    now = NOW + 1100.0
    view = ClusterView(now=now, nodes=tuple(failed))
    assert OFFERING in closed_offerings(view, "cpu", 600.0, now)
    reopened = ClusterView(now=now, nodes=tuple(failed), reopened={"cpu": now})
    assert closed_offerings(reopened, "cpu", 600.0, now) == {}
    assert launch_not_before(reopened, "cpu", now) == float("-inf")
