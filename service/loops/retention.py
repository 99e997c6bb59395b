"""Deletes old rows and bundles: one small step per tick while there is something, else once in `EVERY_S`."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import partial

from service.loops.tick import Tick
from service.storage_locations import open_storage
from service.store import audit, bundles, signed_out, tokens
from service.store.pruning import ROWS, limits_of, prune
from trainers.storage import StorageError

log = logging.getLogger(__name__)

#: Seconds between two steps while nothing is old.
EVERY_S = 60.0
#: Bundles that one step deletes.
BUNDLES = 10


class Retention:
    """Used in the thread that asks the cloud, as the storage may be as slow as a cloud."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._looked_at = -math.inf

    def step(self, tick: Tick) -> None:
        """Delete one step's worth, when a step is due.  Raises Fenced."""
        kept, now = tick.settings, self._monotonic()
        limits = limits_of(kept.retention_days, kept.retention_jobs, kept.retention_rows)
        if now - self._looked_at < EVERY_S:
            return
        has_more = self._forget_audit(tick)
        if limits is None:
            self._looked_at = -math.inf if has_more else now
            return
        step = tick.apply(partial(prune, limits=limits, now=tick.now, most=ROWS))
        if step.rows or step.jobs or step.nodes:
            log.info(
                "deleted what was old: %d jobs, %d nodes, %d rows of theirs", step.jobs, step.nodes, step.rows
            )
        has_more = self._forget_bundles(tick, tick.now - limits.age_s) or step.has_more or has_more
        self._looked_at = -math.inf if has_more else now

    def _forget_audit(self, tick: Tick) -> bool:
        """Delete old rows of the audit, and tokens that ended as long ago; True when there may be more.

        What is noted of sessions that ended is deleted once their tokens have expired.
        """
        tick.apply(partial(signed_out.forget, now=tick.now, most=ROWS))
        days = tick.settings.audit_days
        if not days:
            return False
        before = tick.now - days * 86_400.0
        gone, has_more = tick.apply(partial(audit.forget, before=before, most=ROWS))
        tick.apply(partial(tokens.forget, before=before, most=ROWS))
        if gone:
            log.info("deleted %d rows of the audit that were older than %g days", gone, days)
        return has_more

    def _forget_bundles(self, tick: Tick, before: float) -> bool:
        """Delete the files of bundles that were not used since `before`; True when there may be more."""
        going = tick.apply(partial(bundles.choose, before=before, now=tick.now, most=BUNDLES))
        if not going:
            return False
        storage = open_storage(tick.settings, tick.settings.storage)
        for digest in going:
            try:
                tick.check()
                storage.delete(bundles.bundle_name(digest))
            except StorageError as error:
                log.warning("the bundle %s cannot be deleted, it is tried again: %s", digest, error)
                return False
            tick.apply(partial(bundles.forget, digest=digest))
        return len(going) == BUNDLES
