"""Sends spans of attempts to the collector, and then marks until when they were sent.

A process may be killed between the two: then the same spans, with the same ids, are sent once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from service.loops.tick import Tick
from service.queue.spans import AttemptFacts, AttemptSpan, spans_of
from service.settings import Settings
from service.store import unsent_spans
from service.tracing.opening import open_collector

if TYPE_CHECKING:
    from service.tracing.collector import Collector

#: Attempts of one step, and spans of one request.
MOST_ATTEMPTS, MOST_SPANS = 50, 512
#: Seconds after which what was not sent is given up.
LIFETIME_S = 86_400.0


class Traces:
    """Used in a thread of its own, as a collector that does not answer takes seconds of each try."""

    def __init__(self, settings: Settings, monotonic: Callable[[], float]) -> None:
        """Raises TracingUnusable."""
        self._collector = open_collector(settings, monotonic)

    def step(self, tick: Tick) -> None:
        """Send what is new of attempts, unless the collector has just failed.  Raises Fenced."""
        collector = self._collector
        if collector is None or not collector.is_due():
            return
        found = tick.load(partial(unsent_spans.untraced, since=tick.now - LIFETIME_S, most=MOST_ATTEMPTS))
        for facts, spans in _requests(found):
            tick.check()
            if spans and not _send(collector, spans):
                return
            if not collector.is_open:
                return
            tick.apply(partial(unsent_spans.mark, sent=[one.attempt for one in facts]))

    def close(self) -> None:
        """Send nothing more; a request that is under way ends within seconds."""
        if self._collector is not None:
            self._collector.shutdown()


def _requests(found: Sequence[AttemptFacts]) -> Iterator[tuple[list[AttemptFacts], list[AttemptSpan]]]:
    """Attempts whose spans are sent together."""
    facts, spans = list[AttemptFacts](), list[AttemptSpan]()
    for one in found:
        more = spans_of(one)
        if facts and len(spans) + len(more) > MOST_SPANS:
            yield facts, spans
            facts, spans = [], []
        facts.append(one)
        spans.extend(more)
    if facts:
        yield facts, spans


def _send(collector: Collector, spans: Sequence[AttemptSpan]) -> bool:
    """Whether the collector has taken them, or never will."""
    from opentelemetry.sdk.trace.export import SpanExportResult

    from service.tracing.readable_spans import readable, resource_of

    resource = resource_of("controller")
    return all(
        collector.export([readable(one, resource) for one in spans[at : at + MOST_SPANS]])
        is SpanExportResult.SUCCESS
        for at in range(0, len(spans), MOST_SPANS)
    )
