"""How many nodes a pool may have now, and how many may be launched and returned per minute (pure)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache

from cluster.policies.cron_fields import begins_on
from cluster.policies.policies import PoolPolicy, Window
from remora.spec.cron import parse_cron, times_on, zone_of


@dataclass(frozen=True)
class Limits:
    """A pool's numbers of nodes as they are at one moment."""

    min_nodes: int
    max_nodes: int
    warm_nodes: int
    #: When the maintenance window ends that holds now; None: there is none.
    maintenance_until: float | None


def limits_of(policy: PoolPolicy, now: float) -> Limits:
    """The pool's limits with those of its schedules; where windows overlap, the one listed later wins."""
    least, most, warm = policy.min_nodes, policy.max_nodes, policy.warm_nodes
    for schedule in policy.schedules:
        if ends_at(schedule.window, now) is not None:
            least = least if schedule.min_nodes is None else schedule.min_nodes
            most = most if schedule.max_nodes is None else schedule.max_nodes
            warm = warm if schedule.warm_nodes is None else schedule.warm_nodes
    ends = [end for window in policy.maintenance if (end := ends_at(window, now)) is not None]
    return Limits(min(least, most), most, warm, max(ends, default=None))


def pace_left(per_minute: float, moments: Iterable[float], now: float) -> int:
    """How often an action may be repeated now that was done at these `moments`.

    Counted over a minute, or over as long as one of them takes at a pace below one a minute.
    """
    since = now - window_of(per_minute)
    return max(0, _allowed(per_minute) - len([at for at in moments if since < at <= now]))


def next_at(per_minute: float, moments: Iterable[float], now: float) -> float | None:
    """When `pace_left` allows the action again that was done at these `moments`; None: now."""
    counted = sorted(at for at in moments if now - window_of(per_minute) < at <= now)
    allowed = _allowed(per_minute)
    return None if len(counted) < allowed else counted[-allowed] + window_of(per_minute)


def window_of(per_minute: float) -> float:
    """Seconds over which a pace is counted."""
    return max(60.0, 60.0 / per_minute)


def _allowed(per_minute: float) -> int:
    """How often within the window."""
    return max(1, math.floor(per_minute * window_of(per_minute) / 60.0 + 1e-9))


def ends_at(window: Window, now: float) -> float | None:
    """When the window that `now` lies in ends, in seconds since 1970; None outside of it."""
    begin = _last_begin(window, int(now // 60), math.ceil(window.lasts_s / 86_400))
    return begin + window.lasts_s if begin is not None and now < begin + window.lasts_s else None


@lru_cache(maxsize=4096)
def _last_begin(window: Window, minute: int, days: int) -> float | None:
    """When it last began, at or before the given minute since 1970 and at most `days` back; None: not then."""
    fields, place, until = parse_cron(window.begins), zone_of(window.zone), minute * 60.0
    today = datetime.fromtimestamp(until, place).date()
    # A time that clocks skip is moved by as much as they are, also into the next day.
    for back in range(-1, days + 2):
        day = today - timedelta(days=back)
        if begins_on(window, fields, day):
            found = [at for at in times_on(day, fields, place) if at <= until]
            if found:
                return max(found)
    return None
