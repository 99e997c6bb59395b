"""Rank 0 of a new worker group is where the cloud does not take machines back, if a worker is (pure).

Later groups are dealt by `trainers/driver/regrouping.py`: a worker that joins has no state, and leads in the next one.
Rank 0 tells the metrics, and the others meet at its address: a group that loses another rank loses less.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from trainers.driver.regrouping import Seat, deal
from trainers.ray_train import Member


def lasting_first(members: Sequence[Member], lasting: Collection[str]) -> list[Member]:
    """The workers of a new group in the order of their ranks; `lasting` are Ray's names of nodes that stay.

    Ranks are as they were, unless rank 0 is on a node that may be taken and another worker is not.
    """
    marked = mark(sorted(members, key=lambda member: member.rank), lasting)
    if not marked or marked[0].is_lasting or not any(member.is_lasting for member in marked):
        return marked
    # Workers of one node stay beside one another: all of them are on a node that stays, or none.
    ordered = sorted(marked, key=lambda member: not member.is_lasting)
    dealt = deal([Seat(one.slot, one.ray_node_id, one.address) for one in ordered])
    return [
        replace(
            member,
            rank=one.rank,
            local_rank=one.local_rank,
            local_world_size=one.local_world_size,
            node_rank=one.node_rank,
        )
        for member, one in zip(ordered, dealt, strict=True)
    ]


def mark(members: Sequence[Member], lasting: Collection[str]) -> list[Member]:
    """The same workers, with what is known of their nodes."""
    return [replace(member, is_lasting=member.ray_node_id in lasting) for member in members]
