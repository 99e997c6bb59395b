"""Shells of a worker: a real process with a terminal or with pipes, confined as the command of its worker is."""

from __future__ import annotations

import os
import queue
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from remora.isolation import Isolation
from trainers.isolation.confined import confined_job
from trainers.isolation.mounts import Shown
from trainers.processes.shell_process import ShellPlace
from trainers.shells import CHUNK_BYTES, STDERR, STDOUT
from trainers.supervisor.shells import DriverAway, WorkerShells

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a job a user of its own")


class Driver:
    """A driver with one shell: input is put into `inputs`, output collected; each call waits as the real one does."""

    def __init__(self) -> None:
        self.inputs: queue.Queue[bytes] = queue.Queue()
        self.size: tuple[int, int] | None = None
        self.is_over = False
        self.seen = {STDOUT: b"", STDERR: b""}
        self.end: tuple[str, int | None] | None = None
        self.has_ended = threading.Event()
        self.may_take = threading.Event()
        self.may_take.set()
        self.was_full = threading.Event()
        self.calls_refused = False
        self._changed = threading.Condition()
        #: Input was asked for before all that came was taken.
        self.asked_again = False
        #: The newest chunk of input, which comes again until it is taken.
        self._number = 0
        self._chunk: tuple[int, bytes] | None = None

    def input(self, token: str, taken: int, size: tuple[int, int] | None) -> dict[str, Any]:
        assert token == "the token"
        with self._changed:
            self.asked_again |= taken < self._number
            if taken == self._number:
                self._chunk = None
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: self._chunk or not self.inputs.empty() or self._is_done() or self.size != size, 20
            )
            if self._chunk is None and not self.inputs.empty():
                self._number += 1
                self._chunk = (self._number, self.inputs.get())
                self._changed.notify_all()
        chunks = [] if self._chunk is None else [self._chunk]
        return {"pieces": chunks, "size": self.size, "is_over": self._is_done()}

    def output(self, token: str, chunks: Sequence[tuple[int, bytes]]) -> str:
        if self.calls_refused:
            raise DriverAway("it is gone")
        if not self.may_take.wait(0.05):
            self.was_full.set()
            return "over" if self.is_over else "full"
        with self._changed:
            for stream, content in chunks:
                assert 0 < len(content) <= CHUNK_BYTES
                self.seen[stream] += content
            self._changed.notify_all()
        return "over" if self.is_over else "taken"

    def ended(self, token: str, message: str, exit_code: int | None) -> None:
        with self._changed:
            assert self.end is None
            self.end = (message, exit_code)
            self.has_ended.set()
            self._changed.notify_all()

    def type(self, *contents: bytes) -> None:
        with self._changed:
            for content in contents:
                self.inputs.put(content)
            self._changed.notify_all()

    def change(self, act: Callable[[], None]) -> None:
        with self._changed:
            act()
            self._changed.notify_all()

    def wait_for(self, text: bytes, stream: int = STDOUT) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: text in self.seen[stream], 20), self.seen

    def wait_end(self) -> tuple[str, int | None]:
        assert self.has_ended.wait(20), self.seen
        assert self.end is not None
        return self.end

    def _is_done(self) -> bool:
        return self.is_over or self.has_ended.is_set()


@pytest.fixture
def driver() -> Driver:
    return Driver()


@pytest.fixture
def shells(driver: Driver, tmp_path: Path) -> Iterator[WorkerShells]:
    made = WorkerShells(driver, lambda text: text.replace("hunter2", "***"))
    made.begin(place(tmp_path))
    yield made
    made.close()


def place(folder: Path, **more: Any) -> ShellPlace:
    variables = {"PATH": os.environ["PATH"], "RANK": "3", "HOME": str(folder)}
    return ShellPlace(
        **{
            "folder": folder,
            "environment": variables,
            "variable_files": {},
            "container": 0,
            "confinement": None,
            "most_processes": None,
            **more,
        }
    )


def ask(shells: WorkerShells, *command: str, size: tuple[int, int] | None = None) -> None:
    shells.ask(
        {"type": "shell", "token": "the token", "command": list(command), "size": size, "term": "vt100"}
    )


def test_without_a_terminal_it_reads_commands_and_its_streams_stay_apart(
    shells: WorkerShells, driver: Driver, tmp_path: Path
) -> None:
    ask(shells)
    driver.type(b"pwd; echo rank $RANK; echo oh no >&2; tty; exit 7\n")
    assert driver.wait_end() == ("the shell has ended", 7)
    assert driver.seen[STDOUT].decode() == f"{tmp_path}\nrank 3\nnot a tty\n"
    assert driver.seen[STDERR] == b"oh no\n"


def test_the_end_of_the_input_ends_what_reads_it(shells: WorkerShells, driver: Driver) -> None:
    ask(shells, "cat")
    content = os.urandom(300_000)
    driver.type(*(content[at : at + CHUNK_BYTES] for at in range(0, len(content), CHUNK_BYTES)), b"")
    assert driver.wait_end() == ("the shell has ended", 0)
    assert driver.seen[STDOUT] == content


def test_with_a_terminal_it_has_job_control_a_size_and_another_size_later(
    shells: WorkerShells, driver: Driver
) -> None:
    driver.size = (31, 97)
    ask(shells, size=(31, 97))
    driver.type(b"stty size; echo $TERM; echo fl''ags $-\n")
    driver.wait_for(b"31 97\r\nvt100\r\n")
    driver.wait_for(b"flags ")
    assert b"no job control" not in driver.seen[STDOUT]
    assert b"m" in driver.seen[STDOUT].split(b"flags ")[-1].split(b"\r")[0], "job control is on"
    driver.type(b'sh -c \'trap "echo now; stty size" WINCH; echo is s"e"t; while sleep 0.05; do :; done\'\n')
    driver.wait_for(b"is set")
    driver.change(lambda: setattr(driver, "size", (10, 20)))
    driver.wait_for(b"now\r\n10 20")
    driver.type(b"\x03")
    driver.type(b"exit 5\n")
    assert driver.wait_end()[1] == 5


def test_ctrl_c_ends_what_runs_in_front_and_not_the_shell(shells: WorkerShells, driver: Driver) -> None:
    driver.size = (24, 80)
    ask(shells, size=(24, 80))
    driver.type(b"sh -c 'echo re\"\"ady; exec sleep 600'\n")
    driver.wait_for(b"ready")
    driver.type(b"\x03")
    driver.type(b"echo go''es on\n")
    driver.wait_for(b"goes on")


def test_the_terminal_is_that_of_its_session(shells: WorkerShells, driver: Driver) -> None:
    driver.size = (24, 80)
    ask(shells, "sh", "-c", "echo to it >/dev/tty; exec sleep 600", size=(24, 80))
    driver.wait_for(b"to it")
    driver.type(b"\x03")
    assert driver.wait_end()[1] == 128 + signal.SIGINT


def test_what_it_leaves_behind_ends_with_it(shells: WorkerShells, driver: Driver) -> None:
    ask(shells)
    driver.type(b"setsid sleep 600 & echo $! ; exec true\n")
    assert driver.wait_end()[1] == 0
    assert not psutil.pid_exists(int(driver.seen[STDOUT]))


@pytest.mark.parametrize("how", ["over", "closed", "away"])
def test_it_ends_with_its_session_its_worker_and_its_driver(
    shells: WorkerShells, driver: Driver, how: str
) -> None:
    ask(shells, "sh", "-c", "trap '' TERM HUP INT; echo $$; while sleep 0.05; do echo on; done")
    driver.wait_for(b"on")
    pid = int(driver.seen[STDOUT].split()[0])
    process = psutil.Process(pid)
    if how == "over":
        driver.change(lambda: setattr(driver, "is_over", True))
    elif how == "away":
        driver.calls_refused = True
    else:
        shells.close()
    assert psutil.wait_procs([process], timeout=20)[1] == []
    if how == "over":
        assert driver.wait_end()[1] == 128 + signal.SIGKILL
    elif how == "closed":
        assert driver.wait_end() == ("its worker has ended, or was stopped", None)


def test_one_that_neither_reads_nor_prints_ends_with_its_session(
    shells: WorkerShells, driver: Driver
) -> None:
    """Its input is full: what waits for it to be read must hear that it is over."""
    ask(shells, "sh", "-c", "echo $$; exec sleep 600")
    driver.wait_for(b"\n")
    process = psutil.Process(int(driver.seen[STDOUT]))
    driver.type(*[b"x" * CHUNK_BYTES] * 16)
    with driver._changed:
        assert driver._changed.wait_for(lambda: driver._number > 8, 20)
    driver.change(lambda: setattr(driver, "is_over", True))
    assert psutil.wait_procs([process], timeout=20)[1] == []
    assert driver.wait_end()[1] == 128 + signal.SIGKILL


def test_input_that_is_read_late_arrives_whole_and_once(
    shells: WorkerShells, driver: Driver, tmp_path: Path
) -> None:
    (tmp_path / "wait").touch()
    ask(shells, "sh", "-c", "while [ -e wait ]; do sleep 0.05; done; cat")
    content = os.urandom(20 * CHUNK_BYTES)
    driver.type(*(content[at : at + CHUNK_BYTES] for at in range(0, len(content), CHUNK_BYTES)), b"")
    with driver._changed:
        assert driver._changed.wait_for(lambda: driver.asked_again, 20)
    (tmp_path / "wait").unlink()
    assert driver.wait_end() == ("the shell has ended", 0)
    assert driver.seen[STDOUT] == content


def test_output_that_nothing_takes_stops_the_shell_and_fills_no_memory(
    shells: WorkerShells, driver: Driver
) -> None:
    driver.may_take.clear()
    ask(shells, "sh", "-c", "head -c 3000000 /dev/zero; echo all of it >&2")
    assert driver.was_full.wait(20)
    assert driver.seen[STDERR] == b""
    driver.may_take.set()
    assert driver.wait_end()[1] == 0
    assert (len(driver.seen[STDOUT]), driver.seen[STDERR]) == (3_000_000, b"all of it\n")


@pytest.mark.parametrize("command", [("no-such-program",), ("/etc/passwd",), ("a" * 300_000,), ("a\0b",)])
def test_a_command_that_cannot_be_started_is_said(
    shells: WorkerShells, driver: Driver, command: tuple[str, ...]
) -> None:
    ask(shells, *command)
    said, code = driver.wait_end()
    assert said.startswith("it could not be started: ")
    assert code is None


def test_a_sentence_has_no_secret(shells: WorkerShells, driver: Driver) -> None:
    ask(shells, "/no/hunter2")
    assert "hunter2" not in driver.wait_end()[0]


def test_without_a_command_that_runs_there_is_no_shell(driver: Driver) -> None:
    shells = WorkerShells(driver, str)
    ask(shells)
    assert "has not started yet" in driver.wait_end()[0]


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user reaches."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@needs_root
@pytest.mark.parametrize("walls", ["users", "namespaces"])
@pytest.mark.parametrize("size", [None, (24, 80)])
def test_it_has_the_walls_of_its_job(
    driver: Driver, open_folder: Path, size: tuple[int, int] | None, walls: Isolation
) -> None:
    """The user, no rights, its view of the files, and none of the node's processes."""
    secret = open_folder / "of-the-node"
    secret.write_text("hidden")
    secret.chmod(0o600)
    folder, temporary = open_folder / "job", open_folder / "temporary"
    for one in (folder, temporary):
        one.mkdir()
    driver.size = size
    with confined_job(walls, f"att_{os.getpid()}_{size}", folder, temporary) as job:
        assert job is not None
        job.own(folder)
        confinement = job.on_node([Shown(source=folder, target=folder, is_read_only=False)], None)
        shells = WorkerShells(driver, str)
        shells.begin(place(folder, confinement=confinement))
        ask(shells, size=size)
        driver.type(
            f"id -u; cat {secret}; ls /proc | grep -c '^1$'; grep CapEff /proc/self/status\n".encode()
        )
        driver.type(b"touch mine && stat -c 'owner %u' mine; tty; exit\n")
        driver.wait_end()
        shells.close()
        said = driver.seen[STDOUT] + driver.seen[STDERR]
        assert str(job.uid).encode() in said.splitlines() or f"{job.uid}\r".encode() in said
        assert f"owner {job.uid}".encode() in said
        assert b"hidden" not in said
        assert b"CapEff:\t0000000000000000" in said
