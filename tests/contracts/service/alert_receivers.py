"""A receiver of webhooks: a real server on the loopback that answers as the test says."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Received:
    """One request."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def content(self) -> Any:
        return json.loads(self.body)

    def is_signed_with(self, secret: str) -> bool:
        """By the text of Standard Webhooks, and by nothing of the service."""
        key = base64.b64decode(secret.removeprefix("whsec_"))
        signed = f"{self.id}.{self.headers['webhook-timestamp']}.".encode() + self.body
        expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
        return f"v1,{expected}" in self.headers["webhook-signature"].split(" ")


@dataclass
class Receiver:
    """What came, and what is answered: the next of `answers`, or 204."""

    url: str = ""
    received: list[Received] = field(default_factory=list)
    #: A status; 0: no answer until `released`; -1: the connection ends; a text: a redirect to it.
    answers: list[int | str] = field(default_factory=list)
    arrived: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    released: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, request: Received) -> int | str:
        with self.lock:
            self.received.append(request)
            answer = self.answers.pop(0) if self.answers else 204
        self.arrived.release()
        if answer == 0:
            self.released.wait(60.0)
        return answer

    @property
    def ids(self) -> list[str]:
        with self.lock:
            return [one.id for one in self.received]


@contextmanager
def receiver() -> Iterator[Receiver]:
    made = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            answer = made.answer(Received(self.path, headers, body))
            if answer == -1 or (answer == 0 and not made.released.is_set()):
                self.close_connection = True
                return
            self.send_response(answer if isinstance(answer, int) and answer else 302 if answer else 204)
            if isinstance(answer, str):
                self.send_header("Location", answer)
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
