"""Scripts that do all they can to leave a process behind, or to reach the processes above them by their environment."""

from __future__ import annotations

import mmap
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from remora import cgroups
from remora.cgroups import Walls
from tests.needed import is_missing
from tests.unit.trainers.test_child import ROOT, ChildHarness, wait_until_gone
from trainers.processes.child import Child
from trainers.processes.fork_server_client import ForkServer

#: What holds the pipes of a command keeps its supervisor waiting.
pytestmark = pytest.mark.timeout(120)

#: A daemon in a session of its own, without a parent and without an environment; known by the mark alone.
DAEMON = """
import os, signal, sys
MARK = sys.argv[1]
SLEEPER = "import os, signal, sys; os.write(int(sys.argv[2]), b'up'); signal.pause()"
reader, writer = os.pipe()
os.set_inheritable(writer, True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve(sys.executable, [sys.executable, "-c", SLEEPER, MARK, str(writer)], {})
    os._exit(0)
os.wait()
os.close(writer)
os.read(reader, 2)
print("up", flush=True)
"""
KILLS_ITS_SHIM = DAEMON + "os.kill(os.getppid(), signal.SIGKILL)\nsignal.pause()\n"
STOPS_ITS_SHIM = (
    DAEMON + "os.kill(os.getppid(), signal.SIGSTOP)\nprint('stopped', flush=True)\nsignal.pause()\n"
)
#: The shim stands still first: it would end the script as soon as the supervisor is gone, and the script ends with it.
KILLS_EVERYBODY = DAEMON + (
    "above, shim = int(os.environ['REMORA_SUPERVISOR']), os.getppid()\nos.kill(shim, signal.SIGSTOP)\n"
    "os.kill(above, signal.SIGKILL)\nos.kill(shim, signal.SIGKILL)\nsignal.pause()\n"
)


@pytest.fixture
def mark() -> Iterator[str]:
    """A word on the command line of all that a script starts, which it cannot take back; nothing survives the test."""
    word = f"mark-{uuid.uuid4().hex}"
    yield word
    for process in marked(word):
        process.kill()


def marked(word: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if word in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return [one for one in found if one.pid != os.getpid()]


@pytest.fixture(scope="module")
def fork_server(tmp_path_factory: pytest.TempPathFactory) -> ForkServer:
    return ForkServer(tmp_path_factory.mktemp("fork-server"), os.getpid(), [])


@pytest.fixture(params=["in cgroups", "under subreapers"])
def held(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways in which processes are held together."""
    way = str(request.param)
    if way == "under subreapers":
        monkeypatch.setattr(cgroups, "walls", lambda: Walls(folder=None, why_not="this test has none"))
    elif cgroups.walls().folder is None:
        pytest.skip(cgroups.walls().sentence)
    return way


@pytest.fixture(params=["started", "forked"])
def harness(
    request: pytest.FixtureRequest, tmp_path: Path, fork_server: ForkServer
) -> Iterator[ChildHarness]:
    with_folder = ChildHarness(tmp_path, fork_server if request.param == "forked" else None)
    yield with_folder
    with_folder.close()


def run(harness: ChildHarness, code: str, mark: str, **options: Any) -> Child:
    return harness.start(sys.executable, "-c", code, mark, **options)


def says(harness: ChildHarness, word: str) -> None:
    harness.heard.wait_for(lambda: ("stdout", word) in harness.heard.lines)


def test_a_script_that_kills_its_shim_leaves_nothing_behind(
    harness: ChildHarness, held: str, mark: str
) -> None:
    del held
    child = run(harness, KILLS_ITS_SHIM, mark)
    assert child.wait() == {"signal": 9}
    assert ("stdout", "up") in harness.heard.lines
    assert marked(mark) == []


def test_a_script_that_stops_its_shim_is_ended_all_the_same(
    harness: ChildHarness, held: str, mark: str
) -> None:
    del held
    child = run(harness, STOPS_ITS_SHIM, mark)
    says(harness, "stopped")
    child.stop(at_once=True)
    assert child.wait()["signal"] == 9
    assert marked(mark) == []


def test_the_outer_of_two_shims_is_no_way_out_either(
    tmp_path: Path, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "walls", lambda: Walls(folder=None, why_not="this test has none"))
    harness = ChildHarness(tmp_path)
    child = run(harness, DAEMON + "signal.pause()\n", mark)
    says(harness, "up")
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert marked(mark) == []


@pytest.mark.parametrize("is_forked", [False, True])
def test_what_a_script_leaves_that_killed_its_supervisor_too_is_ended_by_the_next(
    tmp_path: Path, mark: str, is_forked: bool
) -> None:
    if cgroups.walls().folder is None:
        pytest.skip(cgroups.walls().sentence)
    code = f"""
import os, pathlib, sys
from tests.needed import is_missing
from tests.unit.trainers.test_child import ChildHarness
from tests.unit.trainers.test_escapes import KILLS_EVERYBODY, run
from trainers.processes.fork_server_client import ForkServer
folder = pathlib.Path({str(tmp_path)!r})
harness = ChildHarness(folder, ForkServer(folder / "server", {os.getpid()}, []) if {is_forked} else None)
run(harness, KILLS_EVERYBODY, {mark!r}).wait()
"""
    supervisor = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False)
    assert supervisor.returncode == -signal.SIGKILL
    assert marked(mark) != [], "the script did what it wanted to do"
    cgroups.sweep()
    assert marked(mark) == []


def test_no_cgroup_stays_when_a_command_has_ended(harness: ChildHarness, mark: str) -> None:
    folder = cgroups.walls().folder
    if folder is None:
        pytest.skip(cgroups.walls().sentence)
    child = run(harness, DAEMON, mark)
    assert child.wait() == {"exit_code": 0, "outlived": 1}
    assert list(folder.glob(f"remora-*.{os.getpid()}.*")) == []


def test_a_command_may_have_so_many_processes_and_no_more(harness: ChildHarness, mark: str) -> None:
    here = cgroups.walls()
    if here.folder is None or not (here.counts or here.counting):
        pytest.skip(here.sentence)
    code = """
import os, signal
count = 0
try:
    while count < 1000:
        if os.fork() == 0: signal.pause()
        count += 1
except BlockingIOError:
    print("refused", count < 50, flush=True)
"""
    child = run(harness, code, mark, most_processes=50)
    status = child.wait()
    assert ("stdout", "refused True") in harness.heard.lines
    assert status["exit_code"] == 0
    assert marked(mark) == []


# --- files in memory

SHARES = """
import mmap, os, signal, sys
made, found, used = ("/dev/shm/" + sys.argv[1] + end for end in ("-made", "-found", "-used"))
open(made, "wb").write(b"x" * 4096)
maps = [mmap.mmap(os.open(path, os.O_RDWR), 4096) for path in (made, found, used)]
if os.fork() == 0:
    signal.pause()
print("up", flush=True)
print(os.getpid(), file=sys.stderr, flush=True)
signal.pause()
"""


@pytest.fixture
def shared(mark: str) -> Iterator[dict[str, Path]]:
    """Files in this machine's memory with names of this test's own."""
    files = {end: Path(f"/dev/shm/{mark}-{end}") for end in ("made", "found", "used")}
    for end in ("found", "used"):
        files[end].write_bytes(b"x" * 4096)
    while time.time() < files["found"].stat().st_ctime + 0.1:
        pass  # until it is older than what comes, by the kernel's own clock
    yield files
    for path in files.values():
        path.unlink(missing_ok=True)


@pytest.mark.parametrize("way", ["at once", "after its grace", "by its own signal"])
def test_files_in_memory_that_a_killed_command_made_are_removed(
    harness: ChildHarness, mark: str, shared: dict[str, Path], way: str
) -> None:
    child = run(harness, SHARES, mark, grace_s=0.1)
    says(harness, "up")
    with shared["used"].open("r+b") as file:
        mapped = mmap.mmap(file.fileno(), 4096)
        file.write(b"y")
    if way == "by its own signal":
        # A worker of its data loader is left.
        harness.heard.wait_for(lambda: "stderr" in dict(harness.heard.lines))
        os.kill(int(dict(harness.heard.lines)["stderr"]), signal.SIGKILL)
    else:
        child.stop(at_once=way == "at once")
    assert child.wait()["signal"] in (signal.SIGTERM, signal.SIGKILL)
    assert not shared["made"].exists()
    assert shared["found"].exists(), "it was there before"
    assert shared["used"].exists(), "another process uses it"
    mapped.close()


# --- what a job's variables reach


@pytest.fixture(scope="module")
def canary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that appends the command line of each process that loads it to the file `loaded` beside it."""
    compiler = shutil.which("cc")
    if compiler is None:
        is_missing("there is no C compiler: apt-get install gcc libc6-dev")
    folder = tmp_path_factory.mktemp("canary")
    source = folder / "canary.c"
    source.write_text(
        """
#include <fcntl.h>
#include <unistd.h>
__attribute__((constructor)) static void sing(void) {
    char text[4096];
    int from = open("/proc/self/cmdline", O_RDONLY), to = open(CANARY, O_WRONLY | O_CREAT | O_APPEND, 0600);
    ssize_t count = read(from, text, sizeof text - 1);
    for (ssize_t at = 0; at < count; at++) if (!text[at]) text[at] = ' ';
    text[count++] = '\\n';
    if (write(to, text, count) < 0) return;
    close(from); close(to);
}
"""
    )
    library = folder / "canary.so"
    loaded = f'-DCANARY="{folder / "loaded"}"'
    subprocess.run([compiler, "-shared", "-fPIC", loaded, "-o", str(library), str(source)], check=True)
    return library


def test_a_library_that_a_job_preloads_is_loaded_by_its_command_alone(
    tmp_path: Path, canary: Path, fork_server: ForkServer
) -> None:
    harness = ChildHarness(tmp_path, fork_server)
    child = harness.start(sys.executable, "-c", "print('done')", LD_PRELOAD=str(canary))
    assert child.wait() == {"exit_code": 0}
    loaded = canary.with_name("loaded").read_text().splitlines()
    assert len(loaded) == 1, loaded
    assert "command_shim.py" not in loaded[0]


HOSTILE = {
    "LD_DEBUG_OUTPUT": "x",
    "RAY_ADDRESS": "127.0.0.1:1",
    "RAY_auth_mode": "x",
    "OPENBLAS_VERBOSE": "2",
}


def test_a_jobs_variables_are_seen_by_its_command_and_by_nothing_above_it(
    harness: ChildHarness, tmp_path: Path
) -> None:
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "sitecustomize.py").write_text(
        f"open({str(tmp_path / 'imported')!r}, 'a').write(str(__import__('os').getpid()) + '\\n')"
    )
    hostile = HOSTILE if harness.fork_server is None else {"RAY_ADDRESS": HOSTILE["RAY_ADDRESS"]}
    if harness.fork_server is None:
        hostile = {**hostile, "PYTHONPATH": str(modules)}
    code = "import os, signal; print(os.getpid(), os.environ['RAY_ADDRESS'], flush=True); signal.pause()"
    child = harness.start(sys.executable, "-c", code, REMORA_JOB_ID="job_1", RANK="3", **hostile)
    harness.heard.wait_for(lambda: bool(harness.heard.lines))
    command, address = harness.heard.lines[0][1].split()
    assert address == hostile["RAY_ADDRESS"]
    seen = psutil.Process(child.pid).environ()
    assert not hostile.items() & seen.items()
    assert (seen["REMORA_JOB_ID"], seen["RANK"]) == ("job_1", "3"), "by which its shim is found"
    if "PYTHONPATH" in hostile:
        assert (tmp_path / "imported").read_text().split() == [command]
    child.stop(at_once=True)
    child.wait()
    wait_until_gone(int(command))
