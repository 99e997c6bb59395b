"""Charges what the cloud bills: every paid second of a node goes to a job, a project or the cluster (pure).

A node is paid for from when its machine was first there until it has ended.  What workers hold of it is their job's
cost.  Until it is ready, the job that it was bought for pays, and afterwards that job's project pays for idle
parts; what a pool has by itself, and a machine that never became a node, is the cluster's cost.  The project of Ray
programs pays for what was bought for them, but for parts that jobs hold.

It is the account of `service.queue.cost_causes` with fewer words for the causes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from service.queue.accounts import sums
from service.queue.cost_causes import Cause, Payer, Span, spans_of, to_ms
from service.queue.ledger import UseRow
from service.queue.rows import NodeRow

__all__ = ["Charge", "Payer", "Purpose", "charges", "paid_s"]


class Purpose(StrEnum):
    """What for."""

    #: Workers hold it.
    WORK = "work"
    #: Its machine boots and joins.
    START_UP = "start_up"
    #: It is ready, and no job holds it or a part of it.
    IDLE = "idle"
    #: Its machine never became a node.
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class Charge:
    """What one payer pays of one node for one purpose."""

    payer: Payer
    #: Id of the job, name of the project; empty for the cluster.
    name: str
    purpose: Purpose
    node_id: str
    #: Seconds of a whole node: half a node for an hour is 1800.
    node_s: float
    #: USD.
    cost: float

    @property
    def is_billed(self) -> bool:
        """The node costs money."""
        return self.cost > 0.0


def paid_s(node: NodeRow, begins_at: float, ends_at: float) -> float:
    """Seconds between the two times, in seconds since 1970, for which the cloud bills the node; whole milliseconds."""
    if node.launched_at is None:
        return 0.0
    ended_at = ends_at if node.ended_at is None else min(node.ended_at, ends_at)
    return max(0, to_ms(ended_at) - to_ms(max(node.launched_at, begins_at))) / 1000.0


def charges(
    nodes: Iterable[NodeRow],
    uses: Iterable[UseRow],
    projects: Mapping[str, str],
    begins_at: float,
    ends_at: float,
) -> list[Charge]:
    """What is paid for these nodes between the two times; the sum is what the cloud bills for them.

    `uses` are those of these nodes, `projects` is the project of each job that is named.  Linear in nodes and uses.
    """
    known = {node.id: node for node in nodes}
    spans = spans_of(known.values(), uses, (), {}, projects, [(to_ms(begins_at), to_ms(ends_at))])
    return charges_of(spans, known)


def charges_of(spans: Iterable[Span], nodes: Mapping[str, NodeRow]) -> list[Charge]:
    """The same from spans of these nodes, by id."""
    by_charge = sums(spans, nodes, lambda span, _: (span.node_id, span.payer, span.name, purpose_of(span)))
    return [
        Charge(payer=payer, name=name, purpose=purpose, node_id=node_id, node_s=one.node_s, cost=one.usd)
        for (node_id, payer, name, purpose), one in by_charge.items()
    ]


def purpose_of(span: Span) -> Purpose:
    """The purpose of what was paid."""
    match span.cause:
        case Cause.PROVISIONING:
            return Purpose.START_UP
        case Cause.FAILED if span.payer is Payer.CLUSTER:
            return Purpose.FAILED
        case Cause.PROGRAMS:
            return Purpose.WORK
    return Purpose.WORK if span.payer is Payer.JOB else Purpose.IDLE
