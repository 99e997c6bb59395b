"""Which of the planned launches are made now: pace, maintenance, failures and the site's rules decide (pure)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from cluster.scheduling.actions import Launch, Wait
from cluster.scheduling.context import PlanningContext
from cluster.scheduling.formatting import clock, count
from cluster.scheduling.health import launch_not_before, trying
from cluster.scheduling.limits import pace_left
from cluster.scheduling.view import ClusterView

#: A site's own rule: a sentence that refuses a launch, or None.  It sees the view and nothing else.
Rule = Callable[[ClusterView, Launch], str | None]


@dataclass(frozen=True, kw_only=True)
class CheckedLaunches:
    """The launches that are allowed, and the reasons for the others."""

    launches: list[Launch]
    waits: list[Wait]
    #: Why launches are not made now, by the job that they are for; None: for a pool's own nodes.
    later: dict[str | None, str]


def within_pace(context: PlanningContext, launches: Iterable[Launch]) -> CheckedLaunches:
    """The launches that a pool's pace, its failures and its maintenance allow now."""
    later: dict[str | None, str] = {}
    by_pool: dict[str, list[Launch]] = defaultdict(list)
    for launch in launches:
        by_pool[launch.pool].append(launch)
    allowed: list[Launch] = []
    waits: list[Wait] = []
    for pool, mine in by_pool.items():
        number, why = _allowance(context, pool)
        allowed.extend(mine[:number])
        if number < len(mine):
            reason = f"{count(len(mine) - number, 'node')} more are launched later: {why}"
            waits.append(Wait(pool=pool, reason=reason))
        for launch in mine[number:]:
            later.setdefault(launch.job_id, why)
    return CheckedLaunches(launches=allowed, waits=waits, later=later)


def _allowance(context: PlanningContext, pool: str) -> tuple[int, str]:
    """How many nodes of a pool may be launched now, and why no more."""
    now, view = context.now, context.view
    policy, until = context.policies.pools[pool], context.limits[pool].maintenance_until
    if until is not None:
        return 0, f"nothing is launched before the maintenance ends at {clock(until)}"
    not_before = launch_not_before(view, pool, now)
    if now < not_before:
        return 0, f"nodes of pool {pool!r} failed at first, the next is tried at {clock(not_before)}"
    number = pace_left(policy.grow_per_minute, [node.created_at for node in view.nodes_of.get(pool, ())], now)
    if not_before > float("-inf"):
        # One try at a time until one works; a node that is still starting is that try.
        number = min(number, 0 if trying(view, pool, now) else 1)
        return number, f"nodes of pool {pool!r} failed at first, one is tried at a time"
    return number, f"at most {policy.grow_per_minute:g} a minute are launched"


def allowed_by_rules(
    view: ClusterView, launches: Iterable[Launch], rules: Sequence[tuple[str, Rule]]
) -> CheckedLaunches:
    """The launches that no rule of the site refuses; a rule that raises is skipped."""
    accepted: list[Launch] = []
    later: dict[str | None, str] = {}
    waits: dict[Wait, None] = {}
    for launch in launches:
        refusal = _refusal(view, launch, rules)
        if refusal is None:
            accepted.append(launch)
        else:
            later.setdefault(launch.job_id, refusal.reason)
            waits.setdefault(refusal)
    return CheckedLaunches(launches=accepted, waits=list(waits), later=later)


def _refusal(view: ClusterView, launch: Launch, rules: Sequence[tuple[str, Rule]]) -> Wait | None:
    """What the first rule says that refuses the launch."""
    for name, rule in rules:
        try:
            said = rule(view, launch)
        except Exception:  # noqa: S112 - nodes are needed all the same, and an installed rule has reported it
            continue
        if said is not None:
            why = said.strip() or "it gives no reason"
            reason = f"the rule {name} lets no node of pool {launch.pool} be launched: {why}"
            return Wait(pool=launch.pool, reason=reason, rule=name)
    return None
