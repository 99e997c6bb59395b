"""Limits for slow, silent or many clients: time, bytes and number of connections, below the application.

uvicorn by itself waits for headers and bodies without end, takes as many connections as come, takes headers of any
size, and keeps an answer that no client reads.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from service.listening import Listening

log = logging.getLogger(__name__)

#: Bytes that the parser is given at once, so that headers are counted while they come.
_CHUNK = 16 * 1024
_PHRASES = {
    403: "Forbidden",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


class GuardedProtocol(HttpToolsProtocol):
    """HTTP on one connection, which is closed when its client passes one of these limits.

    A request that the application has not begun to answer gets a short answer in plain text first: 408 for what comes
    too slowly, 431 for headers that are too large, 503 for a connection too many.
    """

    #: Bytes of a request's address and headers.
    max_header_bytes: ClassVar[int] = 64 * 1024
    #: Seconds from a connection, or from the first byte of a further request, to the end of the headers.
    headers_s: ClassVar[float] = 10.0
    #: A body brings `body_bytes`, or its end, within each `body_s` seconds in which the application reads it.
    body_s: ClassVar[float] = 10.0
    body_bytes: ClassVar[int] = 16 * 1024
    #: Seconds that a full buffer may wait for its client to read on.
    unread_s: ClassVar[float] = 30.0
    #: Connections from one address, and from all.
    most_of_client: ClassVar[int] = 256
    most_of_all: ClassVar[int] = 1024

    def __init__(self, *arguments: Any, reached: Listening | None = None, **options: Any) -> None:
        """`reached` says which peers are let in; without it all are."""
        super().__init__(*arguments, **options)
        self._reached = reached
        self._reading: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._is_in_headers = False
        self._is_refused = False
        #: Bytes since the headers, or the time for a part of the body, began.
        self._came = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request, unless there are too many connections."""
        super().connection_made(transport)
        address = _address_of(self)
        clients = [_address_of(one) for one in self.connections]
        if self._reached is not None and not self._reached.may_connect(address):
            log.warning(
                "a connection of %s is refused: it is neither a trusted proxy nor this machine", address
            )
            self._refuse(403, "reach the service over TLS, through its proxy")
            return
        # All clients behind a proxy have its address.
        is_proxy = self._reached is not None and self._reached.is_proxy(address)
        is_many = clients.count(address) > self.most_of_client and not is_proxy
        if len(clients) > self.most_of_all or is_many:
            log.warning("a connection of %s is refused: there are %d already", address, len(clients) - 1)
            self._refuse(503, "there are too many connections")
        else:
            self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all clocks."""
        self._set_reading(None)
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came, chunk by chunk."""
        for begin in range(0, len(data), _CHUNK):
            if self.transport.is_closing():
                return
            chunk = data[begin : begin + _CHUNK]
            super().data_received(chunk)
            self._came += len(chunk)
            if self._is_in_headers and self._came > self.max_header_bytes:
                self._refuse(431, f"the headers have more than {self.max_header_bytes} bytes")

    def on_message_begin(self) -> None:
        """A request begins; the clock of a connection's first one runs already."""
        super().on_message_begin()
        if not self._is_in_headers:
            self._expect_headers()

    def on_headers_complete(self) -> None:
        """Hand the request over, unless its headers were too large."""
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self.max_header_bytes:
            self._refuse(431, f"the headers have more than {self.max_header_bytes} bytes")
            return
        self._is_in_headers = False
        self._came = 0
        self._set_reading(self.loop.call_later(self.body_s, self._look_at_body))
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Hand a part of the body over."""
        if not self._is_refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is there as a whole."""
        if not self._is_refused:
            self._set_reading(None)
            super().on_message_complete()

    def pause_writing(self) -> None:
        """The client reads more slowly than it is answered."""
        super().pause_writing()
        if self._unread is None:
            self._unread = self.loop.call_later(self.unread_s, self.transport.abort)

    def resume_writing(self) -> None:
        """The client has read on."""
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _expect_headers(self) -> None:
        self._is_in_headers = True
        self._came = 0
        message = f"the headers did not come within {self.headers_s:g} s"
        self._set_reading(self.loop.call_later(self.headers_s, self._refuse, 408, message))

    def _look_at_body(self) -> None:
        """A part of the time for the body is over; what is paused waits for the application, not for its client."""
        if self.cycle.response_complete:
            self.transport.close()
        elif self._came < self.body_bytes and not self.flow.read_paused:
            self._refuse(408, f"of the body came less than {self.body_bytes} bytes in {self.body_s:g} s")
        else:
            self._came = 0
            self._set_reading(self.loop.call_later(self.body_s, self._look_at_body))

    def _set_reading(self, clock: asyncio.TimerHandle | None) -> None:
        if self._reading is not None:
            self._reading.cancel()
        self._reading = clock

    def _refuse(self, status: int, message: str) -> None:
        """Answer in place of the application when it has not begun to, and close."""
        self._is_refused = True
        self._set_reading(None)
        if self.transport.is_closing():
            return
        cycle = self.cycle
        is_begun = cycle is not None and not cycle.response_complete and cycle.response_started
        # Requests that wait in line do so behind an answer.
        is_answering = is_begun or bool(self.pipeline)
        # A connection on which nothing came ends without a word, as one that was kept alive does.
        if not is_answering and (self._came or status in (403, 503)):
            text = f"{message}\n".encode()
            head = (
                f"HTTP/1.1 {status} {_PHRASES[status]}\r\ncontent-type: text/plain; charset=utf-8\r\n"
                f"content-length: {len(text)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + text)
        if cycle is not None and not cycle.response_complete:
            # What the application still says goes nowhere.
            cycle.disconnected = True
            cycle.message_event.set()
        self.transport.close()


def _address_of(connection: object) -> str | None:
    client: tuple[str, int] | None = getattr(connection, "client", None)
    return client[0] if client else None
