"""The folder in which a command runs: shared by the ranks of a node, gone with the last of them."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from remora.code.bundle import pack
from remora.errors import BundleError
from trainers.node_folders import (
    fill_once,
    make_once,
    open_lock,
    shared_folder,
    sweep_folders,
    unpack_once,
    work_root,
)
from trainers.storage import Storage
from trainers.supervisor.snapshot_memory import memory_root, snapshot_space


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REMORA_WORK_DIR", str(tmp_path / "work"))
    return tmp_path / "work"


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(tmp_path / "storage")


def bundle(storage: Storage, tmp_path: Path, files: dict[str, str]) -> str:
    code = tmp_path / "code"
    code.mkdir()
    for name, content in files.items():
        (code / name).write_text(content)
    packed = pack(code, tmp_path / "bundle.zip")
    storage.write_file(f"bundles/{packed.digest.removeprefix('sha256:')}.zip", tmp_path / "bundle.zip")
    return packed.digest


def test_a_folder_is_filled_by_one_and_by_another_one_where_that_failed(root: Path) -> None:
    filled: list[str] = []

    def fill(target: Path) -> None:
        filled.append(target.name)
        (target / "part").write_text("whole")
        if len(filled) == 1:
            raise OSError("the storage is gone")

    with shared_folder("att_1-1") as folder:
        with pytest.raises(OSError, match="storage is gone"):
            fill_once(folder, "resume", fill, lambda: None)
        assert {one.name for one in folder.iterdir()} == {"resume.lock"}
        found = [fill_once(folder, "resume", fill, lambda: None) for _ in range(3)]
        assert found == [folder / "resume"] * 3
        assert (folder / "resume" / "part").read_text() == "whole"
    assert len(filled) == 2


def test_who_waits_for_one_that_fills_a_folder_may_give_up(root: Path) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def slowly(_: Path) -> None:
        begun.set()
        assert may_end.wait(60)

    def give_up() -> None:
        if begun.is_set():
            raise InterruptedError("no longer wanted")

    with shared_folder("att_1-1") as folder:
        filling = threading.Thread(target=fill_once, args=(folder, "resume", slowly, lambda: None))
        filling.start()
        assert begun.wait(60)
        with pytest.raises(InterruptedError):
            fill_once(folder, "resume", slowly, give_up)
        may_end.set()
        filling.join()
        assert (folder / "resume").is_dir()


def test_the_work_root_is_private(root: Path) -> None:
    assert work_root() == root
    assert root.stat().st_mode & 0o777 == 0o700


def test_a_folder_is_shared_and_removed_by_the_last_one(root: Path) -> None:
    with shared_folder("att_1-1") as first:
        (first / "file").touch()
        with shared_folder("att_1-1") as second:
            assert (second / "file").exists()
        assert first.exists(), "one is still in it"
        with shared_folder("att_2-1") as other:
            assert other != first
    assert list(root.iterdir()) == []


def test_a_folder_is_removed_when_its_user_fails(root: Path) -> None:
    with pytest.raises(RuntimeError), shared_folder("att_1-1"):
        raise RuntimeError
    assert list(root.iterdir()) == []


def hold(name: str, ready: object) -> None:
    with shared_folder(name) as folder:
        (folder / "left behind").touch()
        ready.set()  # type: ignore[attr-defined]
        signal.pause()


@pytest.fixture
def holder() -> Iterator[multiprocessing.Process]:
    """A process that holds a folder for ever."""
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=hold, args=("att_1-1", ready))
    process.start()
    assert ready.wait(30.0)
    yield process  # type: ignore[misc]
    process.kill()
    process.join()


def test_what_a_killed_supervisor_left_is_swept_and_what_is_in_use_is_not(
    root: Path, holder: multiprocessing.Process
) -> None:
    with shared_folder("att_2-1") as ours:
        assert sweep_folders() == []
        assert (root / "att_1-1" / "left behind").exists()
        assert holder.pid is not None
        os.kill(holder.pid, signal.SIGKILL)
        psutil.wait_procs([psutil.Process(holder.pid)], timeout=10.0)
        holder.join()
        assert sweep_folders() == ["att_1-1"]
        assert sorted(path.name for path in root.iterdir()) == ["att_2-1", "att_2-1.lock"]
        assert ours.exists()


def test_a_link_in_place_of_a_lock_leads_to_nothing(root: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("content")
    work_root()
    (root / "att_1-1.lock").symlink_to(precious)
    (root / "att_1-1").mkdir()
    (root / "att_2-1.lock").mkdir()

    with pytest.raises(OSError, match="att_1-1"), shared_folder("att_1-1"):
        pass

    assert sweep_folders() == []
    assert precious.read_text() == "content"
    assert (root / "att_1-1").exists()


def test_folders_that_a_script_has_put_into_each_other_are_removed(root: Path) -> None:
    with shared_folder("att_1-1") as folder:
        # Deeper than a call of Python by itself may go, and than a path may be long.
        subprocess.run(
            [sys.executable, "-S", "-c", "import os\nfor _ in range(1500): os.mkdir('deep'); os.chdir('deep')"],
            cwd=folder, check=True, timeout=60,
        )  # fmt: skip
    left = list(root.iterdir())
    # pytest itself cannot remove what a failure leaves.
    subprocess.run(["/bin/rm", "-rf", str(root)], check=True, timeout=60)
    assert left == []


def test_a_work_folder_that_another_user_has_made_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REMORA_WORK_DIR")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    theirs = tmp_path / f"remora-work-{os.getuid()}"
    (tmp_path / "home").mkdir(mode=0o700)
    theirs.symlink_to(tmp_path / "home")
    with pytest.raises(PermissionError, match="is no folder of this user alone; remove it"):
        work_root()
    theirs.unlink()
    theirs.mkdir()
    theirs.chmod(0o777)
    with pytest.raises(PermissionError, match="is no folder of this user alone; remove it"):
        work_root()
    theirs.chmod(0o755)
    assert work_root() == theirs


def test_a_folder_in_memory_that_another_user_has_made_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "memory").mkdir()
    monkeypatch.setattr("trainers.supervisor.snapshot_memory._MEMORY", tmp_path / "memory")
    home = tmp_path / "home"
    (home / "photos").mkdir(parents=True, mode=0o700)
    (home / "photos.lock").touch()
    (tmp_path / "memory" / f"remora-{os.getuid()}").symlink_to(home)
    assert memory_root() is None
    with snapshot_space("att_1-1", 1) as space:
        assert space is None
    assert (home / "photos").is_dir()


def test_code_is_unpacked_once(storage: Storage, tmp_path: Path) -> None:
    digest = bundle(storage, tmp_path, {"train.py": "print(1)"})
    with shared_folder("att_1-1") as folder:
        code = unpack_once(storage, digest, folder)
        assert (code / "train.py").read_text() == "print(1)"
        (code / "written by rank 0").touch()
        assert unpack_once(storage, digest, folder) == code
        assert (code / "written by rank 0").exists()
        assert sorted(path.name for path in folder.iterdir()) == ["code", "code.lock"]


def test_no_bundle_is_an_empty_folder(storage: Storage) -> None:
    with shared_folder("att_1-1") as folder:
        assert list(unpack_once(storage, None, folder).iterdir()) == []


def test_a_bundle_that_is_missing_or_no_archive_is_said(storage: Storage) -> None:
    storage.write_bytes("bundles/abc.zip", b"not an archive")
    with shared_folder("att_1-1") as folder:
        with pytest.raises(FileNotFoundError):
            unpack_once(storage, "sha256:def", folder)
        with pytest.raises(BundleError):
            unpack_once(storage, "sha256:abc", folder)


@pytest.mark.parametrize("round_number", range(20))
def test_what_is_made_once_is_shared_by_all_who_wait_for_it(round_number: int, tmp_path: Path) -> None:
    """None of them waits for another one to be done with it: they may wait for each other."""
    users, there = 6, tmp_path / "there"
    together, made = threading.Barrier(users), []

    def make() -> None:
        made.append(threading.get_ident())
        there.touch()

    def use() -> None:
        with open_lock(tmp_path / "it.lock") as lock:
            make_once(lock, there.exists, make)
            together.wait(20)

    threads = [threading.Thread(target=use) for _ in range(users)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not together.broken
    assert len(made) == 1


def test_who_fails_to_make_it_leaves_that_to_the_next(tmp_path: Path) -> None:
    there = tmp_path / "there"

    def fail() -> None:
        raise OSError("no space left")

    with open_lock(tmp_path / "it.lock") as lock, pytest.raises(OSError, match="no space"):
        make_once(lock, there.exists, fail)
    with open_lock(tmp_path / "it.lock") as lock:
        make_once(lock, there.exists, there.touch)
    assert there.exists()


def test_who_waits_for_it_may_give_up(tmp_path: Path) -> None:
    class GivenUp(Exception):
        pass

    def give_up() -> None:
        raise GivenUp

    with open_lock(tmp_path / "it.lock") as held, open_lock(tmp_path / "it.lock") as lock:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(GivenUp):
            make_once(lock, lambda: True, lambda: None, give_up)
