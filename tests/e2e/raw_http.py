"""HTTP as badly behaved clients send it: what no client library would let one send."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPResponse
from typing import Any

CHUNK = b" " * 2**20


@dataclass(frozen=True)
class Reply:
    """One answer."""

    status: int
    media_type: str
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        """The body as an object."""
        document = json.loads(self.body)
        assert isinstance(document, dict)
        return document

    def is_problem(self, status: int, code: str) -> bool:
        """Fails unless it is a problem document with this status and this stable code."""
        assert (self.status, self.media_type) == (status, "application/problem+json"), self
        assert self.json["code"] == code, self
        assert self.json["status"] == status
        assert self.json["detail"]
        assert b"Traceback" not in self.body
        return True


class RawClient:
    """Sends HTTP requests over a plain socket, as no client library would."""

    def __init__(self, url: str) -> None:
        host, _, port = url.removeprefix("http://").partition(":")
        self._address = (host, int(port))

    def send(self, method: str, path: str, body: bytes = b"", **headers: str) -> Reply:
        """One request with its length; JSON unless the headers say otherwise."""
        return self._exchange(method, path, {"content-length": str(len(body)), **headers}, iter([body]))

    def send_chunks(self, method: str, path: str, count: int, *, announced: bool) -> Reply:
        """A body of `count` MiB, with its length or, when it is not `announced`, in chunks without one."""
        if announced:
            chunks_sent = (CHUNK for _ in range(count))
            return self._exchange(method, path, {"content-length": str(count * len(CHUNK))}, chunks_sent)
        frame = b"%x\r\n%b\r\n" % (len(CHUNK), CHUNK)
        chunks = (frame if number < count else b"0\r\n\r\n" for number in range(count + 1))
        return self._exchange(method, path, {"transfer-encoding": "chunked"}, chunks)

    def _exchange(self, method: str, path: str, headers: dict[str, str], body: Iterator[bytes]) -> Reply:
        named = {
            "host": "localhost",
            "content-type": "application/json",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in named.items())
        with socket.create_connection(self._address, timeout=60.0) as connection:
            connection.sendall(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1"))
            answered = None
            try:
                for chunk in body:
                    connection.sendall(chunk)
            except OSError as error:  # the service answered and closed before it had heard everything
                answered = error
            response = HTTPResponse(connection, method=method)
            try:
                response.begin()
            except OSError as error:
                raise AssertionError(f"no answer: {answered!r}, {error!r}") from error
            with response:
                media_type = response.headers.get("content-type", "")
                return Reply(response.status, media_type, response.read())
