"""The file system in memory of a job is ready before any of its workers uses it."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from remora.machine_isolation import offered
from trainers.isolation import memory
from trainers.isolation.memory import job_memory, job_memory_folder, unmount
from trainers.node_folders import sweep_folders
from trainers.supervisor.command_confinement import memory_folder_watch
from trainers.supervisor.snapshot_memory import SnapshotSpace


def clear(folder: Path) -> bool:
    unmount(folder)
    return True


def test_a_worker_waits_until_the_memory_is_ready_that_another_one_mounts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if offered().uids is None:
        pytest.skip(offered().why_not)
    mount = memory._mount
    is_mounted, is_second_in = threading.Event(), threading.Event()

    def slow(folder: Path, size_bytes: int) -> None:
        mount(folder, size_bytes)
        is_mounted.set()
        assert not is_second_in.wait(0.2), "the folder for its commands is not made yet"

    def second() -> list[str]:
        assert is_mounted.wait(10)
        with job_memory("user1", tmp_path, 1 << 20, clear) as made:
            is_second_in.set()
            return [path.name for path in made.shared.iterdir()]

    monkeypatch.setattr(memory, "_mount", slow)
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(second)
        with job_memory("user1", tmp_path, 1 << 20, clear) as made:
            assert found.result(10) == []
            assert made.root.is_mount()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_memory_is_watched_for_all_of_its_workers_and_goes_with_the_last_one(
    tmp_path: Path,
) -> None:
    excess: queue.Queue[tuple[int, int]] = queue.Queue()
    with job_memory_folder("job1", tmp_path, 1 << 20, clear) as made:
        with job_memory_folder("job1", tmp_path, 1 << 20, clear) as again:
            assert again.shared == made.shared
        space = SnapshotSpace(made.shared, made.shared, 0, made.shared, "", made.shared, confined=made)
        watch = memory_folder_watch(space, 1, lambda size, most: excess.put((size, most)))
        assert watch is not None
        watch.start()
        (made.shared / "small").write_bytes(bytes(1 << 19))
        (made.shared / "large").write_bytes(bytes(1 << 20))
        size, most = excess.get(timeout=20)
        assert size >= (1 << 19) + (1 << 20)
        assert most == 1 << 20
        watch.close()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_worker_left_is_swept_with_its_lock(tmp_path: Path) -> None:
    (tmp_path / "user1").mkdir()
    for name in ("user1.lock", "user1.mounting"):
        (tmp_path / name).touch()
    assert sweep_folders(tmp_path, clear) == ["user1"]
    assert list(tmp_path.iterdir()) == []
