"""Folders for temporary files: short, private, and gone with the process that asked for them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from trainers.supervisor.code import shared_folder, sweep_folders
from trainers.supervisor.leftovers import sweep_machine
from trainers.supervisor.temporary import temporary_folder, temporary_root

ROOT = Path(__file__).parents[3]
#: What Ray puts below the folder of its own in TMPDIR, with as long a process id as Linux has.
RAY = "ray/session_2026-11-24_03-13-00_123456_4194304/sockets/plasma_store"


def test_a_socket_with_a_long_name_fits_below_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the system's own folder has a path of any length."""
    long = tmp_path / ("x" * 60)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    with temporary_folder() as folder, socket.socket(socket.AF_UNIX) as one:
        assert folder.stat().st_mode & 0o777 == 0o700
        path = folder / RAY
        path.parent.mkdir(parents=True)
        one.bind(str(path))
    assert not folder.exists()
    assert not folder.with_name(f"{folder.name}.lock").exists()


def test_a_short_folder_of_the_system_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with temporary_folder() as short:
        monkeypatch.setattr("tempfile.tempdir", str(short))
        monkeypatch.setattr("trainers.supervisor.temporary._PATH_BYTES", len(str(short)) + 30)
        assert temporary_root().parent == short


def test_a_folder_that_others_may_write_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("trainers.supervisor.temporary._PATH_BYTES", 4096)
    sweep_machine()
    assert list(tmp_path.iterdir()) == [], "a sweep makes nothing"
    (tmp_path / f"remora-tmp-{os.getuid()}").mkdir()
    (tmp_path / f"remora-tmp-{os.getuid()}").chmod(0o777)
    with pytest.raises(PermissionError, match="is no folder of this user alone"), temporary_folder():
        pass
    sweep_machine()


HOLDS = """
import signal, tempfile
from pathlib import Path
from trainers.supervisor import temporary
temporary._PATH_BYTES = 4096
with temporary.temporary_folder() as folder:
    (folder / "left").touch()
    print(folder, flush=True)
    signal.pause()
"""


def test_what_a_killed_process_left_is_swept_and_what_a_living_one_has_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("trainers.supervisor.temporary._PATH_BYTES", 4096)
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS], stdout=subprocess.PIPE, text=True, env=environment
    ) as holder:
        assert holder.stdout is not None
        left = Path(holder.stdout.readline().strip())
        sweep_machine()
        assert (left / "left").exists(), "its owner lives"
        holder.kill()
    with temporary_folder() as living:
        sweep_machine()
        assert sorted(path.name for path in temporary_root().iterdir()) == [
            living.name, f"{living.name}.lock",
        ]  # fmt: skip
    assert not left.exists()


def test_a_folder_that_cannot_be_removed_yet_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise OSError(39, "Directory not empty", str(path))

    with monkeypatch.context() as patched:
        patched.setattr("trainers.supervisor.code.remove_tree", refuse)
        with shared_folder("one", tmp_path):
            pass
        assert sweep_folders(tmp_path) == []
    assert (tmp_path / "one").exists()
    assert sweep_folders(tmp_path) == ["one"]
    assert list(tmp_path.iterdir()) == []
