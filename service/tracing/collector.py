"""Sends spans by the exporter of OpenTelemetry's SDK, and leaves a collector alone for a while that takes none."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence

import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

log = logging.getLogger(__name__)

#: Seconds for a request, with all its repetitions.
TIMEOUT_S = 5.0
#: Seconds without a try after the first failure, twice as many after each further one, and at most.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
#: Where OTLP takes traces below a collector's URL: https://opentelemetry.io/docs/specs/otlp/#otlphttp-request.
_PATH = "/v1/traces"
#: Answers after which the same spans must not be sent again.
_REFUSALS = (400, 413)


class Collector(SpanExporter):
    """Takes spans; what it cannot send is lost to its caller, who may keep it.

    `export` may be called by one thread at a time, `shutdown` by any.
    """

    def __init__(self, endpoint: str, headers: Mapping[str, str], monotonic: Callable[[], float]) -> None:
        """`endpoint` is the collector's URL, with or without `/v1/traces`; nothing is sent yet."""
        # What the SDK logs may quote a header, and comes with each try.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL + 1)
        self._endpoint = endpoint
        self._monotonic = monotonic
        self._status: int | None = None
        self._failures = 0
        self._not_before = 0.0
        self._is_closed = threading.Event()
        session = requests.Session()
        session.hooks["response"] = [self._note_status]
        base = endpoint.rstrip("/")
        self._exporter = OTLPSpanExporter(
            endpoint=base if base.endswith(_PATH) else base + _PATH,
            headers=headers,
            timeout=TIMEOUT_S,
            session=session,
        )

    @property
    def is_open(self) -> bool:
        """False after `shutdown`."""
        return not self._is_closed.is_set()

    def is_due(self) -> bool:
        """Whether spans would be sent now; they are not for a while after a failure."""
        return self.is_open and (self._failures == 0 or self._monotonic() >= self._not_before)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send spans within seconds; SUCCESS also for those that the collector will never take."""
        if not self.is_due():
            return SpanExportResult.FAILURE
        self._status = None
        try:
            result = self._exporter.export(spans)
        except Exception:
            # Whatever it is: traces hold nothing up, and its text may quote a header.
            result = SpanExportResult.FAILURE
        if result is SpanExportResult.SUCCESS:
            self._note_success()
        elif self._status in _REFUSALS:
            log.warning(
                "the collector %s refuses spans with %s: they are dropped", self._endpoint, self._status
            )
            return SpanExportResult.SUCCESS
        else:
            self._note_failure()
        return result

    def shutdown(self) -> None:
        """Send nothing more; a pause between two tries of a request ends."""
        if not self._is_closed.is_set():
            self._is_closed.set()
            self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def force_flush(self, timeout_millis: int = 30000) -> bool:  # noqa: ARG002 - nothing is kept here
        """Nothing is kept here."""
        return True

    def _note_status(self, response: requests.Response, *_: object, **__: object) -> None:
        self._status = response.status_code

    def _note_success(self) -> None:
        if self._failures:
            log.info("the collector %s takes traces again", self._endpoint)
        self._failures = 0

    def _note_failure(self) -> None:
        pause_s = min(FIRST_PAUSE_S * 2 ** min(self._failures, 16), LONGEST_PAUSE_S)
        self._not_before = self._monotonic() + pause_s
        self._failures += 1
        if self._failures == 1 and not self._is_closed.is_set():
            said = "does not answer" if self._status is None else f"answers {self._status}"
            log.warning("traces cannot be sent, trying again: the collector %s %s", self._endpoint, said)
