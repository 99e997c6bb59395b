"""Delete what is old: a small step at a time, and only now and then while there is nothing."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import partial

from service.loops.turn import Turn
from service.store import bundles
from service.store.retention import ROWS, limits_of, prune
from trainers.storage import Storage, StorageError

log = logging.getLogger(__name__)

#: Seconds between two looks while nothing is old.
EVERY_S = 60.0
#: Bundles that one step deletes.
BUNDLES = 10


class Retention:
    """For the thread that asks the cloud: the storage may be as slow as one."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._looked_at = -math.inf

    def turn(self, turn: Turn) -> None:
        """One step, when it is time for one.  Raises Fenced."""
        kept, now = turn.settings, self._monotonic()
        limits = limits_of(kept.retention_days, kept.retention_jobs, kept.retention_rows)
        if limits is None or now - self._looked_at < EVERY_S:
            return
        step = turn.apply(partial(prune, limits=limits, now=turn.now, most=ROWS))
        if step.rows or step.jobs or step.nodes:
            log.info(
                "deleted what was old: %d jobs, %d nodes, %d rows of theirs", step.jobs, step.nodes, step.rows
            )
        has_more = self._forget_bundles(turn, turn.now - limits.age_s) or step.has_more
        self._looked_at = -math.inf if has_more else now

    def _forget_bundles(self, turn: Turn, before: float) -> bool:
        """Delete the files of bundles that nobody used since; True when there may be more."""
        going = turn.apply(partial(bundles.choose, before=before, now=turn.now, most=BUNDLES))
        if not going:
            return False
        storage = Storage(turn.settings.storage)
        for digest in going:
            try:
                turn.check()
                storage.delete(bundles.bundle_name(digest))
            except StorageError as error:
                log.warning("the bundle %s cannot be deleted, it is tried again: %s", digest, error)
                return False
            turn.apply(partial(bundles.forget, digest=digest))
        return len(going) == BUNDLES
