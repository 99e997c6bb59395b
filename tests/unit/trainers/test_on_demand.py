"""Rank 0 is on a node that the cloud does not take back, when a worker is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trainers.driver.on_demand import on_demand_first
from trainers.driver.regrouping import WorkerLocation, assign_ranks
from trainers.ray_train import Member

NODES = ("a", "b", "c", "d")


def group(nodes: list[str]) -> list[Member]:
    """A worker on each of the nodes, with ranks as Ray Train assigns them: workers of one node side by side."""
    locations = [
        WorkerLocation(slot, node, f"10.0.0.{NODES.index(node)}", sorted(nodes)[:slot].count(node))
        for slot, node in enumerate(sorted(nodes))
    ]
    return [
        Member(
            slot=location.slot,
            rank=one.rank,
            local_rank=one.local_rank,
            local_world_size=one.local_world_size,
            node_rank=one.node_rank,
            ray_node_id=location.node,
            address=location.address,
            call=lambda *_: None,
        )
        for location, one in zip(locations, assign_ranks(locations), strict=True)
    ]


@given(st.lists(st.sampled_from(NODES), min_size=1, max_size=8), st.sets(st.sampled_from(NODES)))
def test_on_demand_workers_lead_and_ranks_are_what_torchrun_promises(
    nodes: list[str], on_demand: set[str]
) -> None:
    members = group(nodes)
    ordered = on_demand_first(members, on_demand)
    assert {one.slot for one in ordered} == {one.slot for one in members}
    assert (ordered[0].ray_node_id in on_demand) == bool(on_demand & set(nodes))
    own = {one.slot: one.local_rank for one in members}
    again = assign_ranks(
        [WorkerLocation(one.slot, one.ray_node_id, one.address, own[one.slot]) for one in ordered]
    )
    assert [(one.rank, one.local_rank, one.local_world_size, one.node_rank) for one in ordered] == [
        (one.rank, one.local_rank, one.local_world_size, one.node_rank) for one in again
    ]
    assert {one.slot for one in ordered if one.is_on_demand} == {
        one.slot for one in members if one.ray_node_id in on_demand
    }


def test_no_worker_changes_its_rank_without_need() -> None:
    members = group(["a", "b", "c"])
    for on_demand in (set[str](), {"a"}, {"a", "c"}, {"d"}):
        assert [(one.slot, one.rank) for one in on_demand_first(members, on_demand)] == [
            (0, 0),
            (1, 1),
            (2, 2),
        ]
    assert [one.slot for one in on_demand_first(members, {"c"})] == [2, 0, 1]
