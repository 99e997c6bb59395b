"""Ranges of time that accounts are asked for."""

from __future__ import annotations

import math

from cluster.scheduling.money import begin_of
from service.api.context import Context
from service.api.problem_documents import invalid_parameter
from service.queue.costs import MOST_S


def range_asked(context: Context, since: float | None, until: float | None) -> tuple[float, float]:
    """The range of time that is asked for; from the beginning of the month (UTC) until now unless given.

    Raises ApiProblem `invalid_parameter`.
    """
    now = context.clock()
    ends_at = now if until is None else min(until, now)
    begins_at = begin_of("month", ends_at) if since is None else since
    check_range(begins_at, ends_at)
    return begins_at, ends_at


def check_range(begins_at: float, ends_at: float) -> None:
    """Raise ApiProblem `invalid_parameter` for a range that is none or longer than `MOST_S`."""
    if begins_at > ends_at:
        raise invalid_parameter("since", "it is after until; give an earlier time")
    if ends_at - begins_at > MOST_S:
        days = math.floor(MOST_S / 86_400.0)
        raise invalid_parameter("since", f"it is more than {days} days before until; ask for them in parts")
