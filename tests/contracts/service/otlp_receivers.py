"""A collector: a real server on the loopback that reads OTLP over HTTP and answers as the test says."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class ReceivedSpan:
    """A span as it came."""

    service: str
    trace_id: str
    span_id: str
    parent_id: str
    name: str
    began_ns: int
    ended_ns: int
    attributes: dict[str, Any]
    is_error: bool
    links: tuple[tuple[str, str], ...]
    moments: tuple[str, ...]


@dataclass
class OtlpReceiver:
    """What came, and what is answered: the next of `answers`, or 200."""

    url: str = ""
    spans: list[ReceivedSpan] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    #: A status; 0: no answer until `released`.
    answers: list[int] = field(default_factory=list)
    arrived: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    released: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, path: str, headers: dict[str, str], body: bytes) -> int:
        assert path == "/v1/traces"
        with self.lock:
            answer = self.answers.pop(0) if self.answers else 200
            self.headers.append(headers)
            if answer == 200:
                self.spans += _read(body)
        self.arrived.release()
        if answer == 0:
            self.released.wait(60.0)
        return answer

    def wait(self, requests: int = 1) -> None:
        """Wait until that number of further requests has come."""
        for _ in range(requests):
            assert self.arrived.acquire(timeout=30.0), "nothing came"

    def wait_for(self, name: str) -> None:
        """Wait until a span of that name has come; a request may have several."""
        while not self.named(name):
            self.wait()

    def named(self, name: str) -> list[ReceivedSpan]:
        with self.lock:
            return [one for one in self.spans if one.name == name]

    def only(self, name: str) -> ReceivedSpan:
        (found,) = self.named(name)
        return found


def _read(body: bytes) -> list[ReceivedSpan]:
    request = ExportTraceServiceRequest.FromString(body)
    return [
        ReceivedSpan(
            service=_values(of.resource.attributes)["service.name"],
            trace_id=span.trace_id.hex(),
            span_id=span.span_id.hex(),
            parent_id=span.parent_span_id.hex(),
            name=span.name,
            began_ns=span.start_time_unix_nano,
            ended_ns=span.end_time_unix_nano,
            attributes=_values(span.attributes),
            is_error=span.status.code == 2,
            links=tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
            moments=tuple(event.name for event in span.events),
        )
        for of in request.resource_spans
        for scope in of.scope_spans
        for span in scope.spans
    ]


def _values(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


@contextmanager
def otlp_receiver() -> Iterator[OtlpReceiver]:
    made = OtlpReceiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            answer = made.answer(self.path, headers, body)
            if answer == 0:
                self.close_connection = True
                return
            self.send_response(answer)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *words: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    made.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield made
    finally:
        made.released.set()
        server.shutdown()
        server.server_close()
        thread.join()
