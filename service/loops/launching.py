"""Starts the driver of an attempt from its row."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

import sqlalchemy as sa

from remora.errors import SpecError
from remora.states import EndReason
from service.interfaces import Launcher
from service.loops.attempt_plans import attempt_plan
from service.loops.attempt_secrets import AttemptSecrets, NotYet
from service.loops.attempt_traces import about_attempt
from service.loops.live_attempts import JobAttempt, LiveAttempts
from service.loops.stored_ends import is_lost, stored_end
from service.loops.tick import Tick
from service.policies_in_force import policies_in_force
from service.queue.intake import Kept, output_bytes_left
from service.queue.preflights import not_ready_yet
from service.queue.rows import AttemptRow, JobRow
from service.settings import Settings
from service.storage_locations import FIELD, UnknownStore
from service.store import kept_amounts, outputs
from service.store import nodes as node_store
from trainers.plan import DriverGone

log = logging.getLogger(__name__)

#: Seconds after which a driver that has not reported that it has its plan is given up.  Many that start at once share
#: the processors of the head, and giving up those that are nearly ready would only start the wait again.
LAUNCH_TIMEOUT_S = 300.0


def _output_bytes_left(
    settings: Settings, jobs: Sequence[JobRow], connection: sa.Connection
) -> dict[str, int]:
    """Bytes that the limits of projects leave for the outputs of these jobs; only of those that are limited."""
    policies = policies_in_force(connection, settings)
    most = {job.project: policies.limits_of(job.project).output_bytes for job in jobs}
    limited = [job for job in jobs if most[job.project] is not None]
    if not limited:
        return {}
    kept = kept_amounts.amounts(connection, {kept_amounts.project_holder(job.project) for job in limited})
    own = outputs.sizes(connection, [job.id for job in limited])
    left = {}
    for job in limited:
        of_project = kept.get((kept_amounts.project_holder(job.project), Kept.OUTPUT_BYTES), 0)
        left[job.id] = output_bytes_left(most[job.project] or 0, of_project, own.get(job.id, 0))
    return left


def _closed_nodes(tick: Tick) -> tuple[str, ...]:
    """Nodes on which no worker may be placed yet, by id."""
    current = partial(node_store.current_nodes, cluster=tick.cluster, ended_since=tick.now)
    return not_ready_yet(tick.load(current))


class Launching:
    """Starts drivers until each reports that it has its plan, and knows since when this controller has tried."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, secrets: AttemptSecrets | None = None
    ) -> None:
        self._clock = clock
        self._since: dict[str, float] = {}
        self._secrets = secrets or AttemptSecrets()

    def launch(self, tick: Tick, live: LiveAttempts, launcher: Launcher, pairs: Iterable[JobAttempt]) -> None:
        """Bring the drivers of attempts whose rows exist nearer to their plans, and write down which have theirs.

        Does not wait, and is called at every tick until an attempt has `launched_at`: a controller may die anywhere
        here, and the next one does the same again.  Raises Fenced.
        """
        launched: list[str] = []
        ends: dict[str, tuple[EndReason, str]] = {}
        starting = list(pairs)
        jobs = [job for job, _ in starting]
        left = tick.load(partial(_output_bytes_left, tick.settings, jobs)) if jobs else {}
        closed = _closed_nodes(tick) if jobs and tick.settings.measures_nodes else ()
        for job, attempt in starting:
            answer = self._start(tick, launcher, job, attempt, left.get(job.id), closed)
            # One that was launched by a controller which was lost may have ended since: its records are taken next.
            stored = stored_end(tick, launcher, job, attempt) if is_lost(answer) else ()
            if stored is None:
                continue
            if isinstance(answer, DriverGone) and not stored:
                ends[attempt.id] = (answer.reason, answer.message)
            elif answer:
                launched.append(attempt.id)
                self._secrets.forget(attempt.id)
                log.info(
                    "attempt %d of %s was launched",
                    attempt.attempt,
                    job.id,
                    extra=about_attempt(job, attempt, tick.settings),
                )
        live.launched(launched)
        live.end(ends)

    def _start(
        self,
        tick: Tick,
        launcher: Launcher,
        job: JobRow,
        attempt: AttemptRow,
        output_bytes_left: int | None,
        closed_nodes: tuple[str, ...],
    ) -> bool | DriverGone:
        """Whether its driver has its plan; it is gone also where it can have none."""
        since = self._since.setdefault(attempt.id, self._clock())
        try:
            plan = attempt_plan(job, attempt, tick.settings, output_bytes_left)
            plan = replace(plan, closed_nodes=closed_nodes)
        except SpecError as error:
            return DriverGone(EndReason.START_FAILED, f"this version does not accept the job: {error}")
        except UnknownStore as error:
            return DriverGone(EndReason.START_FAILED, f"{FIELD}: {error}")
        answer: bool | DriverGone = False
        why = "it has not said that it has its plan"
        secrets = self._secrets.of(tick, job.project, plan)
        if isinstance(secrets, DriverGone):
            return secrets
        if isinstance(secrets, NotYet):
            why = secrets.why
        else:
            try:
                answer = launcher.start(replace(plan, secret_versions=secrets.versions), secrets.chunks)
            except Exception as error:
                log.warning(
                    "the driver of %s cannot be started: %s",
                    attempt.id,
                    error,
                    extra=about_attempt(job, attempt, tick.settings),
                )
                why = str(error)[:500]
        if answer is False and self._clock() - since > LAUNCH_TIMEOUT_S:
            message = f"its driver could not be started within {LAUNCH_TIMEOUT_S:g} s: {why}"
            return DriverGone(EndReason.DRIVER_LOST, message)
        return answer

    def forget_others(self, attempt_ids: Iterable[str]) -> None:
        """Drop all other attempts; only these may still have to be launched."""
        kept = set(attempt_ids)
        self._since = {one: since for one, since in self._since.items() if one in kept}
        self._secrets.forget_others(kept)
