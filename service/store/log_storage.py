"""Stores the lines that jobs print, within the limits of their projects.

A project that has as many lines as it may loses the oldest ones of the jobs that print more: what a job printed last
says why it failed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from cluster.policies.policies import Policies
from service.queue.intake import Kept, lines_over
from service.store import kept_amounts
from service.store.rows import insert_into
from service.store.tables import log_lines


@dataclass(frozen=True)
class NewLines:
    """What a job has printed since the last time."""

    job_id: str
    project: str
    #: Of lines of the job, in their order; their numbers follow those of the ones before.
    rows: Sequence[dict[str, Any]]


def store_lines(connection: sa.Connection, printed: Sequence[NewLines], policies: Policies) -> dict[str, int]:
    """Store lines; how many older or new ones of each job that has lost some went, by the ids of the jobs."""
    more: Counter[tuple[str, Kept]] = Counter()
    for one in printed:
        more[kept_amounts.project_holder(one.project), Kept.LOG_LINES] += len(one.rows)
    kept_amounts.add(connection, more)
    gone = _free_space(connection, printed, policies)
    rows = [row for one in printed for row in one.rows if row["seq"] >= gone.get(one.job_id, (0, 0))[1]]
    if rows:
        connection.execute(insert_into(log_lines), rows)
    return {job_id: count for job_id, (count, _) in gone.items()}


def _free_space(
    connection: sa.Connection, printed: Sequence[NewLines], policies: Policies
) -> dict[str, tuple[int, int]]:
    """How many lines of each job go that has to lose some, and the number of its first one that stays."""
    limited = [one for one in printed if one.rows and policies.limits_of(one.project).log_lines is not None]
    if not limited:
        return {}
    holders = {kept_amounts.project_holder(one.project) for one in limited}
    kept = kept_amounts.amounts(connection, holders)
    gone: dict[str, tuple[int, int]] = {}
    less: Counter[tuple[str, Kept]] = Counter()
    for one in limited:
        key = (kept_amounts.project_holder(one.project), Kept.LOG_LINES)
        most = policies.limits_of(one.project).log_lines
        if most is None or kept[key] - less[key] <= most:
            continue
        first = _first(connection, one)
        stored = one.rows[0]["seq"] - first
        count = lines_over(stored, len(one.rows), kept[key] - less[key], most)
        if count:
            less[key] += count
            gone[one.job_id] = (count, first + count)
            mine = log_lines.c.job_id == one.job_id, log_lines.c.seq < first + count
            connection.execute(sa.delete(log_lines).where(*mine))
    kept_amounts.add(connection, {key: -count for key, count in less.items()})
    return gone


def _first(connection: sa.Connection, one: NewLines) -> int:
    """The number of the oldest line of a job that is stored, or of its first new one; none between them is missing."""
    mine = sa.select(sa.func.min(log_lines.c.seq)).where(log_lines.c.job_id == one.job_id)
    found = connection.execute(mine).scalar()
    return int(one.rows[0]["seq"] if found is None else found)
