"""Spans of attempts in the form that the exporter of OpenTelemetry's SDK takes."""

from __future__ import annotations

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

import remora
from service.queue.spans import AttemptSpan

_SCOPE = InstrumentationScope("remora", remora.__version__)


def resource_of(process: str) -> Resource:
    """What sends spans; `OTEL_RESOURCE_ATTRIBUTES` adds to it."""
    return Resource.create({"service.name": f"remora-{process}", "service.version": remora.__version__})


def readable(span: AttemptSpan, resource: Resource) -> ReadableSpan:
    """The span as the SDK would have recorded it."""
    parent = None if span.parent_id is None else _context(span.trace_id, span.parent_id)
    return ReadableSpan(
        name=span.name,
        context=_context(span.trace_id, span.span_id),
        parent=parent,
        resource=resource,
        attributes=dict(span.attributes),
        events=[Event(name, timestamp=_nanoseconds(at)) for name, at in span.moments],
        links=[] if span.link is None else [Link(_context(*span.link))],
        kind=SpanKind.INTERNAL,
        status=Status(StatusCode.ERROR if span.is_error else StatusCode.UNSET),
        start_time=_nanoseconds(span.began_at),
        end_time=_nanoseconds(span.ended_at),
        instrumentation_scope=_SCOPE,
    )


def _context(trace_id: int, span_id: int) -> SpanContext:
    return SpanContext(trace_id, span_id, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _nanoseconds(at: float) -> int:
    return int(at * 1e9)
