"""When windows of time hold, in UTC (pure)."""

from __future__ import annotations

import math
from datetime import UTC, datetime, time, timedelta
from functools import lru_cache

from cluster.policies.cron_fields import parse_cron
from cluster.policies.policies import Window


def ends_at(window: Window, now: float) -> float | None:
    """When the window that `now` lies in ends, in seconds since 1970; None outside of it."""
    begin = _last_begin(window.begins, int(now // 60), math.ceil(window.lasts_s / 86_400))
    return begin + window.lasts_s if begin is not None and now < begin + window.lasts_s else None


@lru_cache(maxsize=4096)
def _last_begin(begins: str, minute: int, days: int) -> float | None:
    """When it last began, at or before the given minute since 1970 and at most `days` back; None: not then."""
    fields = parse_cron(begins)
    moment = datetime.fromtimestamp(minute * 60, UTC)
    for back in range(days + 1):
        day = (moment - timedelta(days=back)).date()
        if not fields.begins_on(day):
            continue
        for hour in sorted(fields.hours, reverse=True):
            for at in sorted(fields.minutes, reverse=True):
                begin = datetime.combine(day, time(hour, at), UTC)
                if begin <= moment:
                    return begin.timestamp()
    return None
