"""How many workers fit on nodes, and what is assumed of machines that have not joined yet."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cluster.policies.policies import CapacityRule
from cluster.scheduling.fitting import as_shown, most_workers, slots
from cluster.scheduling.planner import plan
from tests.unit.cluster.planner_worlds import NOW, acts, job, node, offering, rules, view

GIB = 2.0**30
#: A worker of one GPU and 32 GiB.
WORKER = {"GPU": 1.0, "memory": 32 * GIB}


def sold(memory_gib: float | None) -> dict[str, float]:
    return {"GPU": 1.0} | ({} if memory_gib is None else {"memory": memory_gib * GIB})


@pytest.mark.parametrize(
    ("promised", "shown", "believed"),
    [
        (None, (), None),
        (None, (10.5, 10.4), 10.4),
        (10.0, (), 10.0),
        (10.0, (10.5,), 10.0),
        (10.0, (9.0, 10.5), 9.0),
    ],
)
def test_an_offering_has_no_more_memory_than_its_nodes_have_shown(
    promised: float | None, shown: tuple[float, ...], believed: float | None
) -> None:
    one, other = offering(resources=sold(promised)), offering("b", resources=sold(promised))
    nodes = [node(f"n{at}", resources=sold(memory)) for at, memory in enumerate(shown)]
    nodes += [node("unknown", offering="", resources=sold(1.0)), node("starts", resources=sold(promised))]
    assert as_shown([one, other], nodes) == (replace(one, resources=sold(believed)), other)


def test_memory_that_no_machine_announced_is_no_limit() -> None:
    assert slots({"GPU": 4.0}, WORKER) == 4
    assert slots({"GPU": 4.0, "memory": 64 * GIB}, WORKER) == 2
    assert slots({"memory": 64 * GIB}, WORKER) == 0


def test_as_many_workers_as_the_best_size_of_a_pool_holds() -> None:
    both = [offering(resources=sold(16.0)), offering("b", resources={"GPU": 4.0, "memory": 70 * GIB})]
    assert most_workers(both, 3, WORKER) == 6
    assert most_workers(both[:1], 3, WORKER) == 0
    assert most_workers(both, 150, WORKER, in_domain=True) == 200


@pytest.mark.parametrize(("promised", "shown"), [(16.0, None), (None, 16.0)])
def test_no_machine_is_bought_for_a_worker_that_needs_more_memory_than_it_has(
    promised: float | None, shown: float | None
) -> None:
    """The machine that is there, unused, shows how much its kind has; no other one is bought after it."""
    there = [] if shown is None else [node(resources=sold(shown))]
    offerings = as_shown([offering(resources=sold(promised), zone="1")], there)
    demand = job(worker_resources=WORKER)
    assert acts(plan(view([demand], there, offerings), rules(), NOW)) == []


def test_a_node_of_a_size_that_is_sold_no_more_is_used_by_a_job_that_asks_for_its_capacity_type() -> None:
    """As the queue does: its labels say where it stands, whatever the catalogue has today."""
    old = node(offering="old/1/spot")
    demand = job(capacity=CapacityRule.SPOT, zones=("1",))
    assert acts(plan(view([demand], [old]), rules(), NOW)) == []
    assert acts(plan(view([demand], [node(offering="")]), rules(), NOW)) != []
