"""A proxy before a server of the loopback that counts the bytes which the server sends."""

from __future__ import annotations

import contextlib
import socket
import threading


class CountingProxy:
    """Listens on a loopback port of its own."""

    def __init__(self, port: int) -> None:
        self._server = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        #: Bytes from the server so far.
        self.received = 0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Take no new connection."""
        # A thread that waits is not woken by `close`, and its next call would be for whatever has the descriptor then.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                for source, target, is_counted in ((client, server, False), (server, client, True)):
                    copy = threading.Thread(target=self._copy, args=(source, target, is_counted), daemon=True)
                    copy.start()

    def _copy(self, source: socket.socket, target: socket.socket, is_counted: bool) -> None:
        with contextlib.suppress(OSError):
            while content := source.recv(2**18):
                if is_counted:
                    with self._lock:
                        self.received += len(content)
                target.sendall(content)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
