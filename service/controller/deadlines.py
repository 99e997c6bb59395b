"""Converts deadlines between the clock of the service and the clock of the machine.

The service uses `service.steady_clock`, Ray and the drivers the clock of the machine.  They differ for some hours after
that one was set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from cluster.ray.members import MemberNode
from cluster.ray.membership import RayMembership
from service.interfaces import Drains, Rehearsal
from service.steady_clock import SteadyClock


@dataclass(frozen=True)
class TimedMembership:
    """`Membership` whose deadlines are by the service's clock."""

    membership: RayMembership
    clock: SteadyClock

    def observe(self) -> Mapping[str, MemberNode]:
        """All nodes of ours that Ray knows.  Raises MembershipUnknown."""
        members = self.membership.observe()
        ahead_s = self.clock.machine_is_ahead_s()
        return {
            node_id: member
            if member.deadline_at is None
            else replace(member, deadline_at=member.deadline_at - ahead_s)
            for node_id, member in members.items()
        }


@dataclass(frozen=True)
class TimedDrains:
    """`Drains` that are given deadlines by the service's clock."""

    drains: Drains
    clock: SteadyClock

    def drain(self, node_id: str, reason: str, deadline_at: float) -> None:
        """Drain a node of ours.  Raises with a sentence."""
        self.drains.drain(node_id, reason, deadline_at + self.clock.machine_is_ahead_s())


@dataclass(frozen=True)
class TimedRehearsal:
    """`Rehearsal` that is given deadlines by the service's clock."""

    rehearsal: Rehearsal
    clock: SteadyClock

    @property
    def own_notice_s(self) -> float | None:
        """Seconds of notice where the cloud gives its own."""
        return self.rehearsal.own_notice_s

    def notify(self, node_id: str, deadline_at: float) -> None:
        """Notify a node that it will be gone."""
        self.rehearsal.notify(node_id, deadline_at + self.clock.machine_is_ahead_s())

    def take(self, node_id: str) -> None:
        """End a node at once."""
        self.rehearsal.take(node_id)
