"""Two supervisors that use one mount: whatever the order in which one leaves and another comes, one is asked."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainers.inputs.mounts import messages, mounting, users
from trainers.inputs.mounts.addresses import socket_address
from trainers.inputs.mounts.users import Users
from trainers.storage import StorageError
from trainers.storage_grants import StorageAnswer, StorageRequest

REQUEST = StorageRequest(url="az://x", action="read", names=("a",))


class Supervisor:
    """A user of the mount, which answers when it is asked."""

    def __init__(self, folder: Path, name: str) -> None:
        connection = mounting._connect(folder)
        assert connection is not None
        self.connection, self.name = connection, name

    def answer(self) -> None:
        with self.connection.makefile("rwb") as stream:
            messages.request_of(messages.receive(stream))
            messages.send(stream, messages.answer_message(StorageAnswer(refusal=self.name)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def mount(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Users]:
    """The users of a mount, which is served; in the end no worker uses it."""
    monkeypatch.setattr(users, "_FIRST_S", 10.0)
    monkeypatch.setattr(users, "_NEXT_S", 1.0)
    monkeypatch.setattr(users, "_LOOK_S", 0.05)
    made = Users(folder / "socket")
    made._listener.settimeout(0.05)
    serving = threading.Thread(target=made.serve, daemon=True)
    serving.start()
    made.serving = serving  # type: ignore[attr-defined]
    yield made
    serving.join(20.0)
    assert not serving.is_alive()


def asked(mount: Users, found: list[str]) -> threading.Thread:
    def ask() -> None:
        found.append(str(mount.ask(REQUEST).refusal))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    return thread


def test_one_that_comes_before_the_other_leaves_is_asked(mount: Users, folder: Path) -> None:
    first, second = Supervisor(folder, "first"), Supervisor(folder, "second")
    found: list[str] = []
    first.connection.close()
    asking = asked(mount, found)
    second.answer()
    asking.join(10.0)
    assert found == ["second"]
    second.connection.close()


def test_one_that_comes_after_the_other_was_asked_and_left_is_asked(mount: Users, folder: Path) -> None:
    """A script's read is under way when the only supervisor that was there leaves."""
    first = Supervisor(folder, "first")
    found: list[str] = []
    asking = asked(mount, found)
    with first.connection.makefile("rb") as stream:
        messages.request_of(messages.receive(stream))
    first.connection.close()
    second = Supervisor(folder, "second")
    second.answer()
    asking.join(10.0)
    assert found == ["second"]
    second.connection.close()


def test_without_another_one_reads_fail(mount: Users, folder: Path) -> None:
    Supervisor(folder, "first").connection.close()
    with pytest.raises(StorageError, match="no job that uses the mount is left"):
        mount.ask(REQUEST)


def test_one_that_connects_while_the_mount_decides_to_end_is_served(mount: Users, folder: Path) -> None:
    """The last moment: nothing was accepted for a while, and the socket is about to go."""
    late, is_waiting = socket.socket(socket.AF_UNIX), threading.Event()

    class Path:
        """Of the socket: another supervisor connects just before it goes."""

        def unlink(self, *, missing_ok: bool) -> None:
            with socket_address(folder) as address:
                late.connect(address)
            is_waiting.set()
            (folder / "socket").unlink(missing_ok=missing_ok)

    mount._path = Path()  # type: ignore[assignment]
    Supervisor(folder, "first").connection.close()
    assert is_waiting.wait(20.0)
    late.settimeout(20.0)
    with late.makefile("rb") as stream:
        assert messages.receive(stream) == messages.WELCOME
    supervisor = Supervisor.__new__(Supervisor)
    supervisor.connection, supervisor.name = late, "late"
    found: list[str] = []
    asking = asked(mount, found)
    supervisor.answer()
    asking.join(10.0)
    assert found == ["late"]
    assert mounting._connect(folder) is None, "no further one can come"
    late.close()


def test_one_that_comes_too_late_is_no_user(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands in the line when the mount's process ends: it has another process started."""
    made = Users(folder / "socket")

    @contextlib.contextmanager
    def ends(of: Path) -> Iterator[str]:
        with socket_address(of) as address:
            yield address
        made._listener.close()

    monkeypatch.setattr(mounting, "socket_address", ends)
    assert mounting._connect(folder) is None
