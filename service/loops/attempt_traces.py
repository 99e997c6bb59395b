"""The trace of an attempt, for its commands and for the log lines that are about it (pure)."""

from __future__ import annotations

from remora.process_log import about
from service.queue.rows import AttemptRow, JobRow
from service.queue.spans import traceparent_of
from service.settings import Settings


def attempt_traceparent(job: JobRow, attempt: AttemptRow, settings: Settings) -> str | None:
    """The W3C trace context of the attempt's span `start`; None where there is no trace.

    Where nothing is traced here, its command has the trace of who submitted the job, if there is one.
    """
    is_traced = bool(settings.otlp_endpoint) or job.traceparent is not None
    return traceparent_of(job, attempt.id) if is_traced else None


def about_attempt(job: JobRow, attempt: AttemptRow, settings: Settings) -> dict[str, str]:
    """What a message about the attempt is about: the `extra` of a logger's call."""
    traceparent = attempt_traceparent(job, attempt, settings)
    return about(job=job.id, attempt=attempt.id, project=job.project, traceparent=traceparent)
