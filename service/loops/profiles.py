"""Hands requests for profiles to the drivers of their attempts, and ends those that nothing answers any more."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from remora.process_log import about
from service.interfaces import Launcher
from service.loops.live_attempts import LiveAttempts
from service.loops.tick import Tick
from service.queue.profiles import ProfileRow, ended
from service.queue.rows import AttemptRow
from service.store import profiles as store
from trainers.plan import ProfileRequest

log = logging.getLogger(__name__)


def follow_profiles(tick: Tick, live: LiveAttempts, launcher: Launcher) -> None:
    """Look at every profile that is under way.  Raises Fenced."""
    rows = tick.load(partial(store.under_way, cluster=tick.cluster))
    if not rows:
        return
    attempts = {(job.id, attempt.attempt): attempt for job, attempt in live.pairs()}
    changed = [_after(row, attempts, launcher, tick.now) for row in rows]
    news = [after for before, after in zip(rows, changed, strict=True) if after != before]
    if news:
        tick.apply(partial(store.save, rows=news))


def _after(
    row: ProfileRow, attempts: Mapping[tuple[str, int], AttemptRow], launcher: Launcher, now: float
) -> ProfileRow:
    attempt = attempts.get((row.job_id, row.attempt))
    row = ended(row, attempt is not None, now)
    if row.ended_at is not None or row.taken_at is not None or attempt is None:
        return row
    if attempt.launched_at is None:
        return row
    request = ProfileRequest(number=row.number, rank=row.rank, steps=row.steps)
    try:
        has_taken = launcher.request_profile(attempt.id, request)
    except Exception as error:
        log.warning(
            "attempt %s cannot be asked for a profile, it is tried again: %s",
            attempt.id,
            error,
            extra=about(job=row.job_id, attempt=attempt.id),
        )
        return row
    return replace(row, taken_at=now) if has_taken else row
