"""What a job's files take of its node's disk: what counts, and what becomes of a command that takes too much."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from tests.unit.trainers.supervisor_stage import Stage
from trainers.confined_folders import remove_tree
from trainers.supervisor import disk_watch
from trainers.supervisor.disk_watch import DiskWatch, Spared, used_bytes


def write(path: Path, size: int = 1 << 20) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)


def test_files_count_once_and_links_do_not_lead_away(tmp_path: Path) -> None:
    write(tmp_path / "elsewhere/large")
    write(tmp_path / "job/a/one")
    (tmp_path / "job/link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "job/again").hardlink_to(tmp_path / "job/a/one")
    with (tmp_path / "job/sparse").open("wb") as file:
        file.truncate(1 << 40)
    found = used_bytes([tmp_path / "job", tmp_path / "missing", tmp_path / "job/a"])
    assert 1 << 20 <= found < 3 << 19


def test_what_others_have_asked_for_does_not_count_up_to_its_own_limit(tmp_path: Path) -> None:
    for name in ("trace-1.json", "trace-1.json.gz", "below/trace-1.json", "trace-2.json"):
        write(tmp_path / name)
    all_of_it = used_bytes([tmp_path])

    def without(most_bytes: int) -> int:
        return all_of_it - used_bytes([tmp_path], spared=Spared(tmp_path, "trace-1.json", most_bytes))

    assert without(1 << 30) == 2 << 20, "in that folder alone, and of that name alone"
    assert without(3 << 19) == 3 << 19


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_of_a_user_only_its_own_files_count(tmp_path: Path) -> None:
    write(tmp_path / "own", 1 << 18)
    write(tmp_path / "fetched")
    os.chown(tmp_path / "own", 4242, 4242)
    assert 1 << 18 <= used_bytes([tmp_path], 4242) < 1 << 19


def test_folders_and_empty_files_take_something_too(tmp_path: Path) -> None:
    for number in range(100):
        (tmp_path / "many" / str(number)).mkdir(parents=True)
        (tmp_path / "many" / f"empty-{number}").touch()
    assert used_bytes([tmp_path]) >= 202 * 512


#: Becomes a user, and keeps a file open that it deletes, by two descriptors.
HOLDS = """
import ctypes, os, sys
os.chdir(sys.argv[1])
os.setuid(4242)
file = open("deleted", "w+b")
file.write(b"x" * (1 << 20)); file.flush()
os.remove("deleted")
os.dup(file.fileno())
# Its folder in /proc belongs to root from now on.
assert ctypes.CDLL(None).prctl(4, 0) == 0
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root looks into processes of others")
def test_what_a_process_holds_open_counts_after_it_was_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o777)
    command = [sys.executable, "-c", HOLDS, str(folder)]
    try:
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"held\n"
            assert list(folder.iterdir()) == []
            assert 1 << 20 <= used_bytes([folder], 4242) < 3 << 19
            assert used_bytes([folder], 4243) == 0
            assert used_bytes([Path("/proc/self/ns")], 4242) < 1 << 20, "on another file system"
            monkeypatch.setattr(disk_watch, "_MOST_OPEN", 3)
            assert used_bytes([folder], 4242) >= 1 << 62
            process.communicate()
        assert used_bytes([folder], 4242) == 0
    finally:
        remove_tree(folder)


def test_folders_without_end_are_more_than_any_disk_has(tmp_path: Path) -> None:
    code = "import os, sys\nos.chdir(sys.argv[1])\nfor _ in range(3000): os.mkdir('d'); os.chdir('d')"
    (tmp_path / "deep").mkdir()
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "deep")], check=True)
    assert used_bytes([tmp_path]) >= 1 << 62
    remove_tree(tmp_path / "deep")


def test_it_is_said_once_and_looks_end_with_the_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_watch, "_PAUSE_S", 0.0)
    heard: list[int] = []
    came = threading.Event()

    def hear(size: int) -> None:
        heard.append(size)
        came.set()

    watch = DiskWatch([tmp_path], 1 << 19, hear)
    watch.start()
    write(tmp_path / "large")
    assert came.wait(30)
    watch.close()
    watch.close()
    assert len(heard) == 1


@pytest.mark.parametrize("isolation", ["none", "auto"])
def test_a_command_that_fills_the_disk_is_ended_with_a_sentence(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, isolation: str
) -> None:
    monkeypatch.setattr(disk_watch, "_PAUSE_S", 0.05)
    fills = "import signal\nopen('large', 'wb').write(b'x' * 8_192_000)\nsignal.pause()\n"
    stage.start(fills, command=[sys.executable, "train.py"], max_disk_bytes=4_096_000, isolation=isolation)
    end = stage.end()
    why = end.pop("excess")
    assert end == {"type": "exit", "stopped": False, "signal": 9}
    assert re.fullmatch(
        r"the files of its job on the node's disk have \d\.\d MiB \(\d{7} bytes\), and may have 3\.9 MiB"
        r" \(4096000 bytes, REMORA_MAX_DISK_BYTES\); let it keep less there, or have operators allow more",
        why,
    )
