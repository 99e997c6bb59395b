"""Spans of requests, which FastAPI makes, on their way to the collector."""

from __future__ import annotations

import threading
from collections.abc import MutableMapping
from typing import Any

from fastapi.telemetry import TelemetryConfig
from opentelemetry.context import Context
from opentelemetry.sdk.trace import Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from service.identities.permissions import PAGE_FILES
from service.tracing.collector import Collector
from service.tracing.readable_spans import resource_of

#: Spans that wait for the collector at most; more are dropped.
MOST_WAITING = 2048
#: Milliseconds between two requests to the collector, unless many spans wait.
EVERY_MS = 1000
#: Seconds that the end of the process waits for the last ones.
CLOSE_S = 2.0
#: Asked again and again by programs.
_PROBES = frozenset({"/healthz", "/readyz", "/metrics"})


class RequestSpans:
    """What FastAPI needs to make spans of requests, until `close`."""

    def __init__(self, collector: Collector) -> None:
        self._provider = TracerProvider(resource=resource_of("api"), shutdown_on_exit=False)
        self._provider.add_span_processor(_WithoutParameters())
        self._provider.add_span_processor(
            BatchSpanProcessor(collector, max_queue_size=MOST_WAITING, schedule_delay_millis=EVERY_MS)
        )

    @property
    def telemetry(self) -> TelemetryConfig:
        """Spans of requests alone."""
        return {
            "tracer_provider": self._provider,
            "metrics": False,
            "logs": False,
            "operation_spans": False,
            "auto_configure": False,
            "exclude": _is_excluded,
        }

    def close(self) -> None:
        """Send what waits, for two seconds at most."""
        # The SDK would wait for as long as its requests take.
        closing = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        closing.start()
        closing.join(CLOSE_S)


class _WithoutParameters(SpanProcessor):
    """Parameters of requests may be secrets, and paths name files, secrets and people; the route is sent."""

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:  # noqa: ARG002
        for name in ("url.query", "url.path"):
            if span.attributes is not None and name in span.attributes:
                span.set_attribute(name, "REDACTED")


def _is_excluded(scope: MutableMapping[str, Any]) -> bool:
    path = scope.get("path", "")
    return path in _PROBES or path.startswith(PAGE_FILES)
