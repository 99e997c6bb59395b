"""Rank 0 of a new worker group is on an on-demand node, where there is one: the cloud does not take it back (pure).

Later groups get their ranks from `trainers/driver/regrouping.py`: a worker that joins has no state, and leads only in
the group after.
Rank 0 reports the metrics, and its address is the rendezvous endpoint: a group that loses another rank loses less.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from trainers.driver.regrouping import WorkerLocation, assign_ranks
from trainers.ray_train import Member


def on_demand_first(members: Sequence[Member], on_demand: Collection[str]) -> list[Member]:
    """The workers of a new group in the order of their ranks; `on_demand` are Ray's names of nodes that stay.

    Ranks are as they were, unless rank 0 is on a node that may be taken and another worker is not.
    """
    marked = mark_on_demand(sorted(members, key=lambda member: member.rank), on_demand)
    if not marked or marked[0].is_on_demand or not any(member.is_on_demand for member in marked):
        return marked
    # Workers of one node stay beside one another: all of them are on a node that stays, or none.
    ordered = sorted(marked, key=lambda member: not member.is_on_demand)
    locations = [WorkerLocation(one.slot, one.ray_node_id, one.address, one.local_rank) for one in ordered]
    assigned = assign_ranks(locations)
    return [
        replace(member, rank=one.rank, local_world_size=one.local_world_size, node_rank=one.node_rank)
        for member, one in zip(ordered, assigned, strict=True)
    ]


def mark_on_demand(members: Sequence[Member], on_demand: Collection[str]) -> list[Member]:
    """The same workers, with what is known of their nodes."""
    return [replace(member, is_on_demand=member.ray_node_id in on_demand) for member in members]
