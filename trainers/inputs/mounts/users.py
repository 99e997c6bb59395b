"""The supervisors that use a mount, as its process has them: it ends with the last, and asks any of them for grants."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Collection
from pathlib import Path

from trainers.inputs.mounts import messages
from trainers.inputs.mounts.addresses import socket_address
from trainers.inputs.mounts.messages import ConnectionEnded
from trainers.storage import StorageError
from trainers.storage_grants import ANSWERED_S, StorageAnswer, StorageRequest

#: Seconds that a mount waits for its first user, and for another one after the last.
_FIRST_S, _NEXT_S = 30.0, 2.0
#: Seconds between two looks for users that have gone.
_LOOK_S = 0.5


class _User:
    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.stream = connection.makefile("rwb")
        #: Held for a request and its answer.
        self.lock = threading.Lock()

    def is_gone(self) -> bool:
        """It has closed its end; asked while nothing is awaited from it."""
        if not self.lock.acquire(blocking=False):
            return False
        try:
            self.connection.settimeout(0)
            return self.connection.recv(1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True
        finally:
            with contextlib.suppress(OSError):
                self.connection.settimeout(2 * ANSWERED_S)
            self.lock.release()


class Users:
    """All connections to one mount."""

    def __init__(self, path: Path) -> None:
        """Listen at `path`; only this user may connect.  Raises OSError."""
        self._path = path
        self._users: list[_User] = []
        self._lock = threading.Lock()
        #: A user has come.
        self._came = threading.Condition(self._lock)
        self._listener = socket.socket(socket.AF_UNIX)
        with socket_address(path.parent) as address:
            self._listener.bind(address)
        path.chmod(0o600)
        self._listener.listen(128)
        self._listener.settimeout(_LOOK_S)

    def ask(self, request: StorageRequest) -> StorageAnswer:
        """The answer of any user, also of one that comes as the last one leaves.  Raises StorageError without one."""
        asked: set[_User] = set()
        until = time.monotonic() + _NEXT_S
        while (user := self._next(asked, until)) is not None:
            asked.add(user)
            try:
                with user.lock:
                    messages.send(user.stream, messages.request_message(request))
                    return messages.answer_of(messages.receive(user.stream))
            except ConnectionEnded:
                self._drop(user)
        raise StorageError("no job that uses the mount is left to ask for a grant")

    def _next(self, asked: Collection[_User], until: float) -> _User | None:
        """A user that was not asked, which may come until a time; None when there is none."""

        def fresh() -> _User | None:
            return next((user for user in self._users if user not in asked), None)

        with self._came:
            return self._came.wait_for(fresh, max(0.0, until - time.monotonic()))

    def say(self, text: str) -> None:
        """A line for the logs of all jobs that use the mount."""
        for user in self._all():
            try:
                with user.lock:
                    messages.send(user.stream, {"type": "say", "text": text})
            except ConnectionEnded:
                self._drop(user)

    def serve(self) -> None:
        """Take users until there have been none for a while; no further one can connect afterwards."""
        self._take(_FIRST_S)
        self._path.unlink(missing_ok=True)
        # Who connected while it was there is served as well.
        self._take(_LOOK_S)
        self._listener.close()

    def _take(self, first_s: float) -> None:
        until = time.monotonic() + first_s
        while self._users or time.monotonic() < until:
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                pass
            except OSError:
                break
            else:
                self._welcome(connection)
            for user in self._all():
                if user.is_gone():
                    self._drop(user)
            if self._users:
                until = time.monotonic() + _NEXT_S

    def _welcome(self, connection: socket.socket) -> None:
        """It learns that it is a user: one that is not welcomed came too late."""
        connection.settimeout(2 * ANSWERED_S)
        user = _User(connection)
        try:
            messages.send(user.stream, messages.WELCOME)
        except ConnectionEnded:
            connection.close()
            return
        with self._came:
            self._users.append(user)
            self._came.notify_all()

    def _all(self) -> list[_User]:
        with self._lock:
            return list(self._users)

    def _drop(self, user: _User) -> None:
        with self._lock, contextlib.suppress(ValueError):
            self._users.remove(user)
        with contextlib.suppress(OSError):
            user.connection.close()
