"""Spans of an attempt for OpenTelemetry, from what is stored of it (pure).

    the request that submitted the job
      queued           from the submission, or the end of the attempt before, until the attempt was created
        waiting_for_nodes, waiting_for_turn, ..., paused
      start            until its first step was done, or its end
        starting, preparing, running, training, recomputing, checkpoint, draining
        end            at its end, with the reason

A span is made when it is over and its parent is, so that no trace names a parent that is still to come.  Ids are
digests of what the span is of: one that is sent twice is the same span.  Spans hold ids and words of closed sets, and
no text of users but the name of a project.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import pairwise
from math import inf

from cluster.scheduling.actions import WaitsFor
from remora.states import EndReason
from service.queue.rows import AttemptRow, JobRow, PhaseRow

#: Phases of one attempt that become spans, the first ones; a checkpoint of a second makes two.
MOST_PHASES = 1000
#: How the stored form looks: version 0 of https://www.w3.org/TR/trace-context/#traceparent-header.
_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_SAMPLED = 1
_WAITS = frozenset(WaitsFor)
#: Ends that are no failure.
_AS_ASKED = frozenset(
    {
        EndReason.COMPLETED,
        EndReason.CANCELLED,
        EndReason.STOPPED_EARLY,
        EndReason.PAUSED,
        EndReason.EVICTED,
    }
)


@dataclass(frozen=True)
class TraceContext:
    """The place of a span in a trace."""

    trace_id: int
    #: None: the trace has no span yet.
    span_id: int | None
    #: False: who began the trace does not want it to be recorded.
    is_sampled: bool = True


@dataclass(frozen=True, kw_only=True)
class AttemptSpan:
    """One span; times are seconds since 1970."""

    trace_id: int
    span_id: int
    #: None: it is the first one of its trace.
    parent_id: int | None
    #: A span elsewhere from which this one follows, by its trace and id.
    link: tuple[int, int] | None = None
    name: str
    began_at: float
    ended_at: float
    attributes: Mapping[str, str | int | bool] = field(default_factory=dict)
    is_error: bool = False
    #: What happened within it, by name, and when.
    moments: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Wait:
    """From when a job waited for something; None: from when it did not wait for anything of which a span reports."""

    at: float
    name: str | None


@dataclass(frozen=True, kw_only=True)
class AttemptFacts:
    """What is stored of an attempt of which new spans may be made."""

    job: JobRow
    attempt: AttemptRow
    #: From when its job waited for this attempt, in seconds since 1970.
    waits_since: float
    #: In the order of time.
    waits: Sequence[Wait] = ()
    #: In the order of their numbers; those before the one that was open at `attempt.traced_at` may be left out.
    phases: Sequence[PhaseRow] = ()


def wait_of(kind: str, at: float, reason: object) -> Wait | None:
    """What an event of a job says of its waiting: its kind, its time, and the reason in its data; None: nothing."""
    if kind == "job.waiting":
        return Wait(at, str(reason) if reason in _WAITS else None)
    if kind == "job.paused":
        return Wait(at, "paused")
    return Wait(at, None) if kind == "job.queued" else None


def context_of(job: JobRow) -> TraceContext:
    """The trace of a job: that of the request; of its own where there was none, or one for a whole array."""
    sender = _sender(job)
    if sender is not None and job.array_id is None:
        return sender
    own = _id(16, "trace", job.id)
    return TraceContext(own, None, sender is None or sender.is_sampled)


def traceparent_of(job: JobRow, attempt_id: str) -> str:
    """The W3C trace context for the commands of an attempt: its span `start` is the parent of theirs."""
    context = context_of(job)
    flags = _SAMPLED if context.is_sampled else 0
    return f"00-{context.trace_id:032x}-{_id(8, 'start', attempt_id):016x}-{flags:02x}"


def traced_until(attempt: AttemptRow) -> float:
    """Until when the spans of an attempt are over that can be made of it now, in seconds since 1970."""
    return max(attempt.created_at, attempt.phase_at or 0.0, attempt.ended_at or 0.0)


def spans_of(facts: AttemptFacts) -> tuple[AttemptSpan, ...]:
    """The spans of an attempt that are over and were not sent before, as `traced_at` and `is_traced` say.

    There are none before its first step or its end, and none of a trace that is not recorded.
    """
    job, attempt = facts.job, facts.attempt
    has_begun = attempt.trained_at is not None or attempt.ended_at is not None
    if not has_begun or not context_of(job).is_sampled:
        return ()
    maker = _Maker(job, attempt)
    first = () if attempt.traced_at is not None else (*_waiting(facts, maker), _start(attempt, maker))
    return (*first, *_phases(facts, maker), *_end(attempt, maker))


class _Maker:
    """Makes spans of one attempt."""

    def __init__(self, job: JobRow, attempt: AttemptRow) -> None:
        self._context = context_of(job)
        self._attempt_id = attempt.id
        sender = _sender(job)
        is_elsewhere = sender is not None and sender.trace_id != self._context.trace_id
        self._link = (sender.trace_id, sender.span_id) if sender and sender.span_id and is_elsewhere else None
        self._attributes: dict[str, str | int | bool] = {
            "remora.job.id": job.id,
            "remora.attempt.id": attempt.id,
            "remora.attempt.number": attempt.attempt,
            "remora.project": job.project,
            "remora.cluster": attempt.cluster,
        }

    def id_of(self, *parts: object) -> int:
        return _id(8, *parts, self._attempt_id)

    def make(
        self,
        name: str,
        began_at: float,
        ended_at: float,
        *parts: object,
        parent: int | None = None,
        is_error: bool = False,
        moments: tuple[tuple[str, float], ...] = (),
        **more: str | int | bool,
    ) -> AttemptSpan:
        """A span whose id is that of `parts`; without a `parent` it is below the request."""
        added = {f"remora.{name.replace('__', '.')}": value for name, value in more.items()}
        return AttemptSpan(
            trace_id=self._context.trace_id,
            span_id=self.id_of(*parts),
            parent_id=self._context.span_id if parent is None else parent,
            link=self._link if parent is None else None,
            name=name,
            began_at=began_at,
            # Clocks of several machines made the times.
            ended_at=max(began_at, ended_at),
            attributes={**self._attributes, **added},
            is_error=is_error,
            moments=moments,
        )


def _waiting(facts: AttemptFacts, maker: _Maker) -> Iterator[AttemptSpan]:
    began_at, ended_at = min(facts.waits_since, facts.attempt.created_at), facts.attempt.created_at
    yield maker.make("queued", began_at, ended_at, "queued")
    within = [one for one in facts.waits if began_at <= one.at <= ended_at]
    for number, (one, after) in enumerate(pairwise([*within, Wait(ended_at, None)])):
        if one.name is not None and after.at > one.at:
            yield maker.make(one.name, one.at, after.at, "wait", number, parent=maker.id_of("queued"))


def _start(attempt: AttemptRow, maker: _Maker) -> AttemptSpan:
    first_step = attempt.trained_at
    over_at = first_step if first_step is not None else attempt.ended_at
    assert over_at is not None
    over_at = max(over_at, attempt.created_at)
    return maker.make(
        "start",
        attempt.created_at,
        over_at,
        "start",
        is_error=first_step is None and _has_failed(attempt),
        moments=() if first_step is None else (("first_step", over_at),),
        first_step=first_step is not None,
    )


def _phases(facts: AttemptFacts, maker: _Maker) -> Iterator[AttemptSpan]:
    attempt = facts.attempt
    over = [(one, after.began_at) for one, after in pairwise(facts.phases)]
    newest = facts.phases[-1] if facts.phases else None
    if newest is not None and attempt.ended_at is not None and newest.number == attempt.phase_number:
        over.append((newest, attempt.ended_at))
    sent_until = -inf if attempt.traced_at is None else attempt.traced_at
    for one, ended_at in over:
        if one.number <= MOST_PHASES and ended_at > max(one.began_at, sent_until):
            yield maker.make(
                one.phase.value,
                one.began_at,
                ended_at,
                "phase",
                one.number,
                parent=maker.id_of("start"),
                phase__number=one.number,
            )


def _end(attempt: AttemptRow, maker: _Maker) -> Iterator[AttemptSpan]:
    if attempt.ended_at is not None and attempt.end_reason is not None and not attempt.is_traced:
        yield maker.make(
            "end",
            attempt.ended_at,
            attempt.ended_at,
            "end",
            parent=maker.id_of("start"),
            is_error=_has_failed(attempt),
            end_reason=attempt.end_reason.value,
        )


def _has_failed(attempt: AttemptRow) -> bool:
    return attempt.end_reason is not None and attempt.end_reason not in _AS_ASKED


def _sender(job: JobRow) -> TraceContext | None:
    """The context that the request had."""
    found = _TRACEPARENT.fullmatch(job.traceparent or "")
    if found is None:
        return None
    trace_id, span_id, flags = (int(part, 16) for part in found.groups())
    return TraceContext(trace_id, span_id, bool(flags & _SAMPLED))


def _id(size: int, *parts: object) -> int:
    """A number with that many bytes; 0 is none."""
    digest = sha256("/".join(("remora", *map(str, parts))).encode()).digest()
    return int.from_bytes(digest[:size], "big") or 1
