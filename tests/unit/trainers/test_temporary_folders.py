"""Folders for temporary files: short, private, and gone with the process that asked for them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from trainers.node_folders import shared_folder, sweep_folders
from trainers.supervisor.node_sweep import sweep_machine
from trainers.supervisor.temporary_folders import temporary_folder, temporary_root

ROOT = Path(__file__).parents[3]
#: What Ray puts below the folder of its own in TMPDIR, with as long a process id as Linux has.
RAY = "ray/session_2026-11-24_03-13-00_123456_4194304/sockets/plasma_store"


@pytest.fixture
def reported() -> list[str]:
    return []


@pytest.fixture
def roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path, Path]:
    """The node's TMPDIR, where short links lie, and the node's own folder."""
    system, short, work = tmp_path / ("x" * 60), tmp_path / "short", tmp_path / "work"
    for folder in (system, short, work):
        folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(system))
    monkeypatch.setattr("trainers.supervisor.temporary_folders._SHORT", short)
    monkeypatch.setenv("REMORA_WORK_DIR", str(work))
    return system, short, work


def test_a_socket_with_a_long_name_fits_below_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reported: list[str]
) -> None:
    """Also where the system's own folder has a path of any length; the files lie there."""
    long = tmp_path / ("x" * 60)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    with temporary_folder("att_1", reported.append) as folder, socket.socket(socket.AF_UNIX) as one:
        assert folder.stat().st_mode & 0o777 == 0o700
        assert folder.resolve().is_relative_to(long.resolve())
        path = folder / RAY
        path.parent.mkdir(parents=True)
        one.bind(str(path))
    assert not folder.is_symlink()
    assert list((long / f"remora-tmp-{os.getuid()}").iterdir()) == []
    assert reported == []


def test_workers_of_one_attempt_share_a_folder_on_a_node(
    roots: tuple[Path, ...], reported: list[str]
) -> None:
    with temporary_folder("att_1", reported.append) as first:
        with (
            temporary_folder("att_1", reported.append) as second,
            temporary_folder("att_2", reported.append) as other,
        ):
            assert first == second != other
        assert first.is_dir(), "one of them lives"
        assert not other.exists()
    assert not first.is_symlink()


@pytest.mark.parametrize("why", ["is another's", "is a file"])
def test_where_no_short_link_can_be_made_the_long_path_is_used(
    roots: tuple[Path, ...], reported: list[str], why: str
) -> None:
    system, short, _ = roots
    taken = short / f"remora-tmp-{os.getuid()}"
    if why == "is a file":
        taken.touch()
    else:
        taken.mkdir()
        taken.chmod(0o777)
    with temporary_folder("att_1", reported.append) as folder:
        assert folder.is_relative_to(system)
        assert not folder.is_symlink()
    (line,) = reported
    assert "may be too long for sockets" in line


def test_a_folder_that_others_may_write_to_is_not_used(roots: tuple[Path, ...], reported: list[str]) -> None:
    system, short, work = roots
    sweep_machine()
    assert [*system.iterdir(), *short.iterdir(), *work.iterdir()] == [], "a sweep makes nothing"
    taken = system / f"remora-tmp-{os.getuid()}"
    taken.mkdir()
    taken.chmod(0o777)
    with temporary_folder("att_1", reported.append) as folder:
        assert folder.resolve().is_relative_to(work.resolve())
    (line,) = reported
    assert "is no folder of this user alone" in line
    assert list((work / "temporary").iterdir()) == []
    assert list(taken.iterdir()) == []
    sweep_machine()


def test_a_sweep_finds_folders_of_nodes_with_another_tmpdir(
    roots: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    system, short, _ = roots
    root, links = system / f"remora-tmp-{os.getuid()}", short / f"remora-tmp-{os.getuid()}"
    (root / "0123abcd").mkdir(parents=True)
    (root / "0123abcd.lock").touch()
    links.mkdir(mode=0o700)
    (links / "0123abcd").symlink_to(root / "0123abcd")
    (links / "89abcdef").symlink_to(tmp_path / "gone")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    sweep_machine()
    assert list(root.iterdir()) == list(links.iterdir()) == []


HOLDS = """
import signal, tempfile
from pathlib import Path
from trainers.supervisor import temporary_folders
temporary_folders._PATH_BYTES = 4096
with temporary_folders.temporary_folder("att_2", print) as folder:
    (folder / "left").touch()
    print(folder, flush=True)
    signal.pause()
"""


def test_what_a_killed_process_left_is_swept_and_what_a_living_one_has_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("trainers.supervisor.temporary_folders._PATH_BYTES", 4096)
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS], stdout=subprocess.PIPE, text=True, env=environment
    ) as holder:
        assert holder.stdout is not None
        left = Path(holder.stdout.readline().strip())
        sweep_machine()
        assert (left / "left").exists(), "its owner lives"
        holder.kill()
    with temporary_folder("att_1", print) as living:
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
        patched.setattr("trainers.node_folders.remove_tree", refuse)
        with shared_folder("one", tmp_path):
            pass
        assert sweep_folders(tmp_path) == []
    assert (tmp_path / "one").exists()
    assert sweep_folders(tmp_path) == ["one"]
    assert list(tmp_path.iterdir()) == []
