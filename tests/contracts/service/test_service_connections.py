"""Connections of clients that are slow, silent, or many, over real sockets with short limits."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import ClassVar

import pytest
import uvicorn
from starlette.types import Message, Receive, Scope, Send

from service.api.connections import GuardedProtocol

HEAD = b"POST / HTTP/1.1\r\nHost: localhost\r\n"


class Short(GuardedProtocol):
    """The same with limits that a test can wait for."""

    headers_s: ClassVar[float] = 0.3
    body_s: ClassVar[float] = 0.3
    unread_s: ClassVar[float] = 0.3
    most_of_client: ClassVar[int] = 4


class Subject:
    """An application that reads a body and answers with its length, or streams without end at /stream."""

    def __init__(self) -> None:
        self.stream_ended = threading.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if scope["path"] == "/stream":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            leaving = asyncio.ensure_future(self._left(receive))
            while not leaving.done():
                await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
                await asyncio.sleep(0)
            self.stream_ended.set()
            return
        size, more = 0, True
        while more:
            message: Message = await receive()
            if message["type"] == "http.disconnect":
                return
            size, more = size + len(message.get("body", b"")), message.get("more_body", False)
        text = str(size).encode()
        headers = [(b"content-length", str(len(text)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": text})

    async def _left(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass


@pytest.fixture(scope="module")
def subject() -> Subject:
    return Subject()


@pytest.fixture(scope="module")
def address(subject: Subject) -> Iterator[tuple[str, int]]:
    """Where it listens."""
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(subject, http=Short, ws="none", lifespan="off", log_config=None, access_log=False)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    yield listening.getsockname()[:2]
    server.should_exit = True
    thread.join(10)
    assert not thread.is_alive()
    listening.close()


@pytest.fixture
def client(address: tuple[str, int]) -> Iterator[socket.socket]:
    with socket.create_connection(address, timeout=10) as opened:
        yield opened


def all_of(client: socket.socket) -> bytes:
    """Everything until the service closes."""
    said = b""
    with contextlib.suppress(ConnectionResetError):
        while chunk := client.recv(65536):
            said += chunk
    return said


def test_requests_that_come_together_are_answered(client: socket.socket) -> None:
    client.sendall((HEAD + b"Content-Length: 5\r\n\r\nhello") * 3 + b"\r\n")
    said = b""
    while said.count(b"\r\n\r\n5") < 3:
        said += client.recv(65536)
    assert said.count(b"HTTP/1.1 200 OK") == 3


def test_a_connection_on_which_nothing_comes_is_closed(client: socket.socket) -> None:
    assert all_of(client) == b""


def test_headers_that_do_not_end_are_refused(client: socket.socket) -> None:
    client.sendall(HEAD)
    said = all_of(client)
    assert said.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    assert said.endswith(b"the headers did not come within 0.3 s\n")


def test_headers_of_a_further_request_have_no_more_time(client: socket.socket) -> None:
    client.sendall(HEAD + b"Content-Length: 0\r\n\r\n" + HEAD)
    said = all_of(client)
    assert said.startswith(b"HTTP/1.1 200 OK")
    assert b"HTTP/1.1 408" in said


@pytest.mark.parametrize("extra", [0, 1])
def test_headers_have_64_kib(client: socket.socket, extra: int) -> None:
    given = len(b"/") + len(b"host") + len(b"localhost") + 4 + len(b"content-length") + 1 + 4 + len(b"x") + 4
    client.sendall(HEAD + b"Content-Length: 0\r\nX: " + b"a" * (65536 - given + extra) + b"\r\n\r\n")
    assert client.recv(65536).startswith(b"HTTP/1.1 431" if extra else b"HTTP/1.1 200")


def test_headers_without_end_are_not_collected(client: socket.socket) -> None:
    sent = 0
    with contextlib.suppress(OSError):
        client.sendall(HEAD + b"X: ")
        while sent < 64 * 2**20:
            sent += client.send(b"a" * 65536)
    assert sent < 16 * 2**20


def test_a_body_that_does_not_come_is_refused(client: socket.socket) -> None:
    client.sendall(HEAD + b"Content-Length: 50\r\n\r\nhello")
    said = all_of(client)
    assert said.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    assert said.endswith(b"of the body came less than 16384 bytes in 0.3 s\n")


def test_a_body_that_comes_fast_enough_is_read(client: socket.socket) -> None:
    client.sendall(HEAD + b"Content-Length: 4000000\r\n\r\n" + b"x" * 4_000_000)
    said = b""
    while not said.endswith(b"\r\n\r\n4000000"):
        chunk = client.recv(65536)
        assert chunk, said
        said += chunk


def test_an_answer_that_no_client_reads_ends(client: socket.socket, subject: Subject) -> None:
    subject.stream_ended.clear()
    client.sendall(b"GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert subject.stream_ended.wait(20)


def test_a_client_has_so_many_connections(address: tuple[str, int]) -> None:
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(socket.create_connection(address, timeout=10)) for _ in range(5)]
        # All others are open until their time is over.
        assert all_of(opened[4]).startswith(b"HTTP/1.1 503 Service Unavailable\r\n")


def test_an_upgrade_is_no_way_around(client: socket.socket) -> None:
    client.sendall(HEAD + b"Connection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 0\r\n\r\n")
    assert b" 101 " not in all_of(client)
