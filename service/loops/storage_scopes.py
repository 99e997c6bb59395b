"""Says which names of storages in Azure each attempt's processes may reach, for as long as the attempt runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from remora.errors import SpecError
from service.loops.attempt_plans import attempt_plan
from service.loops.attempt_traces import about_attempt
from service.loops.live_attempts import LiveAttempts
from service.loops.tick import Tick
from service.queue.rows import AttemptRow, JobRow
from service.settings import Settings
from service.storage_locations import UnknownStore
from trainers.job_storage import job_scopes
from trainers.storage_grants import Scopes, is_brokered

log = logging.getLogger(__name__)

Serve = Callable[[Mapping[str, Scopes]], None]


class StorageScopes:
    """Computes the scopes of each attempt once."""

    def __init__(self) -> None:
        self._known: dict[str, Scopes] = {}

    def serve(self, tick: Tick, live: LiveAttempts, serve: Serve) -> None:
        """Have all attempts that have not ended served, and no others.  Raises Fenced."""
        if not any(is_brokered(url) for url in (tick.settings.storage, *tick.settings.stores.values())):
            return
        pairs = live.pairs()
        self._known = {
            attempt.id: self._known[attempt.id]
            if attempt.id in self._known
            else _scopes(job, attempt, tick.settings)
            for job, attempt in pairs
        }
        serve(self._known)


def _scopes(job: JobRow, attempt: AttemptRow, settings: Settings) -> Scopes:
    try:
        plan = attempt_plan(job, attempt, settings)
    except (SpecError, UnknownStore) as error:
        # Its start says so, too.
        log.warning(
            "%s reaches no storage: %s",
            attempt.id,
            error,
            extra=about_attempt(job, attempt, settings),
        )
        return {}
    return {url: scope for url, scope in job_scopes(plan).items() if is_brokered(url)}
