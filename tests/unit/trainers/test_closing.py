"""An attempt that ended before it had a driver is closed without waiting for the storage."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from trainers.attempt_claims import Claims, Refused
from trainers.launch import RayLauncher
from trainers.storage import Storage, StorageError


def close(launcher: RayLauncher, storage: Path) -> bool:
    return launcher.close("att_1", job_id="job_1", storage_url=str(storage))


def until_closed(launcher: RayLauncher, storage: Path) -> None:
    while not close(launcher, storage):
        for thread in threading.enumerate():
            if thread.name == "storage-of-attempts":
                thread.join(10.0)


def test_a_slow_storage_holds_up_no_other_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()
    create = Storage.create_bytes

    def slow(self: Storage, name: str, content: bytes) -> bool:
        assert answers.wait(10.0)
        return create(self, name, content)

    monkeypatch.setattr(Storage, "create_bytes", slow)
    launcher = RayLauncher()
    assert not close(launcher, tmp_path)
    assert not close(launcher, tmp_path), "and it is asked once"
    answers.set()
    until_closed(launcher, tmp_path)
    with pytest.raises(Refused):
        Claims(Storage(tmp_path), "job_1").take("att_1", "late")


def test_a_storage_that_fails_is_asked_again(tmp_path: Path) -> None:
    (tmp_path / "jobs").write_text("in the way")
    launcher = RayLauncher()
    with pytest.raises(StorageError):
        until_closed(launcher, tmp_path)
    (tmp_path / "jobs").unlink()
    until_closed(launcher, tmp_path)
