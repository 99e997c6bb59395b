"""`remora shell` against a real service, real nodes and real walls: a pipe, a terminal, and every end."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from remora.states import JobState
from tests.e2e.embedded import REMORA, Embedded
from tests.e2e.processes import PATIENCE_S, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

#: Runs until it is cancelled.
WAITS = "import os, time\nprint('begins', flush=True)\ntime.sleep(3000)\n"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Embedded, str]]:
    """A service that has shells, and a job of two workers that runs there."""
    home = tmp_path_factory.mktemp("shells") / "home"
    embedded = Embedded(home, variables={"REMORA_SHELLS": "true"})
    try:
        embedded.start()
        yield embedded, submitted(embedded, tmp_path_factory.mktemp("code"))
    finally:
        embedded.end()


def submitted(embedded: Embedded, folder: Path) -> str:
    """A job of two workers that runs."""
    (folder / "train.py").write_text(WAITS)
    with embedded.client() as client:
        job = client.submit(
            {"command": ["python", "train.py"], "code": str(folder), "workers": {"min": 2, "max": 2}}
        )
        until(lambda: client.job(job.id).state is JobState.RUNNING, "it runs")
        until(lambda: sum("begins" in line.text for line in client.logs(job.id)) == 2, "both ranks run")
    return job.id


class Terminal:
    """`remora shell` at a terminal of its own."""

    def __init__(self, embedded: Embedded, *words: str, rows: int = 24, columns: int = 80) -> None:
        self._master, slave = pty.openpty()
        self.resize(rows, columns)
        self.before = termios.tcgetattr(slave)
        self.slave = slave
        variables = {**embedded.variables, "TERM": "xterm", "REMORA_SERVER": embedded.url}
        self.process = subprocess.Popen(
            [REMORA, "shell", *words], env=variables, stdin=slave, stdout=slave, stderr=slave
        )
        self.seen = b""

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: bytes) -> None:
        os.write(self._master, text)

    def read_until(self, text: bytes) -> float:
        """Seconds until that is shown."""
        began = time.monotonic()
        while text not in self.seen:
            assert time.monotonic() < began + PATIENCE_S, self.seen
            self._take(0.5)
        return time.monotonic() - began

    def wait(self) -> int:
        """Its exit code, once it has ended; what it prints until then is read."""
        began = time.monotonic()
        while (code := self.process.poll()) is None:
            assert time.monotonic() < began + PATIENCE_S, self.seen
            self._take(0.1)
        while self._take(0.1):
            pass
        assert termios.tcgetattr(self.slave) == self.before, "the terminal is as before"
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for one in (self._master, self.slave):
            os.close(one)

    def _take(self, wait_s: float) -> bool:
        is_there = bool(select.select([self._master], [], [], wait_s)[0])
        if is_there:
            self.seen += os.read(self._master, 1 << 16)
        return is_there


@pytest.fixture
def terminal(running: tuple[Embedded, str]) -> Iterator[Terminal]:
    made = Terminal(*running)
    yield made
    made.close()


def piped(
    running: tuple[Embedded, str], *words: str, typed: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    embedded, job_id = running
    variables = {**embedded.variables, "REMORA_SERVER": embedded.url}
    return subprocess.run(
        [REMORA, "shell", job_id, *words],
        env=variables,
        input=typed,
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_in_a_pipe_it_runs_what_is_piped_and_ends_as_that_does(running: tuple[Embedded, str]) -> None:
    done = piped(running, "--rank", "1", typed=b"echo rank $RANK; ls; echo oh >&2; tty; exit 7\n")
    assert done.returncode == 7, done
    assert done.stdout.splitlines()[:2] == [b"rank 1", b"train.py"]
    assert b"not a tty" in done.stdout
    assert b"oh\n" in done.stderr
    assert piped(running, "--", "sh", "-c", "exit 3").returncode == 3
    assert piped(running, "--", "sh", "-c", "kill -9 $$").returncode == 128 + 9
    content = os.urandom(200_000)
    copied = piped(running, "--", "cat", typed=content)
    assert (copied.returncode, copied.stdout == content) == (0, True)


def test_it_has_the_walls_and_the_variables_of_the_command(running: tuple[Embedded, str]) -> None:
    done = piped(running, "--", "sh", "-c", "id -un; cat /proc/self/status; env; ls /root /home 2>&1 || true")
    said = done.stdout.decode()
    if os.geteuid() == 0:
        assert said.startswith("remora-job\n")
        assert "CapEff:\t0000000000000000" in said
        assert "NoNewPrivs:\t1" in said
    assert re.search(r"^REMORA_JOB_ID=job_", said, re.MULTILINE)
    assert "REMORA_CHANNEL_FD" not in said
    assert "RAY_" not in said


def test_at_a_terminal_keys_are_echoed_soon_and_its_size_is_followed(terminal: Terminal) -> None:
    terminal.read_until(b"Ctrl-] or exit ends it")
    terminal.type(b"stty size; echo $TERM; tty | grep -c pts\n")
    terminal.read_until(b"24 80\r\nxterm\r\n")
    times = []
    for number in range(10):
        terminal.type(f"echo {number}x$((700+{number}))\n".encode())
        times.append(terminal.read_until(f"{number}x{700 + number}".encode()))
    # It is a tenth of that where nothing else runs.
    assert sorted(times)[5] < 1.0, times
    print("round trips:", [round(one, 3) for one in times])
    terminal.resize(40, 120)
    terminal.type(b"sleep 1; stty size\n")
    terminal.read_until(b"40 120")
    terminal.type(b"exit 5\n")
    assert terminal.wait() == 5


@pytest.mark.parametrize("how", ["escape", "term", pytest.param("killed", marks=pytest.mark.soak)])
def test_it_can_be_left_in_every_way_and_nothing_of_it_runs_on(
    running: tuple[Embedded, str], terminal: Terminal, how: str
) -> None:
    embedded, job_id = running
    terminal.read_until(b"ends it")
    terminal.type(b"echo re''ady; exec sleep 4321\n")
    terminal.read_until(b"ready")
    if how == "escape":
        terminal.type(b"\x1d")
        assert terminal.wait() == 0
    elif how == "term":
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.wait() == 128 + signal.SIGTERM
    else:
        terminal.process.kill()
    with embedded.client() as client:
        newest = until(lambda: (one := client.shells(job_id)[-1]).state == "ended" and one, "it has ended")
    assert newest.message == (
        "its client has not asked for output for 60 s" if how == "killed" else "it was closed"
    )
    assert piped(running, "--", "sh", "-c", "ps ax | grep -c '[s]leep 4321'").stdout == b"0\n"


@pytest.mark.soak
def test_a_flood_of_output_is_all_there_and_stops_the_shell_meanwhile(running: tuple[Embedded, str]) -> None:
    done = piped(running, "--", "head", "-c", "5000000", "/dev/zero")
    assert (done.returncode, len(done.stdout)) == (0, 5_000_000)


def test_errors_are_one_sentence(running: tuple[Embedded, str]) -> None:
    embedded, job_id = running
    answer = embedded.remora("shell", job_id, "--rank", "7")
    assert (answer.code, "no rank 7" in answer.complaint) == (1, True)
    answer = embedded.remora("shell", job_id, "--", "no-such-program")
    assert (answer.code, "could not be started: no-such-program" in answer.err) == (1, True)
    assert embedded.remora("shell", "job_none").code == 3


def test_it_ends_with_its_job(running: tuple[Embedded, str], terminal: Terminal) -> None:
    embedded, job_id = running
    terminal.read_until(b"ends it")
    with embedded.client() as client:
        client.cancel(job_id)
    assert terminal.wait() == 1
    terminal.read_until(b"The shell has ended: its ")
    answer = embedded.remora("shell", job_id)
    assert (answer.code, "has ended already" in answer.complaint) == (1, True)
