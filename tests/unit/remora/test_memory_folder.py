"""Files go to memory only where they fit, and leave capacity for others."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from remora.script import memory_folder


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "script"
    folder.mkdir()
    (tmp_path / "taken").mkdir()
    monkeypatch.setenv("REMORA_MEMORY_DIR", str(folder))
    monkeypatch.setenv("REMORA_MEMORY_BYTES", "1000")
    return folder


def test_what_fits_goes_to_memory(memory: Path) -> None:
    assert memory_folder.folder_for(1000) == str(memory)
    assert memory_folder.folder_for(1001) is None


def test_what_is_not_stored_yet_still_takes_space(memory: Path) -> None:
    (memory.parent / "taken" / "file").write_bytes(b"x" * 600)
    assert memory_folder.folder_for(400) == str(memory)
    assert memory_folder.folder_for(401) is None


def test_all_workers_of_a_machine_may_write_at_once(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMORA_MEMORY_BYTES", str(2**62))
    free = shutil.disk_usage(memory).free
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert memory_folder.folder_for(free // 3) is None
    assert memory_folder.folder_for(1) == str(memory)


def test_no_memory_is_given_without_a_size_or_without_a_supervisor(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert memory_folder.folder_for(None) is None
    monkeypatch.setenv("REMORA_MEMORY_DIR", str(memory / "gone"))
    assert memory_folder.folder_for(1) is None
    monkeypatch.delenv("REMORA_MEMORY_DIR")
    assert memory_folder.folder_for(1) is None
