"""A proxy before PostgreSQL that breaks a connection at its COMMIT: before the server has it, or after it was done."""

from __future__ import annotations

import contextlib
import socket
import threading
from enum import Enum

import sqlalchemy as sa


class Cut(Enum):
    """Where a connection breaks."""

    #: The server never hears of the COMMIT.
    BEFORE = 1
    #: The server hears of it, and its answer is lost.
    AT_ONCE = 2
    #: The same, once it has answered.
    AFTER = 3


_COMMIT = b"COMMIT\x00"


class CuttingProxy:
    """Listens on a loopback port; `url` leads through it."""

    def __init__(self, url: str) -> None:
        parsed = sa.make_url(url)
        assert parsed.host is not None
        assert parsed.port is not None
        self._server = (parsed.host, parsed.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        self.url = parsed.set(host="127.0.0.1", port=port).render_as_string(hide_password=False)
        self._next: Cut | None = None
        #: Connections that are still to be refused.
        self.to_refuse = 0
        #: Set when a connection was broken.
        self.has_cut = threading.Event()
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut_next(self, where: Cut) -> None:
        """Break the connection that commits next."""
        self.has_cut.clear()
        self._next = where

    def close(self) -> None:
        """Break all connections, and take no new one."""
        for one in (self._listener, *self._open):
            _end(one)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self.to_refuse:
                    self.to_refuse -= 1
                    _end(client)
                    continue
                server = socket.create_connection(self._server)
                self._open += [client, server]
                cut = threading.Event()
                threading.Thread(target=self._forward, args=(client, server, cut), daemon=True).start()
                threading.Thread(target=self._answer, args=(server, client, cut), daemon=True).start()

    def _forward(self, client: socket.socket, server: socket.socket, cut: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while chunk := client.recv(65536):
                where = self._next if _COMMIT in chunk else None
                if where is not None:
                    self._next = None
                if where is Cut.BEFORE:
                    break
                if where is not None:
                    cut.set()
                server.sendall(chunk)
                if where is Cut.AT_ONCE:
                    _end(client)
                    self.has_cut.set()
                    # The server goes on with what it was asked for.
                    return
        _end(client)
        _end(server)
        self.has_cut.set()

    def _answer(self, server: socket.socket, client: socket.socket, cut: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while chunk := server.recv(65536):
                if cut.is_set():
                    break
                client.sendall(chunk)
        _end(client)
        if cut.is_set():
            self.has_cut.set()


def _end(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    with contextlib.suppress(OSError):
        one.close()
