"""The controller buys nodes for the jobs that there are, under the policies, and gives them back."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from cluster.policies.policies import BudgetStep
from cluster.provider import (
    InsufficientCapacity,
    NodeRequest,
    ProviderError,
    QuotaExceeded,
    Throttled,
    Unanswered,
)
from cluster.ray.heartbeats import AgentStatus, Heartbeat
from cluster.scheduling import installed_rules
from cluster.scheduling.formatting import clock
from cluster.scheduling.money import MEANING
from cluster.scheduling.shares import Shares, shares_of
from remora.spec.spec import JobSpec
from remora.states import EndReason, JobState, NodeState
from service.api.projects_in_use import InUse, in_use
from service.loops import workload
from service.policies_in_force import policies_in_force
from service.queue.bill import Charge, Payer, Purpose, charges
from service.queue.demand import demand_of
from service.queue.ledger import UseRow
from service.settings import Settings
from service.store import costs, job_history, ledger, policies, spending, waits
from service.store import nodes as node_store
from service.store.database import Database
from service.store.nodes import page_of_node_events
from service.store.totals import NodeLosses, Totals, totals
from service.store.trace_history import history_since
from tests.contracts.service.buying import (
    DAY_S,
    DOCUMENT,
    MIXED,
    ON_DEMAND,
    OTHER_SPOT,
    SOLD,
    SPOT,
    STEPS,
    apply,
    buying_world,
    in_steps,
    living,
    reported_budget,
    running_on,
    train,
)
from tests.service_fakes import World

pytestmark = pytest.mark.postgresql_in_soak


@pytest.fixture
def world(database: Database, tmp_path: Path) -> World:
    return buying_world(database, Settings(home=tmp_path, nodes=0, lease_s=5.0))


def spec(**fields: object) -> dict[str, object]:
    """A specification as the service stores it."""
    return JobSpec.from_mapping({"command": "python train.py", **fields}).to_mapping()


def bought(world: World) -> list[str]:
    return sorted(node.offering for node in living(world))


def test_nodes_are_bought_for_jobs_and_for_nothing_else(world: World) -> None:
    world.tick(3)
    assert world.nodes() == []
    job_id = world.submit(max_workers=2)
    world.tick(3)
    assert bought(world) == [SPOT, SPOT]
    assert {node.bought_for for node in living(world)} == {job_id}
    assert {node.price_per_hour for node in living(world)} == {0.04}
    assert world.job(job_id).state is JobState.ADMITTED


def test_one_plan_buys_for_all_jobs_of_a_burst(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan is shown some of the waiting jobs at first, and more as long as all of them have their nodes."""
    monkeypatch.setattr(workload, "WINDOW", 2)
    pace = "    grow_per_minute: 6000\n"
    apply(world, DOCUMENT.format(max_nodes=50) + pace)
    waiting = [world.submit() for _ in range(30)]
    world.cluster.joins = False
    world.tick()
    assert {node.bought_for for node in living(world)} == set(waiting)
    apply(world, DOCUMENT.format(max_nodes=30) + pace)
    behind = world.submit()
    world.tick()
    assert behind not in {node.bought_for for node in living(world)}, "the pool is complete"


def test_what_is_sold_out_is_not_asked_for_again_and_the_next_is_bought_within_two_ticks(
    world: World,
) -> None:
    said = InsufficientCapacity("zone 1 has none of it", offering=SPOT, until=world.now + 600.0)
    world.cluster.refusals.append(said)
    world.submit()
    world.tick(2)
    assert bought(world) == [OTHER_SPOT]
    refused = [node for node in world.nodes() if node.ended_at is not None]
    assert [(node.offering, node.message) for node in refused] == [(SPOT, "zone 1 has none of it")]
    # Another process takes over, and knows it too.
    world.controller.resign()
    world.controller = world.new_controller()
    world.submit()
    world.tick(2)
    assert bought(world) == [OTHER_SPOT, OTHER_SPOT]


def test_what_the_cloud_refuses_only_later_counts_as_well(world: World) -> None:
    world.cluster.joins = False
    world.submit()
    world.tick()
    (node,) = living(world)
    said = InsufficientCapacity("zone 1 has none of it", offering=SPOT, until=world.now + 600.0)
    world.cluster.refuse_later(node.id, said)
    world.tick(3)
    assert bought(world) == [OTHER_SPOT]


def test_on_demand_stands_in_once_spot_was_waited_for(world: World) -> None:
    for offering in (SPOT, OTHER_SPOT):
        world.cluster.refusals.append(
            InsufficientCapacity("none of it", offering=offering, until=world.now + 600.0)
        )
    job_id = world.submit()
    world.tick(4)
    assert living(world) == []
    assert "on-demand is bought only after 20 s" in str(world.job(job_id).message)
    world.now += 20.0
    world.tick(2)
    assert bought(world) == [ON_DEMAND]


def test_nodes_are_bought_where_the_job_wants_them(world: World) -> None:
    placement = {"pools": ["cpu"], "zones": ["2"], "capacity": "on-demand"}
    job_id = world.submit(spec=spec(placement=placement))
    lost = world.submit(spec=spec(placement={"pools": ["gpu"]}))
    world.tick(3)
    assert bought(world) == ["Standard_D4s_v5/2/on-demand"]
    plan = world.launcher.driver_of(job_id).plan
    assert plan.labels == {
        "remora-pool": ("cpu",), "remora-zone": ("2",), "remora-capacity": ("on-demand",)
    }  # fmt: skip
    (request,) = world.cluster.requests
    assert request.labels == {"remora-zone": "2", "remora-capacity": "on-demand"}
    assert "there is no pool gpu" in str(world.job(lost).message)


def test_the_ledger_says_what_a_job_has_cost_and_its_budget_ends_it(world: World) -> None:
    job_id = world.submit(min_workers=1, max_workers=2, spec=spec(limits={"budget": 0.1}))
    for _ in world.ticks_until("the job starts"):
        ready = [node for node in living(world) if node.state is NodeState.READY]
        if len(ready) == 2 and world.job(job_id).state is JobState.ADMITTED:
            break
    train(world, job_id)
    began_at = world.now
    world.now += 3600.0
    world.tick()

    def uses() -> list[UseRow]:
        return world.database.query(lambda connection: ledger.uses_of(connection, job_id))

    assert [(use.began_at, use.ended_at, use.workers) for use in uses()] == [(began_at, None, 1)] * 2
    assert sum(use.cost(began_at + 3600.0) for use in uses()) == pytest.approx(0.08)
    assert world.job(job_id).state is JobState.RUNNING
    world.now += 1000.0
    world.tick(3)
    (driver,) = world.launcher.history
    assert driver.stop_reason is EndReason.BUDGET_SPENT
    ended = world.job(job_id)
    assert (ended.state, ended.reason) == (JobState.FAILED, "budget_spent")
    assert ended.message == "it has spent limits.budget (0.10 USD)"
    cost = sum(use.cost(world.now) for use in uses())
    world.now += 9999.0
    assert sum(use.cost(world.now) for use in uses()) == cost, "who is gone pays no more"


def test_a_node_bought_at_an_assumed_price_gets_the_price_that_is_read_while_it_runs(world: World) -> None:
    world.supply.sold = tuple(replace(one, is_price_assumed=True) for one in SOLD)
    job_id = running_on(world, 1)
    (node,) = living(world)
    assert (node.price_per_hour, node.is_price_assumed) == (0.04, True)
    world.supply.sold = tuple(replace(one, price_per_hour=0.01) for one in SOLD)
    world.now += 3600.0
    world.tick()
    (node,) = living(world)
    assert (node.price_per_hour, node.is_price_assumed) == (0.01, False)
    (event,) = [
        one
        for one in world.database.query(lambda c: page_of_node_events(c, node.id, 0, 100))
        if one.kind == "node.priced"
    ]
    assert event.message == "its price was read: 0.0100 USD an hour; 0.0400 USD had been assumed"
    spent = world.database.query(lambda c: ledger.spent(c, [job_id], world.now))
    assert spent[job_id] == pytest.approx(0.01, rel=0.01), "all of its time"
    world.supply.sold = SOLD
    world.tick()
    assert living(world)[0].price_per_hour == 0.01, "a price that was read stays"


def test_every_second_that_the_cloud_bills_has_a_payer(world: World) -> None:
    began_at = world.now
    job_id = world.submit(min_workers=1, max_workers=2)
    for _ in world.ticks_until("the job starts"):
        if world.job(job_id).state is JobState.ADMITTED:
            break
    train(world, job_id)
    world.now += 3600.0
    world.launcher.driver_of(job_id).report("ended", end_reason="completed", message="", exit_code=0)
    for _ in world.ticks_until("its nodes were returned"):
        if not living(world):
            break
    nodes = world.nodes()
    assert len(nodes) == 2
    billed = sum(
        one.price_per_hour / 3600.0 * ((one.ended_at or 0.0) - (one.launched_at or 0.0)) for one in nodes
    )

    def account(connection: sa.Connection) -> list[Charge]:
        rows = costs.rows_between(connection, began_at, world.now)
        return charges(rows.nodes.values(), rows.uses, rows.projects, began_at, world.now)

    found = world.database.query(account)
    assert sum(one.cost for one in found) == pytest.approx(billed)
    payers = {(one.payer, one.name, one.purpose) for one in found}
    project = world.job(job_id).project
    assert payers == {
        (Payer.JOB, job_id, Purpose.START_UP),
        (Payer.JOB, job_id, Purpose.WORK),
        (Payer.PROJECT, project, Purpose.IDLE),
    }
    (spending_now, _) = world.database.query(lambda connection: spending.spent(connection, world.now))
    assert spending_now.this_month == pytest.approx(billed), "budgets count what is billed"


def test_a_job_that_has_spent_its_budget_does_not_wait_for_another_attempt(world: World) -> None:
    job_id = world.submit(min_workers=1, max_workers=1, spec=spec(limits={"budget": 0.01}))
    for _ in world.ticks_until("the job starts"):
        if world.job(job_id).state is JobState.ADMITTED:
            break
    train(world, job_id)
    driver = world.launcher.driver_of(job_id)
    world.now += 1000.0  # at 0.04 USD an hour
    driver.report("ended", end_reason="node_lost", message="all nodes are gone", exit_code=None)
    for _ in world.ticks_until("the job ends"):
        if world.job(job_id).state.is_terminal:
            break
    assert (world.job(job_id).state, world.job(job_id).reason) == (JobState.FAILED, "budget_spent")
    assert len(world.attempts(job_id)) == 1


def test_a_zone_from_which_the_head_cannot_be_reached_is_left_for_another(world: World) -> None:
    apply(world, DOCUMENT.format(max_nodes=1).replace("idle_s: 30", "idle_s: 30\n    join_timeout_s: 60"))
    world.cluster.cut_off = {"1"}
    job_id = world.submit()
    world.tick(3)
    assert bought(world) == [SPOT]
    assert world.job(job_id).state is JobState.QUEUED
    world.now += 61.0
    for _ in world.ticks_until("the job starts"):
        if world.job(job_id).state is JobState.ADMITTED:
            break
    assert bought(world) == [OTHER_SPOT]
    failed = [node for node in world.nodes() if node.ended_at is not None]
    assert [(node.offering, node.state, node.message) for node in failed] == [
        (SPOT, NodeState.FAILED, "it did not join the Ray cluster within 60 s")
    ]
    assert len(world.cluster.machines) == 1, "the machine that never joined was deleted"


def test_a_zone_that_loses_the_head_is_left_at_once(world: World) -> None:
    world.submit(min_workers=2, max_workers=2)
    world.tick(3)
    assert [(node.offering, node.state) for node in living(world)] == [(SPOT, NodeState.READY)] * 2
    world.cluster.cut_off = {"1"}
    world.tick()
    staying = [node.offering for node in living(world) if node.leaving_since is None]
    assert staying == [OTHER_SPOT] * 2, "no job waits for machines that cannot join either"
    world.cluster.cut_off = set()
    world.tick(3)
    assert [(node.offering, node.state) for node in living(world)] == [(OTHER_SPOT, NodeState.READY)] * 2


def test_a_pool_that_has_worked_since_is_not_slowed_down_by_what_failed_before(world: World) -> None:
    apply(world, DOCUMENT.format(max_nodes=3).replace("idle_s: 30", "idle_s: 30\n    join_timeout_s: 60"))
    world.cluster.joins = False
    job_id = world.submit()
    for _ in world.ticks_until("two machines have not joined"):
        world.now += 30.0
        if [node.state for node in world.nodes()].count(NodeState.FAILED) == 2:
            break
    world.cluster.joins = True
    for _ in world.ticks_until("the job starts"):
        world.now += 5.0
        if world.job(job_id).state is JobState.ADMITTED:
            break
    train(world, job_id)
    world.launcher.driver_of(job_id).report("ended", end_reason="completed", message="", exit_code=0)
    for _ in world.ticks_until("its node is returned"):
        world.now += 10.0
        if not living(world):
            break
    world.now += 1000.0  # more than what has ended is remembered for the paces of the pool
    world.submit(min_workers=3, max_workers=3)
    world.tick()
    assert len(bought(world)) == 3


def test_machines_that_are_sick_are_not_bought_again_and_again(world: World) -> None:
    sick = AgentStatus(heartbeat=Heartbeat(at=1.0, leaves="this machine is sick: XID 79", is_sick=True))
    apply(world, DOCUMENT.format(max_nodes=4).replace("patience_s: 20", "patience_s: 9000"))
    job_id = world.submit(min_workers=3, max_workers=3)
    for _ in world.ticks_until("machines of another zone do the work"):
        world.now += 10.0
        for node in living(world):
            if node.offering == SPOT:
                world.cluster.agents[node.id] = sick
                world.cluster.draining.add(node.id)
        if world.job(job_id).state is JobState.ADMITTED:
            break
    ready = [node for node in living(world) if node.state is NodeState.READY]
    assert [node.offering for node in ready] == [OTHER_SPOT] * 3
    ended = [node for node in world.nodes() if node.ended_at is not None]
    assert [node.offering for node in ended] == [SPOT] * 3
    assert all(node.sick_since is not None and node.launched_at is not None for node in ended)
    # What has ended is not forgotten with the rest.
    world.now += 1000.0
    world.submit(min_workers=1, max_workers=1)
    world.tick()
    assert bought(world) == [OTHER_SPOT] * 4
    (wait,) = world.database.query(lambda connection: waits.all_waits(connection, "default"))
    assert wait.reason.startswith("spot Standard_D4s_v5 in zone 1 is not tried before ")


def test_a_machine_that_joins_after_it_was_given_up_is_drained_to_take_no_work(world: World) -> None:
    apply(world, DOCUMENT.format(max_nodes=1).replace("idle_s: 30", "idle_s: 30\n    join_timeout_s: 60"))
    world.cluster.cut_off = {"1"}
    world.cluster.ends_slowly = True
    world.submit()
    world.tick(3)
    (late,) = living(world)
    world.now += 61.0
    world.tick(3)
    assert bought(world) == [OTHER_SPOT]
    assert world.cluster.drains == {}
    world.cluster.cut_off = set()
    world.tick()
    assert world.cluster.drains == {late.id: world.now}
    assert bought(world) == [OTHER_SPOT], "its row has ended, and stays so"
    world.tick(3)
    assert list(world.cluster.drains) == [late.id], "it is drained once, and no other node is"


def test_projects_share_the_queue_by_their_shares(world: World) -> None:
    apply(world, DOCUMENT.format(max_nodes=3) + "projects:\n  vision: {share: 2}\n  speech: {share: 1}\n")
    first = [world.submit(project="speech") for _ in range(3)]
    later = [world.submit(project="vision") for _ in range(3)]
    for _ in world.ticks_until("three jobs have started"):
        started = [one for one in (*first, *later) if world.job(one).state is not JobState.QUEUED]
        if len(started) == 3:
            break
    assert started == [first[0], *later[:2]]
    assert {node.bought_for for node in living(world)} == set(started)


def test_a_project_that_has_spent_its_day_waits_for_the_next_one_and_others_go_on(world: World) -> None:
    apply(world, DOCUMENT.format(max_nodes=4) + "projects:\n  vision: {usd_per_day: 0.05}\n")
    world.now = 20_000 * DAY_S + 3600.0
    first = world.submit(project="vision")
    world.tick(3)
    train(world, first)
    world.now += 2 * 3600.0
    second, third = world.submit(project="vision", priority=90), world.submit(project="speech")
    world.tick(3)
    assert world.job(third).state is JobState.ADMITTED
    waiting = world.job(second)
    assert (waiting.state, waiting.reason) == (JobState.QUEUED, "waiting_for_quota")
    assert "project 'vision' has spent 0.08 of 0.05 USD of the day" in str(waiting.message)
    assert {node.bought_for for node in living(world)} == {first, third}
    world.now = 20_001 * DAY_S + 1.0
    world.tick(3)
    assert world.job(second).state is JobState.ADMITTED


def test_a_job_says_which_rule_of_the_site_keeps_its_nodes_from_being_launched(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = {"friday": lambda view, launch: "not on Fridays" if view.now == world.now else None}
    monkeypatch.setattr(installed_rules, "_load", rules.__getitem__)
    apply(world, DOCUMENT.format(max_nodes=3) + "rules: [friday]\n")
    job_id = world.submit()
    world.tick(3)
    assert living(world) == []
    reported = "the rule friday lets no node of pool cpu be launched: not on Fridays"
    assert str(world.job(job_id).message).endswith(reported)


def test_a_node_that_no_job_uses_is_returned_and_one_that_works_is_not(world: World) -> None:
    job_id = running_on(world, 2)
    world.now += 100.0
    world.tick()
    assert len(living(world)) == 2
    world.launcher.driver_of(job_id).report("ended", end_reason="completed", message="", exit_code=0)
    world.tick(2)
    assert len(living(world)) == 2, "not at once"
    world.now += 31.0
    world.tick(3)
    assert living(world) == []
    assert world.cluster.machines == {}


def test_only_nodes_that_others_end_are_counted_as_lost(world: World) -> None:
    def counted() -> Totals:
        return world.database.query(lambda connection: totals(connection, world.now))

    running_on(world, 3)
    apply(world, DOCUMENT.format(max_nodes=2))
    for _ in world.ticks_until("the node that is too many has gone"):
        world.now += 31.0
        if len(living(world)) == 2:
            break
    assert counted().node_losses == ()
    first, second = living(world)
    world.cluster.draining.add(first.id)
    world.cluster.notices[first.id] = world.now + 30.0
    world.tick(2)
    world.cluster.lose(first.id)
    world.cluster.lose(second.id)
    world.tick(4)
    assert counted().node_losses == (NodeLosses("spot", True, 1), NodeLosses("spot", False, 1))


def test_what_the_cloud_answers_is_counted_at_once_and_when_it_comes_late(world: World) -> None:
    world.cluster.refusals.append(QuotaExceeded("no more of it", closes=(SPOT,), until=world.now + 600.0))
    world.cluster.joins = False
    world.submit()
    world.tick(2)
    (node,) = living(world)
    world.cluster.refuse_later(
        node.id, InsufficientCapacity("none of it", offering=OTHER_SPOT, until=world.now + 600.0)
    )
    world.tick(4)
    found = world.database.query(lambda connection: totals(connection, world.now))
    assert found.cloud_errors == {"quota": 1, "capacity": 1}


def test_a_node_that_works_and_has_to_go_is_drained_with_a_deadline(world: World) -> None:
    job_id = running_on(world, 2)
    apply(world, DOCUMENT.format(max_nodes=1))
    world.tick()
    (drained,) = [node for node in living(world) if node.state is NodeState.DRAINING]
    assert world.cluster.drains == {drained.id: world.now + 60.0}
    assert drained.message == (
        "pool 'cpu' has 2 nodes, 1 is allowed by max_nodes of the policies;"
        f" what works on it has until {clock(drained.deadline_at or 0.0)}"
    )
    world.tick(3)
    assert len(living(world)) == 2, "its workers still save what they have"
    train(world, job_id)
    world.tick(2)
    (left,) = living(world)
    assert left.id != drained.id


def test_a_drain_that_a_crash_kept_from_ray_is_sent_again(world: World) -> None:
    running_on(world, 2)
    apply(world, DOCUMENT.format(max_nodes=1))
    world.cluster.drain_error = ConnectionError("the head does not answer")
    world.tick()
    assert world.cluster.drains == {}
    world.cluster.drain_error = None
    world.controller.resign()
    world.controller = world.new_controller()
    world.tick()
    assert len(world.cluster.drains) == 1


def test_a_drained_node_whose_workers_do_not_go_ends_at_its_deadline(world: World) -> None:
    running_on(world, 2)
    apply(world, DOCUMENT.format(max_nodes=1))
    world.tick()
    world.now += 61.0
    world.tick(3)
    assert len(living(world)) == 1


def test_what_the_budget_does_to_a_job_is_reported_once(world: World) -> None:
    job_id = running_on(world, 2)
    budget = "budget:\n  usd_per_day: 0.01\n  steps: {stop-growing: 0.5}\n"
    apply(world, DOCUMENT.format(max_nodes=3) + budget)
    # Two nodes for 300 s at 4 cents an hour are two thirds of a cent.
    world.now += 300.0
    world.tick(3)
    events = world.database.query(lambda c: job_history.page_of_events(c, job_id, 0, 1000))
    reported = [event for event in events if event.kind == "job.budget"]
    assert [event.data for event in reported] == [{"step": "stop-growing"}]
    assert "no more nodes are bought" in reported[0].message


def test_a_budget_is_used_up_in_four_steps_and_each_is_reported_to_the_owner(world: World) -> None:
    job_id, stayed = in_steps(world)
    assert stayed == {
        "stop-growing": [ON_DEMAND, SPOT, SPOT],
        "spot-only": [SPOT, SPOT],
        "shrink": [SPOT],
        "pause": [],
    }
    assert reported_budget(world, job_id) == [(step.value, MEANING[step]) for step in BudgetStep]
    world.now += 600.0
    world.tick(3)
    assert living(world) == [], "it holds although nothing is spent any more"
    assert len(reported_budget(world, job_id)) == 4


def test_a_budget_that_is_used_up_by_nodes_without_jobs_stays_used_up(world: World) -> None:
    warm = DOCUMENT.format(max_nodes=24).replace("max_nodes", "min_nodes: 24\n    max_nodes")
    apply(world, f"{warm}budget: {{usd_per_day: 0.4}}\n")
    for _ in world.ticks_until("there is no money left"):
        world.now += 30.0
        if world.cluster.created and not living(world):
            break
    made = list(world.cluster.created)
    assert len(made) == 24
    world.now += 600.0
    world.tick(3)
    assert world.cluster.created == made, "less was spent than was thought, but the day is not over"
    world.now += DAY_S
    world.tick(3)
    assert bought(world) != []


def test_a_budget_that_is_raised_counts_at_once_and_is_reported_to_owners(world: World) -> None:
    job_id, _ = in_steps(world)
    world.now += 61.0
    world.tick(3)
    # Another version with the same budget changes nothing.
    apply(world, MIXED.replace("idle_s: 30", "idle_s: 40") + STEPS.format(usd=0.2))
    world.tick(3)
    assert living(world) == []
    apply(world, MIXED + STEPS.format(usd=20))
    world.tick(3)
    assert reported_budget(world, job_id)[4:] == [(None, "the cluster's budget allows it again")]
    assert bought(world) != []


def test_the_quota_that_is_left_is_not_exceeded(world: World) -> None:
    world.supply.left = {"lowprioritycores": 4, "standarddsv5family": 0}
    job_id = world.submit(max_workers=3)
    world.tick()
    assert bought(world) == [SPOT]
    world.supply.left["lowprioritycores"] = 0
    world.tick(2)
    assert bought(world) == [SPOT]
    assert world.job(job_id).state is JobState.ADMITTED


def test_what_the_cloud_sells_is_recorded_for_the_api_and_again_when_it_changes(world: World) -> None:
    def recorded() -> list[dict[str, Any]]:
        events = world.database.query(lambda c: policies.page_of_cluster_events(c, after=0, limit=100))
        return [event.data["offerings"] for event in events if event.kind == "offerings.read"]

    world.tick(3)
    (first,) = recorded()
    assert [one["offering"] for one in first] == sorted(one["offering"] for one in first)
    assert SPOT in [one["offering"] for one in first]
    _, market = world.database.query(lambda c: policies.newest_market(c, "default"))
    sold = {one.id: one for one in world.supply.sold}
    assert {one.id: one.price_per_hour for one in market} == {
        one["offering"]: sold[one["offering"]].price_per_hour for one in first
    }
    # The same at a price that is assumed is no news, another price is.
    world.supply.sold = tuple(
        replace(one, is_price_assumed=True, price_per_hour=9.0) for one in sold.values()
    )
    world.tick(2)
    assert len(recorded()) == 1
    world.supply.sold = tuple(replace(one, price_per_hour=9.0) for one in sold.values())
    world.tick(2)
    assert [one["price_per_hour"] for one in recorded()[1]] == [9.0] * len(first)


def test_what_a_project_holds_is_shown_by_what_the_queue_orders_by(world: World) -> None:
    apply(world, DOCUMENT.format(max_nodes=4) + "projects: {vision: {share: 2}}\n")
    job_id = world.submit(project="vision", max_workers=2)
    for _ in world.ticks_until("the job starts"):
        if world.job(job_id).state is JobState.ADMITTED:
            break
    train(world, job_id)
    in_cloud = world.settings.model_copy(update={"cloud": "azure"})
    (attempt,) = world.attempts(job_id)

    def asked(connection: sa.Connection) -> tuple[InUse, Shares | None]:
        followed = policies_in_force(connection, world.settings)
        running = [(demand_of(world.job(job_id), attempt, None, world.now), attempt.world_size)]
        pools = workload.pool_sizes(followed, world.supply.offerings(), world.now)
        used = in_use(connection, in_cloud, followed, ["vision"], world.now)
        return used, shares_of(followed, pools, running)

    used, shares = world.database.query(asked)
    assert shares is not None
    assert used.parts == shares.held
    assert used.parts is not None
    assert 0.0 < used.parts["vision"] < 1.0


def test_what_the_cloud_allows_is_reported_once_and_again_when_it_changes(world: World) -> None:
    def reported() -> list[dict[str, int]]:
        events = world.database.query(lambda c: policies.page_of_cluster_events(c, after=0, limit=100))
        return [event.data["units"] for event in events if event.kind == "quotas.read"]

    world.tick()
    assert reported() == [], "no node has said anything yet"
    world.supply.limits = {"lowprioritycores": 24, "standarddsv5family": 8, "cores": 100, "standardnd": 96}
    world.tick(3)
    assert reported() == [{"lowprioritycores": 24, "standarddsv5family": 8}]
    world.supply.limits["lowprioritycores"] = 48
    world.tick(3)
    assert reported()[1:] == [{"lowprioritycores": 48, "standarddsv5family": 8}]
    assert (
        world.database.query(lambda c: history_since(c, "default", 0.0, world.now)).quotas == reported()[-1]
    )


def test_a_node_that_is_asked_for_again_counts_for_the_quota_and_its_event_says_why(world: World) -> None:
    world.supply.left = {"lowprioritycores": 4, "standarddsv5family": 0}
    world.cluster.refusals += [Throttled("too many requests", retry_after_s=1.0)] * 3
    world.submit()
    world.tick()
    world.submit()
    world.tick(2)
    (node,) = living(world)
    assert node.state is NodeState.REQUESTED
    world.tick()
    assert [one.state for one in living(world)] == [NodeState.LAUNCHED]
    events = world.database.query(lambda c: node_store.page_of_node_events(c, node.id, 0, 100))
    delayed = [event.message for event in events if event.kind == "node.delayed"]
    assert delayed == ["it is asked for again: too many requests"]


def test_nodes_that_a_cloud_asks_to_wait_for_have_not_failed_and_all_come_after_the_pause(
    world: World,
) -> None:
    world.submit(min_workers=3, max_workers=3)
    for _ in range(60):
        world.cluster.refusals = [Throttled("too many requests", retry_after_s=15.0 - world.now % 15.0)] * 3
        world.tick()
    asked = [node.id for node in living(world)]
    assert len(asked) == len(world.nodes()) == 3
    world.cluster.refusals = []
    world.tick(2)
    assert [(node.id, node.state) for node in living(world)] == [(name, NodeState.READY) for name in asked]


@pytest.mark.parametrize(("pauses", "losses"), [(0, 3), (3, 1)])
def test_a_node_is_not_given_up_for_the_time_in_which_no_controller_asked_for_it(
    world: World, pauses: int, losses: int
) -> None:
    world.observation_interval_s = 30.0
    world.submit()
    world.cluster.refusals = [Throttled("too many requests", retry_after_s=1.0)] * pauses
    world.cluster.refusals += [Unanswered("the answer was lost", retry_after_s=10.0)] * losses
    for _ in world.ticks_until("the node is ready"):
        world.now += 30.0
        if any(node.state is NodeState.READY for node in world.nodes()):
            break
    (node,) = world.nodes()
    assert [one.node_id for one in world.cluster.requests] == [node.id] * (pauses + losses + 1)


def test_a_node_whose_cloud_cannot_be_seen_after_a_lost_answer_is_asked_for_again(world: World) -> None:
    world.submit()
    world.cluster.refusals = [Unanswered("the answer was lost", retry_after_s=10.0)]
    world.tick()
    world.cluster.list_error = ProviderError("no answer")
    world.now += 30.0
    world.tick(2)
    world.cluster.list_error = None
    world.tick(2)
    (node,) = world.nodes()
    assert ([one.node_id for one in world.cluster.requests], node.state) == ([node.id] * 2, NodeState.READY)


def test_a_node_that_is_asked_for_in_vain_is_given_up(world: World) -> None:
    world.submit()
    world.cluster.refusals = [Unanswered("the answer was lost", retry_after_s=10.0)] * 100
    for _ in world.ticks_until("it is given up"):
        world.now += 1.75
        if (node := world.nodes()[0]).ended_at is not None:
            break
    assert (node.state, node.message) == (NodeState.FAILED, "the provider does not know it")
    assert [request.node_id for request in world.cluster.requests].count(node.id) == 6, "at 0, 2, ... 10 s"


def test_a_pause_that_the_cloud_asked_for_outlives_the_controller(world: World) -> None:
    world.submit(min_workers=2, max_workers=2)
    world.cluster.refusals = [Throttled("too many requests", retry_after_s=60.0)] * 2
    world.tick()
    asked = [node.id for node in living(world)]
    world.controller.resign()
    world.controller = world.new_controller()
    world.now += 50.0
    # What was asked for fails for another reason now, and would be given up after ten seconds.
    world.cluster.refusals = [Throttled("the server is busy", retry_after_s=1.0)] * 2
    world.tick()
    assert [node.id for node in living(world)] == asked == [node.id for node in world.nodes()]
    world.tick(2)
    assert [(node.id, node.state) for node in living(world)] == [(name, NodeState.READY) for name in asked]


def test_a_cloud_that_counts_is_not_looked_at_in_every_tick(world: World) -> None:
    world.observation_interval_s = 2.0
    world.controller.resign()
    world.controller = world.new_controller()
    job_id = world.submit()
    world.tick(17)
    assert world.cluster.looks == 3, "at 0, 2 and 4 s"
    world.observation_interval_s = 30.0
    world.tick(100)
    assert world.cluster.looks == 3, "a cloud that lets hardly anybody ask is asked less often"
    assert world.job(job_id).state is JobState.ADMITTED


def test_where_looks_are_seldom_one_lost_answer_of_ray_is_no_reason_for_another_connection(
    world: World,
) -> None:
    world.observation_interval_s = 30.0
    world.cluster.ray_error = TimeoutError("no answer")
    world.tick()
    world.now += 20.0
    world.tick()
    assert (world.cluster.looks, world.controller.has_lost_ray(world.now)) == (1, False)
    world.now += 10.0
    world.tick()
    assert (world.cluster.looks, world.controller.has_lost_ray(world.now)) == (2, True)
    world.controller.use(world.connect())
    world.cluster.ray_error = None
    world.tick()
    assert world.cluster.looks == 3, "who has a new connection looks at once"
    world.cluster.ray_error = TimeoutError("no answer")
    world.now += 30.0
    world.tick()
    assert not world.controller.has_lost_ray(world.now + 20.0), "it had answered meanwhile"


def test_another_connection_to_ray_does_not_help_where_the_cloud_is_silent(world: World) -> None:
    world.cluster.list_error = ProviderError("no answer")
    world.tick()
    world.now += 20.0
    world.tick(2)
    assert not world.controller.has_lost_ray(world.now)
    world.cluster.list_error, world.cluster.ray_error = None, TimeoutError("no answer")
    world.tick(2)
    assert world.controller.has_lost_ray(world.now)


def test_machines_are_asked_for_side_by_side(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(2, timeout=30)
    create = world.cluster.create

    def slow(request: NodeRequest) -> None:
        together.wait()  # raises when the other one is asked for only afterwards
        create(request)

    monkeypatch.setattr(world.cluster, "create", slow)
    world.submit(min_workers=2, max_workers=2)
    world.tick(2)
    assert [node.state for node in living(world)] == [NodeState.READY] * 2


def test_machines_are_given_back_side_by_side(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = world.submit(min_workers=2, max_workers=2)
    world.tick(2)
    assert [node.state for node in living(world)] == [NodeState.READY] * 2
    together = threading.Barrier(2, timeout=30)
    delete = world.cluster.delete

    def slow(node_id: str) -> None:
        together.wait()  # raises when the other one is deleted only afterwards
        delete(node_id)

    monkeypatch.setattr(world.cluster, "delete", slow)
    world.launcher.driver_of(job_id).report("ended", end_reason="completed", message="", exit_code=0)
    world.tick(2)
    world.now += 60.0
    world.tick(3)
    assert living(world) == []
