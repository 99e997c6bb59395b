"""How a collector is named, which headers it gets, and when it is left alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from opentelemetry.sdk.trace.export import SpanExportResult
from pydantic import ValidationError

from service.queue.spans import AttemptSpan
from service.settings import Settings
from service.tracing.collector import Collector
from service.tracing.opening import TracingUnusable, check_tracing, open_collector
from service.tracing.readable_spans import readable, resource_of
from tests.contracts.service.otlp_receivers import otlp_receiver

SPAN = AttemptSpan(trace_id=1, span_id=2, parent_id=None, name="start", began_at=1.0, ended_at=2.5)


@pytest.mark.parametrize(
    "url",
    ["collector:4318", "grpc://collector:4317", "http://", "http://user:word@collector", "http://c?key=word"],
)
def test_what_is_no_url_of_a_collector_is_refused(url: str) -> None:
    with pytest.raises(ValidationError):
        Settings(otlp_endpoint=url)


def test_without_a_collector_nothing_is_opened() -> None:
    assert open_collector(Settings(), lambda: 0.0) is None
    check_tracing(Settings(otlp_headers_file=Path("/nowhere")))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Name value\n", "line 1"),
        (": value\n", "line 1"),
        ("a: b\nna me: value\n", "line 2"),
        ("name: v\x00\n", "line 1"),
        ("name: \u00e9\n", "cannot be read"),
        ("x" * 70_000, "has more than"),
        (None, "cannot be read"),
    ],
)
def test_a_file_that_has_no_headers_is_refused(tmp_path: Path, text: str | None, said: str) -> None:
    file = tmp_path / "headers"
    if text is not None:
        file.write_text(text)
    with pytest.raises(TracingUnusable, match=said):
        check_tracing(Settings(otlp_endpoint="http://collector", otlp_headers_file=file))


@pytest.mark.parametrize("end", ["", "/", "/v1/traces"])
def test_spans_and_headers_reach_it(end: str, tmp_path: Path) -> None:
    file = tmp_path / "headers"
    file.write_text("# token\n\nX-Token:  one: two \n")
    with otlp_receiver() as receiver:
        settings = Settings(otlp_endpoint=receiver.url + end, otlp_headers_file=file)
        collector = open_collector(settings, lambda: 0.0)
        assert collector is not None
        assert collector.export([readable(SPAN, resource_of("controller"))]) is SpanExportResult.SUCCESS
        (span,) = receiver.spans
        assert (span.name, span.began_ns, span.ended_ns, span.parent_id) == ("start", 10**9, 25 * 10**8, "")
        assert receiver.headers[0]["x-token"] == "one: two"
        collector.shutdown()


def test_after_each_failure_it_is_left_alone_for_twice_as_long(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    now = 0.0
    with otlp_receiver() as receiver:
        receiver.answers += [401] * 8
        collector = Collector(receiver.url, {}, lambda: now)
        spans = [readable(SPAN, resource_of("controller"))]
        for pause_s in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0):
            assert collector.export(spans) is SpanExportResult.FAILURE
            now += pause_s - 0.1
            assert not collector.is_due()
            assert collector.export(spans) is SpanExportResult.FAILURE
            now += 0.1
            assert collector.is_due()
        assert len(receiver.headers) == 8, "it is not asked meanwhile"
        assert collector.export(spans) is SpanExportResult.SUCCESS
        collector.shutdown()
        assert collector.export(spans) is SpanExportResult.FAILURE
    lines = [record.getMessage() for record in caplog.records]
    assert [line for line in lines if "collector" in line] == [
        f"traces cannot be sent, trying again: the collector {receiver.url} answers 401",
        f"the collector {receiver.url} takes traces again",
    ]
