"""What commands leave in the memory of their machine goes with them, and nothing of anybody else does."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from trainers.supervisor import memory_files, memory_watch
from trainers.supervisor.memory_files import entries, held_by, read_record, remove_recorded, write_record
from trainers.supervisor.memory_watch import MemoryWatch

MEMORY = Path("/dev/shm")
PAGE = mmap.PAGESIZE


@pytest.fixture
def own() -> Iterator[str]:
    """How the names of all files in memory begin that this test makes."""
    prefix = f"remora-test-{uuid.uuid4().hex[:12]}"
    yield prefix
    for path in MEMORY.glob(f"{prefix}*"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


#: Set when a watch has written down what it has seen.
WRITTEN = threading.Condition()


@pytest.fixture(autouse=True)
def reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(record: Path, names: Mapping[int, str]) -> None:
        write_record(record, names)
        with WRITTEN:
            WRITTEN.notify_all()

    monkeypatch.setattr(memory_watch, "write_record", write)


class Script:
    """A process that carries out orders, line by line."""

    def __init__(self) -> None:
        loop = (
            "import mmap, os, sys\n"
            "for line in sys.stdin:\n    exec(line.encode().decode('unicode_escape'))\n    print('.', flush=True)"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", loop], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def do(self, code: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(code.replace("\n", "\\n") + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == ".\n"

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def script() -> Iterator[Script]:
    one = Script()
    yield one
    one.end()


class Watched:
    """A watch over scripts, and what it has written down."""

    def __init__(self, record: Path, most_bytes: int, *scripts: Script, memory: Path = MEMORY) -> None:
        self.record, self.memory = record, memory
        self.excess: list[int] = []
        self.is_reported = threading.Event()
        self.watch = MemoryWatch(memory, f"remora-{os.getuid()}", record, most_bytes, self._hear)
        self.watch.start(lambda: [one.process.pid for one in scripts])

    def _hear(self, size_bytes: int) -> None:
        self.excess.append(size_bytes)
        self.is_reported.set()

    def until(self, *names: str) -> None:
        """Wait until these are known, and no others."""
        with WRITTEN:
            known = WRITTEN.wait_for(lambda: self.known() == sorted(names), 20.0)
        assert known, (names, self.known())

    def known(self) -> list[str]:
        return sorted(read_record(self.record).values())

    def remove(self) -> bool:
        self.watch.close()
        return remove_recorded(self.record, self.memory)


@pytest.fixture
def watched(tmp_path: Path, script: Script) -> Iterator[Watched]:
    one = Watched(tmp_path / "files", 1 << 30, script)
    yield one
    one.watch.close()


def made(script: Script, path: Path, size: int = PAGE) -> None:
    """The script makes a file and keeps it open; it calls it `f`."""
    script.do(f"f = open({str(path)!r}, 'wb'); f.write(b'x' * {size}); f.flush()")


@pytest.mark.parametrize("how", ["open", "mapped", "closed", "renamed", "in a folder"])
def test_what_a_command_makes_is_removed_when_it_is_over(
    script: Script, watched: Watched, own: str, how: str
) -> None:
    path, last = MEMORY / f"{own}-a", MEMORY / f"{own}-a"
    if how == "in a folder":
        script.do(f"os.makedirs('{path}/b')")
        path, last = path / "b" / "c", path / "b" / "c"
    made(script, path)
    if how == "mapped":
        script.do(f"r = open({str(path)!r}, 'r+b'); m = mmap.mmap(r.fileno(), 0); r.close(); f.close()")
    parents = [
        str(one.relative_to(MEMORY)) for one in path.parents if one != MEMORY and MEMORY in one.parents
    ]
    watched.until(str(path.relative_to(MEMORY)), *parents)
    if how == "closed":
        script.do("f.close()")
    elif how == "renamed":
        last = MEMORY / f"{own}-z"
        script.do(f"f.close(); os.rename('{path}', '{last}')")
    script.end()
    assert last.exists()
    assert watched.remove()
    assert not last.exists()
    assert list(MEMORY.glob(f"{own}*")) == []
    assert remove_recorded(watched.record, MEMORY), "once more is fine"


def test_files_of_others_stay(script: Script, tmp_path: Path, own: str) -> None:
    before, other, read = (MEMORY / f"{own}-{name}" for name in ("before", "other", "read"))
    before.write_bytes(b"x")
    watched = Watched(tmp_path / "files", 1 << 30, script)
    try:
        other.write_bytes(b"x")
        read.write_bytes(b"x")
        # It writes to what was there before, and only reads what another process made meanwhile.
        script.do(f"b = open('{before}', 'r+b'); b.write(b'y'); b.flush(); r = open('{read}', 'rb')")
        made(script, MEMORY / f"{own}-a")
        watched.until(f"{own}-a")
    finally:
        script.end()
        assert watched.remove()
    assert all(path.exists() for path in (before, other, read))
    assert not (MEMORY / f"{own}-a").exists()


def test_a_file_that_took_the_place_of_one_stays(script: Script, watched: Watched, own: str) -> None:
    names = [f"{own}-file", f"{own}-link", f"{own}-folder"]
    for name in names:
        script.do(f"{name[-4:]} = open('/dev/shm/{name}', 'wb')")
    watched.until(*names)
    canary = MEMORY / f"{own}-canary"
    canary.mkdir()
    (canary / "bird").write_text("sings")
    script.end()
    for name in names:
        (MEMORY / name).unlink()
    (MEMORY / names[0]).write_text("another")
    (MEMORY / names[1]).symlink_to(canary / "bird")
    (MEMORY / names[2]).symlink_to(canary)
    assert watched.remove()
    assert (MEMORY / names[0]).read_text() == "another"
    assert (canary / "bird").read_text() == "sings"


def test_a_folder_in_which_another_user_has_put_a_file_stays(
    script: Script, watched: Watched, own: str
) -> None:
    folder = MEMORY / f"{own}-folder"
    script.do(f"os.mkdir('{folder}')")
    made(script, folder / "a")
    watched.until(folder.name, f"{folder.name}/a")
    (folder / "other").touch()
    script.end()
    assert watched.remove()
    assert [path.name for path in folder.iterdir()] == ["other"]


@pytest.mark.parametrize("how", ["open", "mapped"])
def test_a_file_that_another_process_uses_stays_until_it_does_not(
    script: Script, watched: Watched, own: str, how: str
) -> None:
    path, other = MEMORY / f"{own}-a", Script()
    try:
        made(script, path)
        watched.until(path.name)
        other.do(f"r = open({str(path)!r}, 'rb'); m = mmap.mmap(r.fileno(), 0, access=mmap.ACCESS_READ)")
        other.do("m.close()" if how == "open" else "r.close()")
        script.end()
        assert not watched.remove()
        assert path.exists()
        assert list(read_record(watched.record).values()) == [path.name], "the next sweep knows it"
    finally:
        other.end()
    assert remove_recorded(watched.record, MEMORY)
    assert not path.exists()


@pytest.mark.parametrize("how", ["open", "closed", "without a name", "mapped without a name"])
def test_bytes_are_counted_and_an_excess_is_reported_once(
    script: Script, tmp_path: Path, own: str, how: str
) -> None:
    watched = Watched(tmp_path / "files", 64 * PAGE, script)
    path = MEMORY / f"{own}-a"
    try:
        made(script, path, 64 * PAGE)
        watched.until(path.name)
        if how == "closed":
            script.do("f.close()")
            made(script, MEMORY / f"{own}-b", 10 * PAGE)
        else:
            if how != "open":
                script.do(f"os.unlink('{path}')")
            script.do(f"f.write(b'x' * {10 * PAGE}); f.flush()")
        if how == "mapped without a name":
            maps = f"r = open('/proc/self/fd/%d' % f.fileno(), 'r+b'); m = mmap.mmap(r.fileno(), {74 * PAGE})"
            script.do(f"{maps}; r.close(); f.close(); sum(m[::4096])")
        assert watched.is_reported.wait(20.0)
        made(script, MEMORY / f"{own}-c", 10 * PAGE)
        assert how == "mapped without a name" or watched.excess == [74 * PAGE]
        assert len(watched.excess) == 1
    finally:
        script.end()
        watched.remove()


def test_memory_that_was_only_asked_for_is_not_counted(script: Script, own: str) -> None:
    path = MEMORY / f"{own}-a"
    script.do(f"f = open('{path}', 'w+b'); os.ftruncate(f.fileno(), 1 << 30); m = mmap.mmap(f.fileno(), 0)")
    (held,) = held_by([script.process.pid], MEMORY, for_writing=True).values()
    assert (held.name, held.size_bytes) == (path.name, 0)
    script.do(f"os.unlink('{path}'); f.close(); m[0] = 1")
    (held,) = held_by([script.process.pid], MEMORY, for_writing=True).values()
    assert held.name == ""
    assert held.size_bytes < 1 << 24, "no more than the process has touched"


def test_a_memory_that_holds_too_much_is_left_alone(
    tmp_path: Path, script: Script, monkeypatch: pytest.MonkeyPatch, own: str
) -> None:
    (MEMORY / f"{own}-1").touch()
    (MEMORY / f"{own}-2").touch()
    monkeypatch.setattr(memory_files, "MOST_SEEN", 1)
    assert entries(MEMORY) is None
    watched = Watched(tmp_path / "files", 0, script)
    made(script, MEMORY / f"{own}-a")
    script.end()
    assert watched.remove()
    assert watched.excess == []
    assert (MEMORY / f"{own}-a").exists(), "its owner is unknown"


@pytest.mark.parametrize("content", ["", "[", "[1]", "{}", '[["x", "y"]]', "[" * 100_000, "null"])
def test_a_record_that_says_nothing_removes_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / "files").write_text(content)
    assert remove_recorded(tmp_path / "files", MEMORY)


def test_a_record_leads_nowhere_else(tmp_path: Path, own: str, monkeypatch: pytest.MonkeyPatch) -> None:
    canary = tmp_path / "canary"
    canary.write_text("sings")
    (MEMORY / f"{own}-link").symlink_to(tmp_path)
    # Also where names cannot be compared with what is there.
    monkeypatch.setattr(memory_files, "MOST_SEEN", 0)
    inode = canary.stat().st_ino
    for name in (str(canary), f"../..{canary}", f"{own}-link/canary", "", ".", "a\0b"):
        write_record(tmp_path / "files", {inode: name})
        assert remove_recorded(tmp_path / "files", MEMORY)
    (tmp_path / "files").unlink()
    (tmp_path / "files").symlink_to(canary)
    assert read_record(tmp_path / "files") == {}
    assert canary.read_text() == "sings"


def test_without_events_of_new_files_it_looks_periodically(
    tmp_path: Path, script: Script, own: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_watch, "_watch_new_files", lambda _: None)
    watched = Watched(tmp_path / "files", 1 << 30, script)
    made(script, MEMORY / f"{own}-a")
    watched.until(f"{own}-a")
    script.end()
    assert watched.remove()


def test_nothing_is_read_while_nothing_happens(
    tmp_path: Path, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a memory of its own: that of the machine is everybody's."""
    memory = tmp_path / "memory"
    memory.mkdir()
    looks = threading.Semaphore(0)
    asked = threading.Semaphore(0)
    numbers = os.statvfs(memory)

    def same(_: Path) -> os.statvfs_result:
        asked.release()
        return numbers

    monkeypatch.setattr(memory_watch, "_EVERY_S", 0.05)
    monkeypatch.setattr(os, "statvfs", same)
    monkeypatch.setattr(memory_watch, "held_by", lambda *_, **__: (looks.release(), {})[1])
    watched = Watched(tmp_path / "files", 1 << 30, script, memory=memory)
    assert looks.acquire(timeout=10.0), "once at the beginning"
    for _ in range(5):
        assert asked.acquire(timeout=10.0)
    assert not looks.acquire(blocking=False)
    (memory / "new").touch()
    assert looks.acquire(timeout=10.0)
    watched.remove()


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A memory of 4 MiB."""
    memory = tmp_path / "small"
    memory.mkdir()
    mounted = ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(memory)]
    if os.getuid() or subprocess.run(mounted, capture_output=True, check=False).returncode:
        pytest.skip("no user may mount a file system here")
    yield memory
    subprocess.run(["umount", "--lazy", str(memory)], check=True)


def test_a_memory_that_is_full_is_reported_and_what_filled_it_is_removed(script: Script, small: Path) -> None:
    (small / "own").mkdir()
    watched = Watched(small / "own" / "files", 1 << 20, script, memory=small)
    script.do(
        f"f = open('{small}/a', 'wb'); os.posix_fallocate(f.fileno(), 0, os.statvfs('{small}').f_bavail * {PAGE})"
    )
    assert os.statvfs(small).f_bfree == 0
    assert watched.is_reported.wait(20.0)
    script.end()
    watched.watch.close()
    assert watched.known() == ["a"]
    assert watched.remove()
    assert [path.name for path in small.iterdir()] == ["own"]


def test_after_a_look_that_failed_another_one_comes_where_nothing_happens(
    tmp_path: Path, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, looks, numbers = tmp_path / "memory", threading.Semaphore(0), os.statvfs(tmp_path)
    memory.mkdir()

    def fail(*_: object, **__: object) -> None:
        looks.release()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(memory_watch, "_EVERY_S", 0.05)
    monkeypatch.setattr(os, "statvfs", lambda _: numbers)
    monkeypatch.setattr(memory_watch, "held_by", fail)
    watched = Watched(tmp_path / "files", 1 << 30, script, memory=memory)
    try:
        assert looks.acquire(timeout=10.0)
        assert looks.acquire(timeout=10.0)
    finally:
        watched.watch.close()


def test_what_could_not_be_put_down_is_put_down_at_the_end(
    tmp_path: Path, script: Script, own: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed, write = threading.Event(), vars(memory_watch)["write_record"]

    def refuse(*_: object) -> None:
        failed.set()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(memory_watch, "write_record", refuse)
    watched = Watched(tmp_path / "files", 0, script)
    made(script, MEMORY / f"{own}-a")
    assert failed.wait(10.0)
    assert watched.is_reported.wait(10.0), "the excess is reported before"
    monkeypatch.setattr(memory_watch, "write_record", write)
    script.end()
    assert watched.remove()
    assert not (MEMORY / f"{own}-a").exists()


def test_a_look_that_fails_is_not_the_last_one(
    tmp_path: Path, script: Script, own: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = threading.Event()
    write = vars(memory_watch)["write_record"]

    def refuse(*_: object) -> None:
        failed.set()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(memory_watch, "write_record", refuse)
    watched = Watched(tmp_path / "files", 1 << 30, script)
    made(script, MEMORY / f"{own}-a")
    assert failed.wait(10.0)
    script.do("f.close()")
    monkeypatch.setattr(memory_watch, "write_record", write)
    made(script, MEMORY / f"{own}-b")
    watched.until(f"{own}-a", f"{own}-b")
    script.end()
    assert watched.remove()
