"""A process of a local machine that lost its parents and threw its environment away is ended with the machine."""

from __future__ import annotations

import os
import shutil
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from cluster.local.provider import Boot, LocalProvider
from remora import cgroups
from remora.cgroups import Walls
from service.up import main
from trainers.node_folders import shared_folder

#: Starts a daemon without parent and environment, writes `up` once it is there, and stays.
FIRST = """
import os, pathlib, signal, sys
MARK = sys.argv[1]
reader, writer = os.pipe()
os.set_inheritable(writer, True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        code = "import os, signal, sys; os.write(int(sys.argv[2]), b'up'); signal.pause()"
        os.execve(sys.executable, [sys.executable, "-c", code, MARK, str(writer)], {})
    os._exit(0)
os.wait()
os.close(writer)
os.read(reader, 2)
os.close(os.open(sys.argv[2], os.O_WRONLY))
signal.pause()
"""


@pytest.fixture
def mark() -> Iterator[str]:
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
    return found


@pytest.fixture(params=["in cgroups", "under subreapers"])
def held(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    way = str(request.param)
    if way == "under subreapers":
        monkeypatch.setattr(cgroups, "walls", lambda: Walls(folder=None, why_not="this test has none"))
    elif cgroups.walls().folder is None:
        pytest.skip(cgroups.walls().sentence)
    return way


def boot(home: Path, mark: str) -> LocalProvider:
    """A machine whose daemon runs; waits on a pipe that the machine opens."""
    provider = LocalProvider(home, "127.0.0.9:1")
    pipe = home / "up"
    os.mkfifo(pipe)
    provider.boot(
        "vm-1", lambda _: Boot(command=[sys.executable, "-c", FIRST, mark, str(pipe)], variables={})
    )
    os.close(os.open(pipe, os.O_RDONLY))
    assert len([one for one in marked(mark) if is_daemon(one)]) == 1
    return provider


def is_daemon(process: psutil.Process) -> bool:
    """Whether it is the one that lost its parents; the others have its mark in their arguments too."""
    return "signal.pause()" in process.cmdline()[2] and "fork" not in process.cmdline()[2]


@pytest.mark.usefixtures("held")
@pytest.mark.parametrize("way", ["kill", "delete"])
def test_it_ends_with_its_machine(tmp_path: Path, mark: str, way: str) -> None:
    provider = boot(tmp_path, mark)
    getattr(provider, way)("vm-1")
    assert marked(mark) == []
    provider.delete("vm-1")


@pytest.mark.usefixtures("held")
def test_it_leaves_no_zombie_when_it_ends_by_itself(tmp_path: Path, mark: str) -> None:
    provider = boot(tmp_path, mark)
    (daemon,) = [one for one in marked(mark) if is_daemon(one)]
    daemon.kill()
    daemon.wait(20)  # Until its process id is free.
    assert provider.processes("vm-1"), "its machine goes on"
    provider.delete("vm-1")
    assert marked(mark) == []


@pytest.mark.usefixtures("held")
def test_down_ends_it(tmp_path: Path, mark: str, capsys: pytest.CaptureFixture[str]) -> None:
    boot(tmp_path, mark)
    assert main(["--down", "--home", str(tmp_path)]) == 0
    assert marked(mark) == []
    assert "Ended 1 left-over machines" in capsys.readouterr().out


def test_down_ends_it_when_its_machine_died_and_no_record_is_left(
    tmp_path: Path, mark: str, capsys: pytest.CaptureFixture[str]
) -> None:
    root = cgroups.walls().folder
    if root is None:
        pytest.skip(cgroups.walls().sentence)
    provider = boot(tmp_path, mark)
    (first,) = provider.processes("vm-1")
    first.kill()
    first.wait()
    (tmp_path / "nodes" / "vm-1.json").unlink()
    (daemon,) = [one for one in marked(mark) if is_daemon(one)]
    assert daemon.is_running()
    before = set(root.glob("remora-*"))
    assert main(["--down", "--home", str(tmp_path)]) == 0
    assert "Ended 1 left-over machines" in capsys.readouterr().out
    assert marked(mark) == []
    assert len(before - set(root.glob("remora-*"))) >= 1, "its cgroup is gone too"
    assert main(["--down", "--home", str(tmp_path)]) == 0
    assert "Nothing is left running" in capsys.readouterr().out


def test_down_ends_it_when_the_home_was_removed(
    tmp_path: Path, mark: str, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    boot(home, mark)
    shutil.rmtree(home)
    assert main(["--down", "--home", str(home)]) == 0
    assert "Ended 1 left-over machines" in capsys.readouterr().out
    assert marked(mark) == []
    assert not home.exists()


def test_down_says_no_more_than_it_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cgroups, "walls", lambda: Walls(folder=None, why_not="this test has none"))
    assert main(["--down", "--home", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "Nothing is left running" not in said
    assert "Nothing that carries the mark" in said


@pytest.mark.parametrize("name", ["remora", "remora-tmp"])
def test_down_removes_what_killed_workers_left_in_memory_and_as_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    memory = tmp_path / "memory"
    memory.mkdir()
    monkeypatch.setattr("trainers.supervisor.snapshot_memory._MEMORY", memory)
    monkeypatch.setattr("trainers.supervisor.temporary_folders._PATH_BYTES", 4096)
    monkeypatch.setattr("tempfile.tempdir", str(memory))
    root = memory / f"{name}-{os.getuid()}"
    (root / "att_1-1-0-99" / "taken").mkdir(parents=True)
    (root / "att_1-1-0-99" / "taken" / "weights").write_bytes(b"x")
    (root / "att_1-1-0-99.lock").touch()
    with shared_folder("att_2-1-0-1", root) as living:
        assert main(["--down", "--home", str(tmp_path)]) == 0
        assert sorted(path.name for path in root.iterdir()) == ["att_2-1-0-1", "att_2-1-0-1.lock"]
        assert living.is_dir()
