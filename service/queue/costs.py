"""What may be asked of an account, and the lines of its answer (pure)."""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from cluster.policies.offerings import zone_and_capacity
from service.queue.accounts import Amount, shown, sums, total_of
from service.queue.cost_causes import Payer, Span, to_ms
from service.queue.ledger import UseRow
from service.queue.rows import NodeRow

HOUR_MS = 3_600_000
#: The longest range of an account.
MOST_S = 31 * 86_400.0


class By(StrEnum):
    """What a line may be of."""

    JOB = "job"
    PROJECT = "project"
    POOL = "pool"
    CAPACITY = "capacity_type"
    CAUSE = "cause"
    HOUR = "hour"


@dataclass(frozen=True, kw_only=True)
class CostSum:
    """One line: the values that it is of, in the order in which they were asked for, and what was paid for it."""

    #: Empty where there is none, as of a node that no job pays for.
    of: tuple[str, ...]
    #: Milliseconds of whole nodes, and of GPUs.
    node_ms: int
    gpu_ms: int
    #: Millionths of a USD.
    micro_usd: int


def ranges_of(begins_ms: int, ends_ms: int, by: Iterable[By]) -> list[tuple[int, int]]:
    """The range of time, cut at full hours where hours are asked for; milliseconds since 1970."""
    if By.HOUR not in by:
        return [(begins_ms, ends_ms)]
    first = begins_ms - begins_ms % HOUR_MS
    edges = [begins_ms, *range(first + HOUR_MS, ends_ms, HOUR_MS), ends_ms]
    return list(itertools.pairwise(edges))


def parts_of(nodes: Iterable[NodeRow], uses: Iterable[UseRow], ranges: Sequence[tuple[int, int]]) -> int:
    """In how many parts ranges that follow each other cut nodes and what was used of them: what an account costs."""
    starts, ends = [begins for begins, _ in ranges], [last for _, last in ranges]
    times = [(node.launched_at, node.ended_at) for node in nodes if node.launched_at is not None]
    times += [(use.began_at, use.ended_at) for use in uses]
    found = 0
    for began_at, ended_at in times:
        until = len(ranges) if ended_at is None else bisect_left(starts, to_ms(ended_at))
        found += max(0, until - bisect_right(ends, to_ms(began_at)))
    return found


def cost_lines(spans: Iterable[Span], nodes: Mapping[str, NodeRow], by: Sequence[By]) -> list[CostSum]:
    """One line for each combination of values, in their order; what the lines say sums to what is paid in all.

    `nodes` are those of the spans, by id.
    """
    found = sums(spans, nodes, lambda span, node: tuple(_value(span, node, one) for one in by))
    keys = sorted(found)
    lines = shown([found[key] for key in keys])
    return [
        CostSum(of=key, node_ms=line.node_ms, gpu_ms=line.gpu_ms, micro_usd=line.micro_usd)
        for key, line in zip(keys, lines, strict=True)
    ]


def cost_total(spans: Iterable[Span], nodes: Mapping[str, NodeRow]) -> Amount:
    """What is paid in all."""
    return total_of(sums(spans, nodes, lambda span, _: span.cause).values())


def _value(span: Span, node: NodeRow, by: By) -> str:
    match by:
        case By.JOB:
            return span.name if span.payer is Payer.JOB else ""
        case By.PROJECT:
            return span.project or "" if span.payer is not Payer.CLUSTER else ""
        case By.POOL:
            return node.pool
        case By.CAPACITY:
            capacity = zone_and_capacity(node.offering)[1]
            return "" if capacity is None else capacity.value
        case By.CAUSE:
            return span.cause.value
        case By.HOUR:
            # Ranges are cut at full hours, and so are their spans.
            return hour_name(span.begins_ms)


def hour_name(at_ms: int) -> str:
    """The hour in UTC as ISO 8601, `2026-07-01T13:00:00Z`."""
    return datetime.fromtimestamp((at_ms - at_ms % HOUR_MS) // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
