"""Nodes of controllers in containers are started by a process that outlives the controllers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from cluster.local.folders import ClusterFolders
from cluster.local.node_starter import MOST_BYTES, SOCKET, VARIABLE, NoAnswer, NodeStarterProblem, ask
from cluster.local.provider import Boot, LocalProvider
from cluster.provider import ProviderError, Unanswered
from tests.architecture.repository import ROOT
from tests.e2e.processes import until

SLEEP = [sys.executable, "-c", "import signal; signal.pause()"]


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClusterFolders]:
    # As in the container of a controller.
    monkeypatch.setenv(VARIABLE, "1")
    folders = ClusterFolders(tmp_path / "home")
    folders.make()
    yield folders
    provider = LocalProvider(folders.home, "127.0.0.1:1")
    for node_id in provider.node_ids():
        provider.delete(node_id)
    folders.remove_temporary()


@pytest.fixture
def starter(folders: ClusterFolders) -> Iterator[subprocess.Popen[bytes]]:
    words = [sys.executable, "-P", "-m", "cluster.local.node_starter", "--home", str(folders.home)]
    process = subprocess.Popen(words, env={**os.environ, "PYTHONPATH": str(ROOT)})
    until(lambda: (folders.nodes / SOCKET).exists(), "it listens", 30.0)
    yield process
    process.kill()
    process.wait()


def boot(folders: ClusterFolders, node_id: str = "node_a") -> None:
    """A machine whose first process only waits."""
    LocalProvider(folders.home, "127.0.0.1:1").boot(node_id, lambda _: Boot(command=SLEEP, variables={}))


def said(folders: ClusterFolders, line: bytes) -> dict[str, object]:
    """What it answers."""
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as connection:
        connection.settimeout(30.0)
        connection.connect(str(folders.nodes / SOCKET))
        connection.sendall(line)
        connection.shutdown(socket.SHUT_WR)
        found: dict[str, object] = json.loads(connection.recv(65536))
        return found


def test_a_node_is_started_by_it_and_not_by_the_controller(
    folders: ClusterFolders, starter: subprocess.Popen[bytes]
) -> None:
    boot(folders)
    provider = LocalProvider(folders.home, "127.0.0.1:1")
    (node,) = provider.list()
    assert node.is_running
    record = json.loads((folders.nodes / "node_a.json").read_text())
    assert starter.pid in [one.pid for one in psutil.Process(record["pid"]).parents()]
    assert (folders.nodes / SOCKET).stat().st_mode & 0o077 == 0, "no other user asks"
    provider.delete("node_a")
    assert (
        not psutil.pid_exists(record["pid"]) or psutil.Process(record["pid"]).status() == psutil.STATUS_ZOMBIE
    )
    until(lambda: not psutil.Process(starter.pid).children(), "it takes the exit code", 30.0)


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (b"x\n", "Expecting value"),
        (b"[]\n", "object of JSON"),
        (b'{"command": "sh"}\n', "`command`"),
        (b'{"command": ["true"], "environment": {"A": 1}}\n', "`environment`"),
        (b'{"command": ["true"], "environment": {}, "log": "../x.log"}\n', "`log`"),
        (b'{"command": ["/nothing/there"], "environment": {}, "log": "a.log"}\n', "No such file"),
        (b"{", "no line of JSON"),
        (b"x" * (MOST_BYTES + 1), "no line of JSON"),
    ],
)
def test_what_is_no_request_starts_nothing_and_the_next_one_is_served(
    folders: ClusterFolders, starter: subprocess.Popen[bytes], request_: bytes, why: str
) -> None:
    try:
        assert why in str(said(folders, request_)["error"])
    except ConnectionError:
        assert len(request_) > MOST_BYTES, "who sends more than it reads is cut off"
    assert not psutil.Process(starter.pid).children()
    boot(folders)


def test_one_that_was_killed_is_said_and_no_node_is_left(
    folders: ClusterFolders, starter: subprocess.Popen[bytes]
) -> None:
    starter.kill()
    starter.wait()
    with pytest.raises(ProviderError, match="start its container again"):
        boot(folders)
    assert LocalProvider(folders.home, "127.0.0.1:1").list() == []


def test_while_it_is_away_no_node_is_started_in_the_container_of_the_controller(
    folders: ClusterFolders,
) -> None:
    with pytest.raises(ProviderError, match="start its container again"):
        boot(folders)
    assert LocalProvider(folders.home, "127.0.0.1:1").list() == []


def test_where_there_is_none_a_node_is_started_here(
    folders: ClusterFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE)
    (folders.nodes / SOCKET).touch()
    boot(folders)
    assert LocalProvider(folders.home, "127.0.0.1:1").list()[0].is_running


def test_when_no_answer_comes_the_record_stays_until_the_node_is_found_or_deleted(
    folders: ClusterFolders,
) -> None:
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(str(folders.nodes / SOCKET))
        listener.listen()
        pid = os.fork()
        if pid == 0:  # takes the request and dies with it
            connection, _ = listener.accept()
            connection.recv(10)
            os._exit(0)
        with pytest.raises(Unanswered, match="does not answer"):
            boot(folders)
        os.waitpid(pid, 0)
    (node,) = LocalProvider(folders.home, "127.0.0.1:1").list()
    assert not node.is_running


def test_it_ends_when_it_is_asked_to_and_what_it_started_goes_on(
    folders: ClusterFolders, starter: subprocess.Popen[bytes]
) -> None:
    boot(folders)
    starter.send_signal(signal.SIGTERM)
    assert starter.wait(30.0) == 0
    assert not (folders.nodes / SOCKET).exists()
    assert LocalProvider(folders.home, "127.0.0.1:1").list()[0].is_running


def test_what_is_too_long_is_not_sent(tmp_path: Path) -> None:
    with pytest.raises(NodeStarterProblem, match="too long") as raised:
        ask(tmp_path / SOCKET, ["true"], {"A": "x" * MOST_BYTES}, tmp_path / "a.log")
    assert not isinstance(raised.value, NoAnswer)
