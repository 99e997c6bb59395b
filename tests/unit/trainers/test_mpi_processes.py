"""Between mpirun and a supervisor: variables go through pipes, and commands only to callers that know the key."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from remora.free_ports import free_port
from tests.unit.trainers.test_child import is_gone
from trainers.backends import mpi
from trainers.backends.mpi import _command_servers, _hosts, _runs
from trainers.backends.mpi.rank import report_return

HERE = Path(__file__).parents[3] / "trainers" / "backends" / "mpi"
KEY = "00ff00ff"


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes of a test; none is left after it."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


def start(
    started: list[subprocess.Popen[str]], program: str, *words: str, **variables: str
) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-S", "-E", str(HERE / program), *words],
        env={"PATH": os.environ["PATH"], **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    started.append(process)
    return process


def test_a_command_gets_the_place_that_mpirun_assigned(
    tmp_path: Path, started: list[subprocess.Popen[str]]
) -> None:
    show = "import os; print(*(os.environ[n] for n in ('PMIX_RANK', 'OMPI_MCA_btl', 'RANK')), 'SECRET' in os.environ)"
    taker = start(
        started, "rank.py", "take", "1", sys.executable, "-c", show,
        REMORA_MPI_FOLDER=str(tmp_path), RANK="1", OMPI_MCA_btl="mine",
    )  # fmt: skip
    giver = start(
        started, "rank.py", "give", REMORA_MPI_FOLDER=str(tmp_path),
        OMPI_COMM_WORLD_RANK="1", PMIX_RANK="1", OMPI_MCA_btl="of mpirun's node", SECRET="x",
    )  # fmt: skip
    assert taker.communicate()[0].split() == ["1", "mine", "1", "False"]
    assert taker.returncode == 0
    assert giver.poll() is None, "mpirun must not end before the supervisor says that the command returned 0"
    report_return(str(tmp_path), 1)
    assert giver.wait() == 0


def test_the_word_that_a_rank_is_over_needs_no_reader(tmp_path: Path) -> None:
    report_return(str(tmp_path), 0)


@pytest.mark.parametrize(("key", "code", "ran"), [(KEY, 7, True), ("00aa00aa", 1, False)])
def test_a_command_server_answers_the_key_of_its_group_only(
    tmp_path: Path, started: list[subprocess.Popen[str]], key: str, code: int, ran: bool
) -> None:
    port = free_port()
    servers = json.dumps({"doors": {"node-b": ["127.0.0.1", port]}, "key": key})
    start(started, "command_server.py", "127.0.0.1", str(port), REMORA_MPI_KEY=KEY)
    said = tmp_path / "said"
    agent = start(
        started,
        "rsh_agent.py",
        "node-b",
        "echo",
        "$REMORA_MPI_KEY",
        f">{said};",
        "exit",
        "7",
        REMORA_MPI_DOORS=servers,
    )
    _, errors = agent.communicate()
    assert agent.returncode == code, errors
    assert said.exists() == ran
    if ran:
        assert said.read_text() == "\n", "what mpirun starts does not see the key"
    else:
        assert "node node-b did not run its part of mpirun" in errors


def test_a_command_server_is_not_blocked_by_a_client_that_only_connects(
    started: list[subprocess.Popen[str]],
) -> None:
    port = free_port()
    server = start(started, "command_server.py", "127.0.0.1", str(port), REMORA_MPI_KEY=KEY)
    knocking = [_knock(port) for _ in range(3)]
    servers = json.dumps({"doors": {"node-b": ["127.0.0.1", port]}, "key": KEY})
    agent = start(started, "rsh_agent.py", "node-b", "exit", "3", REMORA_MPI_DOORS=servers)
    assert (agent.wait(), server.wait()) == (3, 3)
    for one in knocking:
        one.close()


def _knock(port: int) -> socket.socket:
    """A connection that says nothing, as soon as a server listens."""
    while True:
        try:
            knocking = socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            continue
        assert knocking.recv(1), "the server asks for the key"
        return knocking


def test_a_command_server_that_finds_its_port_taken_says_so(started: list[subprocess.Popen[str]]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = start(started, "command_server.py", "127.0.0.1", str(port), REMORA_MPI_KEY=KEY)
        _, errors = server.communicate()
    assert server.returncode == 1
    assert errors.startswith("the command server of this node cannot listen: ")
    assert "in use" in errors
    assert len(errors.splitlines()) == 1


def test_rank_0s_node_has_the_name_by_which_mpirun_knows_itself() -> None:
    peers = ("10.0.0.1:20001", "10.0.0.1:20002", "10.0.0.2:20003", "10.0.0.2:20004")
    here = socket.gethostname()
    assert _hosts(peers) == [here, here, "10.0.0.2", "10.0.0.2"]
    assert _command_servers(peers)["10.0.0.2"] == ("10.0.0.2", 20003)


def test_a_trial_of_mpirun_that_does_not_end_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mpi, "_TRY_S", 1.0)
    reported = tmp_path / "pids"
    program = tmp_path / "mpirun"
    program.write_text(
        f"#!/bin/sh\nsetsid sleep 600 & echo $! >> {reported}; echo $$ >> {reported}; exec sleep 600\n"
    )
    program.chmod(0o755)
    began = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    assert not _runs(began)
    for pid in reported.read_text().split():
        assert is_gone(int(pid))
    program.write_text("#!/bin/sh\nexit 0\n")
    assert _runs(began)
