"""Every paid second of every node has one payer."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.queue.bill import Charge, Payer, Purpose, charges, paid_s
from service.queue.ledger import UseRow
from service.queue.rows import NodeRow

#: 1 USD for 1000 s.
NODE = NodeRow(
    id="node_1", pool="gpu", created_at=90.0, offering="big/1/spot", price_per_hour=3.6, bought_for="job_1",
    launched_at=100.0, ready_at=200.0, ended_at=1100.0,
)  # fmt: skip
PROJECTS = {"job_1": "vision"}


def use(job_id: str, began_at: float, ended_at: float | None, part: float, node_id: str = "node_1") -> UseRow:
    return UseRow(
        job_id=job_id, node_id=node_id, began_at=began_at, ended_at=ended_at, attempt=1, workers=1,
        pool="gpu", offering="big/1/spot", part=part, price_per_hour=3.6,
    )  # fmt: skip


def reported(found: list[Charge]) -> dict[tuple[str, str, str], float]:
    return {(one.payer.value, one.name, one.purpose.value): round(one.cost, 6) for one in found}


def test_start_up_work_and_idle_time_go_to_the_job_to_other_jobs_and_to_the_project() -> None:
    uses = [use("job_1", 200.0, 700.0, 0.5), use("job_2", 300.0, 600.0, 0.25)]
    assert reported(charges([NODE], uses, PROJECTS, 0.0, 2000.0)) == {
        ("job", "job_1", "start_up"): 0.1,
        ("job", "job_1", "work"): 0.25,
        ("job", "job_2", "work"): 0.075,
        ("project", "vision", "idle"): 0.575,
    }


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (replace(NODE, bought_for=None), {("cluster", "", "start_up"): 0.1, ("cluster", "", "idle"): 0.9}),
        (replace(NODE, ready_at=None), {("cluster", "", "failed"): 1.0}),
        (replace(NODE, ready_at=None, ended_at=None), {("job", "job_1", "start_up"): 1.9}),
        (replace(NODE, launched_at=None), {}),
        (replace(NODE, price_per_hour=0.0), {("job", "job_1", "start_up"): 0, ("project", "vision", "idle"): 0}),
    ],
    ids=["a pool's own", "never a node", "starts", "never had a machine", "free"],
)  # fmt: skip
def test_what_no_worker_held_has_a_payer_too(
    node: NodeRow, expected: dict[tuple[str, str, str], float]
) -> None:
    assert reported(charges([node], [], PROJECTS, 0.0, 2000.0)) == expected


def test_the_project_of_ray_programs_pays_for_all_of_their_nodes_that_no_job_holds() -> None:
    node = replace(NODE, bought_for="ray_1", project="ray")
    assert reported(charges([node], [use("job_2", 300.0, 600.0, 0.5)], {}, 0.0, 2000.0)) == {
        ("job", "job_2", "work"): 0.15,
        ("project", "ray", "start_up"): 0.1,
        ("project", "ray", "work"): 0.75,
    }


def test_only_what_lies_between_the_two_times_is_paid() -> None:
    uses = [use("job_1", 200.0, None, 1.0)]
    running = replace(NODE, ended_at=None)
    assert reported(charges([running], uses, PROJECTS, 150.0, 250.0)) == {
        ("job", "job_1", "start_up"): 0.05,
        ("job", "job_1", "work"): 0.05,
    }
    assert charges([NODE], uses, PROJECTS, 1100.0, 2000.0) == []


moments = st.floats(0.0, 1000.0)
shares = st.sampled_from([0.1, 0.25, 0.5, 0.7, 1.0])


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[NodeRow], list[UseRow]]:
    """Nodes in every state, and uses that may overlap and together hold more than there is."""
    nodes, uses = [], []
    for number in range(draw(st.integers(1, 4))):
        created, launched, ready, ended = sorted(draw(st.lists(moments, min_size=4, max_size=4)))
        node = replace(
            NODE,
            id=f"node_{number}",
            created_at=created,
            launched_at=draw(st.sampled_from([launched, None])),
            ready_at=draw(st.sampled_from([ready, None])),
            ended_at=draw(st.sampled_from([ended, None])),
            bought_for=draw(st.sampled_from(["job_1", "job_x", None])),
            price_per_hour=draw(st.sampled_from([0.5, 3.6])),
        )
        nodes.append(node)
        for _ in range(draw(st.integers(0, 3))):
            began, until = sorted((draw(moments), draw(moments)))
            ended_at = draw(st.sampled_from([until, None]))
            uses.append(
                use(draw(st.sampled_from(["job_1", "job_2"])), began, ended_at, draw(shares), node.id)
            )
    return nodes, uses


@given(worlds(), moments, moments)
def test_the_sum_is_what_the_cloud_bills_for_each_node(
    world: tuple[list[NodeRow], list[UseRow]], one: float, other: float
) -> None:
    begins_at, ends_at = sorted((one, other))
    nodes, uses = world
    found = charges(nodes, uses, PROJECTS, begins_at, ends_at)
    assert all(charge.node_s >= 0 and charge.cost >= 0 for charge in found)
    sums: Counter[str] = Counter()
    for charge in found:
        sums[charge.node_id] += charge.node_s
        assert (charge.payer is Payer.CLUSTER) == (charge.name == "")
        assert charge.purpose is not Purpose.WORK or charge.payer is Payer.JOB
    for node in nodes:
        assert sums[node.id] == pytest.approx(paid_s(node, begins_at, ends_at))
