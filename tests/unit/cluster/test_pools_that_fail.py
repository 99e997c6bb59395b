"""A pool whose machines never join or are sick buys few, at ever longer intervals, or something else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cluster.policies.offerings import CapacityType, Offering
from cluster.policies.policies import Policies
from cluster.scheduling.actions import Launch, Plan, Wait
from cluster.scheduling.health import (
    FIRST_CLOSED_S,
    LONGEST_CLOSED_S,
    PROVEN_S,
    SICK_AT_FIRST_S,
    SILENT_S,
    join_limit_s,
    remembered_s,
)
from cluster.scheduling.planner import plan
from cluster.scheduling.view import ENDED, ClusterView, NodeView
from remora.states import NodeState
from tests.unit.cluster.planner_worlds import NOW, done, job, node, offering

FIRST, SECOND = offering("a", "1"), offering("a", "2")
BOOT_S = 60.0
#: What a node has to join, and what one was given at most that did not.
JOIN_S, FAILED_AFTER_S = 50.0, 210.0
NEVER = float("inf")
LOST = {"provided": False, "is_running": False, "is_member": False}


def rules(**pool: Any) -> Policies:
    return Policies.model_validate({"pools": {"p": {"sizes": ["a"], "zones": ["1", "2"], **pool}}})


class Cloud:
    """Sells machines that never join, or are sick some time after they were ready, and a job that wants eight."""

    def __init__(
        self,
        policies: Policies,
        sick_after_s: dict[str, float | None],
        *,
        boot_s: float = BOOT_S,
        **sold: Any,
    ) -> None:
        """For how long each offering's machines are well; None: they never join.  `sold` changes the offerings."""
        self._boot_s = boot_s
        self.policies = policies
        self.now = NOW
        self.launches = 0
        self._sick_after_s = sick_after_s
        self._ended_at: dict[str, float] = {}
        self.sold = tuple(replace(one, **sold) for one in (FIRST, SECOND) if one.id in sick_after_s)
        self.view = ClusterView(jobs=(job(workers=8),), offerings=self.sold)

    def run(self, hours: float, step_s: float = 30.0) -> Plan:
        """Let so much time pass, with a plan at each step; the last plan."""
        end, actions = self.now + hours * 3600.0, ()
        while self.now < end:
            self.now += step_s
            nodes = [seen for one in self.view.nodes if not self._is_forgotten(seen := self._on(one))]
            actions = plan(replace(self.view, now=self.now, nodes=tuple(nodes)), self.policies, self.now)
            made = done(replace(self.view, nodes=tuple(nodes)), actions, self.now).nodes
            self.view = replace(self.view, nodes=(*made[: len(nodes)], *map(self._named, made[len(nodes) :])))
        return actions

    @property
    def ready(self) -> list[NodeView]:
        return [one for one in self.view.nodes if one.state is NodeState.READY]

    def _named(self, one: NodeView) -> NodeView:
        self.launches += 1
        there = {"state": NodeState.LAUNCHED, "provided": True, "is_running": True}
        return replace(one, id=f"n{self.launches}", **there)

    def _on(self, one: NodeView) -> NodeView:
        """The node a step later."""
        after_s = self._sick_after_s[one.offering]
        match one.state:
            case NodeState.LAUNCHED if after_s is not None and self.now - one.created_at >= self._boot_s:
                return replace(one, state=NodeState.READY, ready_at=self.now, is_member=True)
            case NodeState.READY if after_s is not None and self.now - (one.ready_at or 0.0) >= after_s:
                sick = {"sick_since": self.now, "deadline_at": self.now + 600.0}
                return replace(one, state=NodeState.DRAINING, **sick)
            case NodeState.DRAINING:
                return replace(one, is_member=False)
            case NodeState.TERMINATING:
                self._ended_at[one.id] = self.now
                return replace(one, state=NodeState.FAILED if one.is_failure else NodeState.GONE, **LOST)
        return one

    def _is_forgotten(self, one: NodeView) -> bool:
        is_bad = one.state is NodeState.FAILED or one.sick_since is not None
        memory_s = remembered_s(self.policies) if is_bad else 900.0
        return one.state in ENDED and self.now - self._ended_at[one.id] > memory_s


@pytest.mark.parametrize(
    ("sick_after_s", "pool", "at_most"),
    [
        (0.0, {}, 8 + 6),
        (PROVEN_S - 30.0, {}, 8 + 6),
        (SICK_AT_FIRST_S / 3, {}, 8 + 6),
        (SICK_AT_FIRST_S, {}, 8 + 6),
        (None, {}, 8 + 6),
        (None, {"join_timeout_s": "25m"}, 8 + 6),
        (None, {"join_timeout_s": "1h"}, 8 + 4),
    ],
)
def test_in_six_hours_few_machines_are_bought_that_are_of_no_use(
    sick_after_s: float | None, pool: dict[str, Any], at_most: int
) -> None:
    cloud = Cloud(rules(**pool), {FIRST.id: sick_after_s})
    (said,) = {one.reason for one in cloud.run(hours=6) if isinstance(one, Wait) and one.job_id}
    assert 8 < cloud.launches <= at_most
    assert "is not tried before" in said or "failed at first" in said or "starting" in said


@pytest.mark.parametrize("price", [0.0, 2.0])
@pytest.mark.parametrize("boot_s", [1.2 * 900, 1.9 * 900, 2.1 * 900, 3.8 * 900])
def test_machines_that_boot_slowly_are_waited_for_longer_and_not_bought_in_a_circle(
    boot_s: float, price: float
) -> None:
    cloud = Cloud(rules(), {FIRST.id: NEVER}, boot_s=boot_s, price_per_hour=price)
    cloud.run(hours=6)
    assert len(cloud.ready) == 8
    assert cloud.launches <= 8 + 2 + 8, "all at once, one with each longer patience, and those that stay"
    before = cloud.launches
    cloud.run(hours=6)
    assert cloud.launches == before


def test_a_node_is_waited_for_as_long_as_others_took_and_each_try_for_twice_as_long() -> None:
    def limit_s(*others: NodeView, created_at: float = NOW) -> float:
        mine = node("mine", state=NodeState.LAUNCHED, created_at=created_at)
        return join_limit_s(ClusterView(nodes=(mine, *others)), mine, 100.0, NOW)

    def joined(took_s: float, at: float) -> NodeView:
        return node(f"j{at}", state=NodeState.READY, created_at=NOW - at, ready_at=NOW - at + took_s)

    def late(at_s: float, lived_s: float = 100.0) -> NodeView:
        return failed(f"f{at_s}", at_s, created_at=NOW - at_s - lived_s)

    assert limit_s() == 100.0
    assert limit_s(joined(40.0, 900.0)) == 100.0
    assert limit_s(joined(90.0, 900.0)) == 180.0
    assert limit_s(joined(900.0, 900.0)) == 400.0, "never for longer than four times as long"
    assert limit_s(late(1000.0), late(1010.0), late(1020.0)) == 200.0, "one try of three nodes"
    assert limit_s(late(1000.0), late(500.0)) == 400.0
    assert limit_s(late(1000.0), late(700.0), late(400.0), late(200.0)) == 400.0
    assert limit_s(late(1000.0), created_at=NOW - 1050.0) == 100.0, "what was made before has its own time"
    assert limit_s(late(1000.0, lived_s=20.0)) == 100.0, "it went by itself"
    assert limit_s(late(1000.0), joined(40.0, 800.0)) == 100.0, "one that joined has made it good"
    newest = [joined(40.0, 900.0 - number) for number in range(5)]
    assert limit_s(joined(150.0, 5000.0), *newest) == 100.0, "what was slow long ago is forgotten"
    sick = failed("sick", 1000.0, created_at=NOW - 1200.0, ready_at=NOW - 1150.0, sick_since=NOW - 1000.0)
    assert limit_s(sick) == 100.0, "one that was sick had joined in time"


def test_what_fails_again_and_again_gives_way_to_another_offering_and_the_pool_says_why() -> None:
    cloud = Cloud(rules(), {FIRST.id: 0.0, SECOND.id: NEVER})
    actions = cloud.run(hours=0.5)
    assert {one.offering for one in cloud.ready} == {SECOND.id}
    assert len(cloud.ready) == 8
    assert cloud.launches == 16
    (said,) = [one.reason for one in actions if isinstance(one, Wait) and one.pool == "p"]
    assert said.startswith("spot a in zone 1 is not tried before ")
    assert said.endswith(", as its last nodes in pool 'p' did not join or were sick")


def test_a_group_that_was_sick_once_is_whole_again_within_minutes() -> None:
    ills = {FIRST.id: 0.0, SECOND.id: NEVER}
    cloud = Cloud(rules(), ills)
    cloud.run(hours=0.05)
    ills[FIRST.id] = NEVER
    cloud.run(hours=0.2)
    assert len(cloud.ready) == 8


def failed(name: str, at_s: float, **changes: Any) -> NodeView:
    """A node that was requested a minute before it failed, that number of seconds ago."""
    fields = {"state": NodeState.FAILED, "leaving_since": NOW - at_s, "offering": FIRST.id, **LOST}
    return node(name, **{**fields, "created_at": NOW - at_s - FAILED_AFTER_S, **changes})


def bought(*nodes: NodeView, sold: Offering = FIRST, workers: int = 1, **pool: Any) -> int:
    others = tuple(job(name, is_running=True) for one in nodes for name in one.jobs)
    asked = ClusterView(jobs=(job(workers=workers), *others), nodes=nodes, offerings=(sold,))
    policies = rules(max_nodes=50, join_timeout_s=JOIN_S, **pool)
    return sum(isinstance(one, Launch) for one in plan(asked, policies, NOW))


def three(at_s: float, **changes: Any) -> tuple[NodeView, ...]:
    return tuple(failed(f"{at_s:.0f}-{at}", at_s, **changes) for at in range(3))


def test_the_third_failure_in_a_row_closes_an_offering_and_each_later_one_for_twice_as_long() -> None:
    assert bought(*three(300)[:2]) == 1
    assert bought(*three(300)) == 0
    assert bought(*three(FIRST_CLOSED_S)) == 1
    again = failed("again", 2 * FIRST_CLOSED_S - 1)
    assert bought(*three(4 * FIRST_CLOSED_S), again) == 0
    assert bought(*three(4 * FIRST_CLOSED_S), replace(again, leaving_since=NOW - 2 * FIRST_CLOSED_S)) == 1
    often = [failed(f"n{at}", at * LONGEST_CLOSED_S + 1) for at in range(1, 9)]
    assert bought(*often) == 1, "never for longer than two hours"


def test_failures_of_one_wave_close_an_offering_once() -> None:
    wave = [failed(f"n{at}", 2000 - at, created_at=NOW - 2900) for at in range(20)]
    assert bought(*wave) == 1
    assert bought(*wave, failed("later", 1700, created_at=NOW - 1960)) == 0, "that was a try after it"


def test_what_worked_since_or_lies_far_back_counts_no_more() -> None:
    works = node("w", offering=FIRST.id, created_at=NOW - 100, bought_for="other", jobs={"other": 1})
    assert bought(*three(300), works) == 1
    assert bought(*three(300), replace(works, created_at=NOW - 1000)) == 0, "older than the failures"
    long_ago = three(2 * LONGEST_CLOSED_S + FIRST_CLOSED_S)
    assert bought(*long_ago, failed("now", 300)) == 1, "the first of a new row"


def test_what_worked_since_counts_also_when_it_was_returned_meanwhile() -> None:
    returned = failed(
        "w", 60.0, state=NodeState.GONE, created_at=NOW - 3000, ready_at=NOW - 2900, bought_for="other"
    )
    assert bought(*three(3600), returned, workers=2) == 2
    assert bought(*three(300), returned, workers=2) == 0, "older than the failures"
    assert bought(*three(3600), replace(returned, is_failure=True), workers=2) == 1
    assert bought(*three(3600), replace(returned, ready_at=None), workers=2) == 1, "it never came"


def test_only_machines_that_cost_money_are_a_reason_to_close_an_offering() -> None:
    free = replace(FIRST, price_per_hour=0.0)
    assert bought(*three(300), sold=free) == 1
    assert bought(*three(300, had_machine=False)) == 1, "the cloud refused them, which costs nothing"


def test_spot_that_the_cloud_takes_while_it_boots_is_no_reason_to_close_an_offering() -> None:
    taken = {"created_at": NOW - 300 - JOIN_S}
    assert bought(*three(300, **taken)) == 1
    assert bought(*three(300, created_at=NOW - 301 - JOIN_S)) == 0, "they had their time, and did not join"
    on_demand = offering("a", "1", CapacityType.ON_DEMAND)
    lost = three(300, offering=on_demand.id, **taken)
    assert bought(*lost[:2], sold=on_demand, capacity="on-demand") == 1
    assert bought(*lost, sold=on_demand, capacity="on-demand") == 0, "no cloud takes those back"
    goes = failed("g", 0.0, state=NodeState.LAUNCHED, created_at=NOW - JOIN_S, leaving_since=None)
    assert bought(*three(300)[:2], goes) == 1
    assert bought(*three(300)[:2], replace(goes, created_at=NOW - 2 * JOIN_S)) == 1, "it had twice as long"
    assert bought(*three(300)[:2], replace(goes, created_at=NOW - 2 * JOIN_S - 1)) == 0


def sick(name: str, after_s: float, at_s: float = 300.0, **changes: Any) -> NodeView:
    """A node that was found sick so long after it was ready, that number of seconds ago."""
    times = {"ready_at": NOW - at_s - after_s, "created_at": NOW - at_s - after_s - 60.0}
    return failed(name, at_s, **{"state": NodeState.GONE, "sick_since": NOW - at_s, **times, **changes})


def test_a_node_that_was_sick_early_failed_and_one_that_was_of_use_did_not() -> None:
    early, late = (
        [sick(f"n{at}", after_s) for at in range(3)] for after_s in (SICK_AT_FIRST_S, SICK_AT_FIRST_S + 1)
    )
    assert bought(*early) == 0
    assert bought(*late) == 1
    assert bought(*early[:1], workers=2) == 1, "one is tried at a time"
    assert bought(*late[:1], workers=2) == 2
    there = {"provided": True, "is_running": True, "is_member": True}
    drains = {"state": NodeState.DRAINING, "deadline_at": NOW + 300, "leaving_since": None, **there}
    assert bought(sick("d", 0.0, **drains), workers=2) == 1, "it counts as soon as it leaves"


def test_after_sick_nodes_the_next_one_has_to_prove_itself() -> None:
    def there(for_s: float) -> NodeView:
        busy = {"jobs": {"other": 1}, "bought_for": "other", "offering": FIRST.id}
        return node("t", ready_at=NOW - for_s, created_at=NOW - 200, **busy)

    assert bought(sick("s", 0.0), there(PROVEN_S - 1), workers=2) == 0, "that is the one try"
    assert bought(sick("s", 0.0), there(PROVEN_S), workers=2) == 2
    assert bought(sick("s", 60.0), there(PROVEN_S + 59), workers=2) == 0, (
        "that one was well for a minute, too"
    )
    assert bought(failed("f", 300.0), there(0.0), workers=2) == 2, (
        "who did not join has said nothing about sickness"
    )


def test_a_sickness_overcome_hours_ago_does_not_slow_a_pool_down_after_a_failed_start() -> None:
    hour_s = 3600.0
    long_ago = sick("s", 25 * 60.0, at_s=5 * hour_s)
    well = [
        node(
            f"w{at}",
            created_at=NOW - 4 * hour_s - 60.0,
            ready_at=NOW - 4 * hour_s,
            jobs={"other": 1},
            offering=FIRST.id,
        )
        for at in range(20)
    ]
    not_joined = failed("f", 5 * 60.0, created_at=NOW - 20 * 60.0)
    busy = {"jobs": {"other": 1}, "bought_for": "other", "offering": FIRST.id}
    next_try = node("t", created_at=NOW - 260.0, ready_at=NOW - 200.0, **busy)
    assert bought(long_ago, *well, not_joined, next_try, workers=8) == 8
    assert bought(long_ago, *well, not_joined, workers=8) == 1, "one is tried until one has joined"
    new = sick("n", 0.0, at_s=100.0)
    assert bought(long_ago, *well, new, workers=8) == 1, "no newer one has proved itself"
    again = node("t", created_at=NOW - 150.0, ready_at=NOW - PROVEN_S, **busy)
    assert bought(long_ago, *well, new, again, workers=8) == 8, "only what is not overcome counts"


def test_a_sick_machine_says_nothing_about_its_zone() -> None:
    asked = ClusterView(jobs=(job(),), nodes=(sick("s", 0.0),), offerings=(FIRST, SECOND))
    (launch,) = [one for one in plan(asked, rules(), NOW) if isinstance(one, Launch)]
    assert launch.offering == FIRST.id
    asked = replace(asked, nodes=(failed("f", 300.0),))
    (launch,) = [one for one in plan(asked, rules(), NOW) if isinstance(one, Launch)]
    assert launch.offering == SECOND.id


def test_a_zone_is_tried_again_after_a_quarter_of_an_hour() -> None:
    for ago_s, tried in ((SILENT_S, SECOND), (SILENT_S + 1.0, FIRST)):
        asked = ClusterView(jobs=(job(),), nodes=(failed("f", ago_s),), offerings=(FIRST, SECOND))
        (launch,) = [one for one in plan(asked, rules(), NOW) if isinstance(one, Launch)]
        assert launch.offering == tried.id


def test_failures_are_remembered_for_longer_than_two_tries_take() -> None:
    assert remembered_s(rules(join_timeout_s="20h")) > 2 * 20 * 3600 + 120
    assert remembered_s(Policies()) > LONGEST_CLOSED_S
