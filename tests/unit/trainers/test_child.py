"""Real processes: however a command ends or tries to stay, its end is reported truly and nothing of it is left."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from remora.isolation import Isolation
from remora.script import channel
from tests.container_images import image
from tests.kept_apart import decide_or_skip
from trainers.containers.arguments import Mount
from trainers.containers.container import container
from trainers.containers.images import node_image
from trainers.isolation.confined import ConfinedJob, Confinement, confined_job
from trainers.isolation.mounts import Shown
from trainers.processes.child import Child
from trainers.processes.fork_server import PADDING_VARIABLE, SINGLE_THREADED
from trainers.processes.fork_server_client import ForkServer, server_environment

ROOT = Path(__file__).parents[3]
#: A process of every kind that wants to outlive its command, each reporting its pid by a file.
OUTLIVERS = {
    "daemon": """
import os, signal, subprocess, sys
subprocess.Popen([sys.executable, "-c", SLEEPER], start_new_session=True)
""",
    "double fork": """
import os
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv(sys.executable, [sys.executable, "-c", SLEEPER])
    os._exit(0)
os.wait()
""",
    "stubborn child": """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);" + SLEEPER])
""",
    "without environment": """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", SLEEPER], env={}, start_new_session=True)
""",
}
#: It holds the lock of the file until its end: by its number it may be known in its namespace alone.
SLEEPER = "import fcntl, os, signal; f = open('pid.tmp', 'w'); fcntl.flock(f, fcntl.LOCK_EX); " + (
    "f.write(str(os.getpid())); f.flush(); os.rename('pid.tmp', 'pid'); signal.pause()"
)
WAIT_FOR_PID = "import time, pathlib\nwhile not pathlib.Path('pid').exists(): time.sleep(0.01)\n"


@dataclass
class Heard:
    """What came out of a child, and a way to wait for it."""

    lines: list[tuple[str, str]] = field(default_factory=list)
    messages: list[channel.Message] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def lines_of(self, stream: str, text: str) -> None:
        with self.changed:
            self.lines += [(stream, line) for line in text.split("\n")]
            self.changed.notify_all()

    def message(self, message: channel.Message) -> None:
        with self.changed:
            self.messages.append(message)
            self.changed.notify_all()

    def wait_for(self, seen: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(seen, 20.0), (self.lines, self.messages)


class ChildHarness:
    """Starts children in one folder."""

    def __init__(
        self,
        folder: Path,
        fork_server: ForkServer | None = None,
        container: int = 0,
        job: ConfinedJob | None = None,
    ) -> None:
        self.folder = folder
        self.job = job
        self.fork_server = fork_server
        self.container = container
        self.heard = Heard()
        self._children: list[Child] = []

    def start(
        self, *command: str, grace_s: float = 5.0, most_processes: int | None = None, **variables: str
    ) -> Child:
        kept = {
            k: v
            for k, v in server_environment(os.environ).items()
            if k not in (PADDING_VARIABLE, *SINGLE_THREADED)
        }
        child = Child(
            list(command),
            folder=self.folder,
            environment={**kept, "OMP_NUM_THREADS": "1", **variables},
            line_bytes=1000,
            grace_s=grace_s,
            on_lines=self.heard.lines_of,
            on_message=self.heard.message,
            fork_server=self.fork_server,
            most_processes=most_processes,
            container=self.container,
            confinement=None if self.job is None else self._confinement(self.job),
        )
        self._children.append(child)
        return child

    def _confinement(self, job: ConfinedJob) -> Confinement:
        job.own(self.folder)
        places = [Shown(source=self.folder, target=self.folder, is_read_only=False)]
        if not self.container:
            return job.on_node(places, None)
        interpreter = (ROOT, Path(sys.prefix))
        return job.in_container([*places, *(Shown(source=path, target=path) for path in interpreter)], None)

    def python(self, code: str, **options: Any) -> Child:
        child = self.start(sys.executable, "-c", f"import sys\nSLEEPER = {SLEEPER!r}\n{code}", **options)
        assert child.is_warm is (self.fork_server is not None)
        return child

    def is_left_alone(self) -> bool:
        """Whether the process that wanted to outlive its command has ended."""
        with (self.folder / "pid").open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True

    def close(self) -> None:
        for child in self._children:
            child.stop(at_once=True)


@pytest.fixture(scope="module")
def fork_server(tmp_path_factory: pytest.TempPathFactory) -> ForkServer:
    """One that has imported nothing: fast to start, and it ends with the tests."""
    return ForkServer(tmp_path_factory.mktemp("fork-server"), os.getpid(), [])


@pytest.fixture(scope="module")
def entered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A process in a container that has the folders of the tests, and this interpreter."""
    found = node_image(image(), print, root=tmp_path_factory.mktemp("images"))
    folders = (tmp_path_factory.getbasetemp(), ROOT, Path(sys.prefix))
    with container(found.id, [Mount(source=path, target=path) for path in folders], []) as made:
        yield made.pid


WAYS = [
    *("started", "forked", "in a container"),
    *("started, as a user of its own", "forked, as a user of its own"),
    *("started, in namespaces of its own", "forked, in namespaces of its own"),
    # The same two, put together.
    pytest.param("in a container, as a user of its own", marks=pytest.mark.soak),
]


KINDS: dict[str, Isolation] = {
    "": "none",
    "as a user of its own": "users",
    "in namespaces of its own": "namespaces",
}


@pytest.fixture(params=WAYS)
def harness(
    request: pytest.FixtureRequest, tmp_path: Path, fork_server: ForkServer
) -> Iterator[ChildHarness]:
    """All that is promised holds however the command comes to life."""
    way, _, confined = request.param.partition(", ")
    isolation = KINDS[confined]
    decide_or_skip(isolation)
    inside = request.getfixturevalue("entered") if way == "in a container" else 0
    folder, temporary = tmp_path / "folder", tmp_path / "temporary"
    folder.mkdir()
    temporary.mkdir()
    with confined_job(isolation, tmp_path.name, tmp_path, temporary) as job:
        with_folder = ChildHarness(folder, fork_server if way == "forked" else None, inside, job)
        yield with_folder
        with_folder.close()


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_until_gone(pid: int, timeout_s: float = 10.0) -> None:
    try:
        psutil.Process(pid).wait(timeout_s)
    except psutil.NoSuchProcess:
        return
    except psutil.TimeoutExpired:
        assert is_gone(pid), f"process {pid} still runs: {psutil.Process(pid)}"


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("pass", {"exit_code": 0}),
        ("sys.exit(3)", {"exit_code": 3}),
        ("raise RuntimeError('x')", {"exit_code": 1}),
        ("import os; os.kill(os.getpid(), 9)", {"signal": 9}),
        ("import os; os.abort()", {"signal": 6}),
    ],
)
def test_ends_are_reported_as_they_were(harness: ChildHarness, code: str, status: dict[str, object]) -> None:
    assert harness.python(code).wait() == status


def test_a_command_sees_the_files_of_its_container_alone(harness: ChildHarness) -> None:
    is_inside = harness.container != 0
    code = f"import os; sys.exit(os.path.isdir('/own/bin') != {is_inside} or os.path.isdir('/home') == {is_inside})"
    assert harness.python(code).wait() == {"exit_code": 0}
    assert harness.start("sh", "-c", "test $PWD = $WANTED", WANTED=str(harness.folder)).wait() == {
        "exit_code": 0
    }


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("trane.py", "No such file or directory"),
        ("./plain.txt", "Permission denied"),
        ("./broken.sh", "No such file or directory"),
        ("./", "Permission denied"),
        ("./bare.sh", "Exec format error; write bash before it, or #!/bin/bash as its first line"),
    ],
)
def test_a_command_that_cannot_be_started_says_why(harness: ChildHarness, command: str, why: str) -> None:
    (harness.folder / "plain.txt").write_text("not a program")
    script = harness.folder / "broken.sh"
    script.write_text("#!/no/such/interpreter\n")
    bare = harness.folder / "bare.sh"
    bare.write_text("true\n")
    for one in (script, bare):
        one.chmod(0o755)
    assert harness.start(command).wait() == {"start_failed": f"{command}: {why}"}


def test_a_command_that_no_process_can_take_leaves_no_descriptor_behind(harness: ChildHarness) -> None:
    before = psutil.Process().num_fds()
    with pytest.raises(ValueError, match="null"):
        harness.start("python", "a\0b")
    with pytest.raises(OSError, match="too long"):
        harness.start("python", "x" * 10_000_000)
    assert psutil.Process().num_fds() == before


def test_both_streams_are_read_to_their_ends(harness: ChildHarness) -> None:
    code = "sys.stderr.write('err\\n'); sys.stdout.buffer.write(b'out\\r\\nno end\\xff')"
    harness.python(code).wait()
    assert sorted(harness.heard.lines) == [("stderr", "err"), ("stdout", "no end\ufffd"), ("stdout", "out")]


def test_megabytes_in_one_line_are_cut(harness: ChildHarness) -> None:
    harness.python("sys.stdout.write('x' * 5_000_000)").wait()
    ((_, text),) = harness.heard.lines
    assert text == "x" * 1000 + " [4999000 more bytes of this line were cut]"


def test_standard_input_is_empty_and_the_process_leads_a_session_of_its_own(harness: ChildHarness) -> None:
    code = "import os; print(repr(sys.stdin.read()), os.getsid(0) == os.getpid())"
    harness.python(code).wait()
    assert harness.heard.lines == [("stdout", "'' True")]


def test_signals_that_python_ignores_are_not_ignored_in_the_command(harness: ChildHarness) -> None:
    code = "import signal; print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, signal.pthread_sigmask(0, []))"
    harness.python(code).wait()
    assert harness.heard.lines == [("stdout", "True set()")]


@pytest.mark.parametrize("kind", OUTLIVERS)
def test_whatever_wants_to_outlive_the_command_is_ended(harness: ChildHarness, kind: str) -> None:
    child = harness.python(OUTLIVERS[kind] + WAIT_FOR_PID)
    assert child.wait() == {"exit_code": 0, "outlived": 1}
    assert harness.is_left_alone()


def test_sigterm_lets_the_command_say_goodbye(harness: ChildHarness) -> None:
    code = """
import os, signal
def goodbye(*_):
    os.write(1, b"goodbye\\n")
    os._exit(7)
signal.signal(signal.SIGTERM, goodbye)
print("ready", flush=True)
while True: signal.pause()
"""
    child = harness.python(code)
    harness.heard.wait_for(lambda: ("stdout", "ready") in harness.heard.lines)
    child.stop(at_once=False)
    assert child.wait() == {"exit_code": 7}
    assert harness.heard.lines[-1] == ("stdout", "goodbye")


def test_what_a_shell_has_started_may_say_goodbye_too(harness: ChildHarness) -> None:
    (harness.folder / "save.py").write_text(
        "import os, pathlib, signal, sys, threading\n"
        "pause = threading.Event()\n"
        "def save(*_):\n"
        "    while pathlib.Path(f'/proc/{sys.argv[1]}').exists():\n"
        "        pause.wait(0.01)\n"
        # More time than is given to what ends by itself.
        "    pause.wait(0.6)\n"
        # The signal may come while `print` has not returned yet, which cannot be called again then.
        "    os.write(1, b'saved\\n')\n"
        "    os._exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "print('ready', flush=True)\n"
        "signal.pause()\n"
    )
    child = harness.start("bash", "-c", f"cd . && {sys.executable} save.py $$; true")
    harness.heard.wait_for(lambda: ("stdout", "ready") in harness.heard.lines)
    child.stop(at_once=False)
    assert child.wait() == {"signal": signal.SIGTERM.value}
    assert ("stdout", "saved") in harness.heard.lines


@pytest.mark.parametrize(("at_once", "grace_s"), [(False, 0.2), (True, 600.0)])
def test_a_command_that_ignores_sigterm_is_killed_after_its_grace(
    harness: ChildHarness, at_once: bool, grace_s: float
) -> None:
    code = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
while True: signal.pause()
"""
    child = harness.python(OUTLIVERS["daemon"] + code, grace_s=grace_s)
    harness.heard.wait_for(lambda: ("stdout", "ready") in harness.heard.lines)
    child.stop(at_once=at_once)
    assert child.wait()["signal"] == 9


def test_a_killed_shim_takes_everything_with_it(harness: ChildHarness) -> None:
    child = harness.python(OUTLIVERS["daemon"] + WAIT_FOR_PID + "print('up', flush=True); time.sleep(600)")
    harness.heard.wait_for(lambda: ("stdout", "up") in harness.heard.lines)
    commands = psutil.Process(child.pid).children(recursive=True)
    assert not harness.is_left_alone()
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait() == {"signal": 9}
    for one in commands:
        wait_until_gone(one.pid)
    assert harness.is_left_alone()


@pytest.mark.parametrize("is_forked", [False, True])
def test_a_supervisor_that_is_killed_takes_everything_with_it(tmp_path: Path, is_forked: bool) -> None:
    code = f"""
import os, sys, pathlib
from tests.unit.trainers.test_child import ChildHarness, OUTLIVERS, WAIT_FOR_PID
from trainers.processes.fork_server_client import ForkServer
folder = pathlib.Path({str(tmp_path)!r})
harness = ChildHarness(folder, ForkServer(folder / "server", {os.getpid()}, []) if {is_forked} else None)
stay = "import time, pathlib; print('up', flush=True); pathlib.Path('up').touch(); time.sleep(600)"
child = harness.python(OUTLIVERS["double fork"] + WAIT_FOR_PID + stay)
harness.heard.wait_for(lambda: ("stdout", "up") in harness.heard.lines)
print(child.pid, flush=True)
child.wait()
"""
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    shim = psutil.Process(int(parent.stdout.readline()))
    family = [shim, *shim.children(recursive=True)]
    daemon = int((tmp_path / "pid").read_text())
    assert daemon in [one.pid for one in family], "an orphan belongs to the shim"
    parent.kill()
    parent.wait()
    parent.stdout.close()
    for one in family:
        wait_until_gone(one.pid)


def test_the_script_and_its_supervisor_talk(harness: ChildHarness) -> None:
    code = """
from remora import training
training.report(1, {"loss": 0.5})
while not training.preemption(): pass
training.report(2)
"""
    child = harness.python(code)
    harness.heard.wait_for(lambda: any(one["type"] == "report" for one in harness.heard.messages))
    child.send({"type": "preemption", "deadline_at": 5.0, "reason": "drain"})
    assert child.wait() == {"exit_code": 0}
    assert [one["type"] for one in harness.heard.messages] == ["hello", "report", "report"]
    child.send({"type": "release"})  # harmless when it is gone
