"""For how long an offering that the cloud has refused is not requested again: exponential backoff (pure).

The first refusal closes it for minutes, and each further one in a row for twice as long, at most for as long as the
cloud's answer is valid: a size that is sold out now may be available soon, which only a new request shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from cluster.policies.policies import Policies
from cluster.scheduling.view import NodeView, Refusal

#: Seconds for which the first refusal closes an offering; Karpenter waits as long before it tries again.
FIRST_S = 180.0
#: Seconds after the end of a refusal within which another one continues its row, at least.
FORGOTTEN_S = 3600.0


def after_refusal(
    before: Refusal | None, offering: str, longest_until: float, reason: str, now: float
) -> Refusal:
    """What is known of an offering after the cloud has refused it now, seconds since 1970.

    `before` is what was known; `longest_until` is when the cloud's answer is out of date.  Of several answers while it
    is refused the first one counts: many machines were requested at once.
    """
    if before is not None and now < before.until:
        return before
    tries = 1
    if before is not None and now - before.until <= max(FORGOTTEN_S, before.until - before.at):
        tries = before.tries + 1
    closed_s = FIRST_S * 2.0 ** min(tries - 1, 30)
    return Refusal(
        offering=offering, until=min(longest_until, now + closed_s), reason=reason, at=now, tries=tries
    )


def made_good(refusals: Iterable[Refusal], nodes: Iterable[NodeView]) -> list[Refusal]:
    """The refusals; `tries` of one is 0 once a newer machine of its offering has become a node."""
    joined: dict[str, float] = {}
    for node in nodes:
        if node.ready_at is not None:
            joined[node.offering] = max(node.created_at, joined.get(node.offering, float("-inf")))
    return [
        replace(one, tries=0) if joined.get(one.offering, float("-inf")) > one.at else one for one in refusals
    ]


def taken_back(
    refusals: Iterable[Refusal], policies: Policies, reopened: Mapping[str, float], sizes: Mapping[str, str]
) -> list[Refusal]:
    """The refusals; those end that an operator lifted since, by reopening a pool that buys the size.

    `reopened` has the time by pool, `sizes` the size by offering.
    """
    times: dict[str, float] = {}
    for name, at in reopened.items():
        if name in policies.pools:
            for size in policies.pools[name].sizes:
                times[size] = max(at, times.get(size, float("-inf")))
    found: list[Refusal] = []
    for one in refusals:
        at = times.get(sizes.get(one.offering, ""), float("-inf"))
        # What is refused again begins with a first refusal.
        found.append(one if at < one.at else replace(one, until=min(one.until, at), tries=0))
    return found
