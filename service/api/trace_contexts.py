"""The trace that a request is part of, as its jobs keep it."""

from __future__ import annotations

from opentelemetry import trace
from opentelemetry.trace import SpanContext
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.requests import Request

_HEADER = "traceparent"
_PROPAGATOR = TraceContextTextMapPropagator()


def traceparent_of(request: Request) -> str | None:
    """The W3C trace context of the request's span, or the one that it was sent with where it has no span.

    What is no such context is passed over, as https://www.w3.org/TR/trace-context/ asks.
    """
    current = trace.get_current_span().get_span_context()
    if current.is_valid:
        return _written(current)
    sent = request.headers.getlist(_HEADER)
    if len(sent) != 1:
        return None
    found = trace.get_current_span(_PROPAGATOR.extract({_HEADER: sent[0]})).get_span_context()
    return _written(found) if found.is_valid else None


def _written(context: SpanContext) -> str:
    flags = context.trace_flags & trace.TraceFlags.SAMPLED
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{flags:02x}"
