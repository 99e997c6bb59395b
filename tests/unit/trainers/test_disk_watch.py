"""What a job's files take of its node's disk: what counts, and what becomes of a command that takes too much."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.unit.trainers.supervisor_stage import Stage
from trainers.confined_folders import remove_tree
from trainers.supervisor import disk_watch
from trainers.supervisor.disk_watch import DiskWatch, used_bytes


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


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_of_a_user_only_its_own_files_count(tmp_path: Path) -> None:
    write(tmp_path / "own", 1 << 18)
    write(tmp_path / "fetched")
    os.chown(tmp_path / "own", 4242, 4242)
    assert 1 << 18 <= used_bytes([tmp_path], 4242) < 1 << 19


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
