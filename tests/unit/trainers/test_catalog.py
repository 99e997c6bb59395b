"""Checkpoints of a job: committed by their manifest, found when complete, passed over when damaged."""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st

from trainers.checkpoints.catalog import Catalog, CheckpointDamaged, Damage, Fenced, Retained
from trainers.checkpoints.manifest import (
    MANIFEST_NAME,
    Manifest,
    ShardFile,
    doubled_names,
    folder_name,
    parse_folder_name,
)
from trainers.confined_folders import ConfinedFolder
from trainers.storage import Storage, StorageError

JOB = "job_1"


class Shelf:
    """A job's checkpoints, with two ranks that write."""

    def __init__(self, url: str, scratch: Path) -> None:
        self.storage = Storage(url)
        self.catalog = Catalog(self.storage, JOB)
        self._scratch = scratch

    def put(self, step: int, attempt: int = 1, generation: int = 1, take: int = 1) -> tuple[ShardFile, ...]:
        files: tuple[ShardFile, ...] = ()
        for rank in (0, 1):
            source = self._scratch / f"{step}-{attempt}-{generation}-{rank}"
            (source / "deep").mkdir(parents=True, exist_ok=True)
            (source / f"rank-{rank}.bin").write_bytes(f"step {step} of rank {rank}".encode())
            (source / "deep" / f"empty-{rank}").touch()
            with ConfinedFolder(source) as folder:
                files += self.catalog.put(folder, step, attempt, generation, rank, take)
        return files

    def save(self, step: int, attempt: int = 1, generation: int = 1) -> str:
        return self.commit(step, self.put(step, attempt, generation), attempt, generation)

    def commit(
        self, step: int, files: tuple[ShardFile, ...], attempt: int = 1, generation: int = 1, take: int = 1
    ) -> str:
        manifest = Manifest(
            job_id=JOB, step=step, attempt=attempt, generation=generation,
            world_size=2, committed_at=float(step), files=files, take=take,
        )  # fmt: skip
        return self.catalog.commit(manifest)

    def name(self, step: int, file: str, attempt: int = 1, generation: int = 1) -> str:
        return f"jobs/{JOB}/checkpoints/{folder_name(step, attempt, generation)}/{file}"

    def newest(self) -> int | None:
        manifest, _ = self.catalog.newest()
        return manifest.step if manifest else None

    def usable(self, target: Path) -> tuple[Manifest | None, list[Damage]]:
        """The newest one that can be fetched, and those that were passed over, as a driver and its workers do."""
        while True:
            found, damages = self.catalog.newest()
            if found is None:
                return None, damages
            try:
                self.catalog.fetch(found, target / found.folder)
            except CheckpointDamaged as damaged:
                is_damaged = self.catalog.refuse_if_damaged(damaged.folder, damaged.file)
            else:
                return found, damages
            assert is_damaged

    def folders(self) -> list[str]:
        return self.storage.names(f"jobs/{JOB}/checkpoints")


@pytest.fixture(params=["folder", "memory"])
def shelf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shelf]:
    if request.param == "folder":
        yield Shelf(str(tmp_path / "storage"), tmp_path)
        return
    yield Shelf(f"memory://{tmp_path}", tmp_path)
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


def test_a_job_without_checkpoints_has_none(shelf: Shelf) -> None:
    assert shelf.catalog.newest() == (None, [])
    assert shelf.catalog.manifests() == []
    assert shelf.catalog.retain(1) == Retained()


def test_files_without_a_manifest_are_no_checkpoint(shelf: Shelf) -> None:
    shelf.put(10)
    assert shelf.catalog.newest() == (None, [])


def test_the_newest_complete_checkpoint_is_found_and_fetched(shelf: Shelf, tmp_path: Path) -> None:
    shelf.save(9)
    location = shelf.save(100)
    assert location.endswith(folder_name(100, 1, 1))
    manifest, damages = shelf.catalog.newest()
    assert manifest is not None
    assert (manifest.step, damages) == (100, [])
    folder = shelf.catalog.fetch(manifest, tmp_path / "fetched")
    assert (folder / "rank-1.bin").read_text() == "step 100 of rank 1"
    assert (folder / "deep" / "empty-0").read_bytes() == b""
    if shelf.storage.local_root is not None:
        assert not folder.is_relative_to(shelf.storage.local_root), "who reads it does not reach the storage"
        stored = Path(location)
        assert (folder / "rank-1.bin").samefile(stored / "rank-1.bin"), "on the same disk it is no copy"
    assert manifest.size_bytes == 2 * len("step 100 of rank 0")
    assert {file.rank for file in manifest.files} == {0, 1}


def test_steps_and_attempts_are_compared_as_numbers(shelf: Shelf) -> None:
    shelf.save(9, attempt=9)
    shelf.save(9, attempt=10)
    shelf.save(9, attempt=10, generation=2)
    manifest, _ = shelf.catalog.newest()
    assert manifest is not None
    assert (manifest.attempt, manifest.generation) == (10, 2)


@pytest.mark.parametrize(
    "fault", ["torn", "missing", "corrupted", "manifest", "version", "moved", "foreign manifest"]
)
def test_a_damaged_checkpoint_is_passed_over_and_named(shelf: Shelf, fault: str, tmp_path: Path) -> None:
    shelf.save(50)
    shelf.save(60)
    file = shelf.name(60, "rank-0.bin")
    manifest = shelf.name(60, MANIFEST_NAME)
    match fault:
        case "torn":
            shelf.storage.write_bytes(file, b"step")
            said = "rank-0.bin has 4 bytes instead of 17"
        case "missing":
            shelf.storage.delete(file)
            said = "rank-0.bin is missing"
        case "corrupted":
            shelf.storage.write_bytes(file, b"step 60 of rank X")
            said = "rank-0.bin is corrupted"
        case "manifest":
            shelf.storage.write_bytes(manifest, shelf.storage.read_bytes(manifest)[:-20])
            said = "not a checkpoint manifest"
        case "version":
            newer = shelf.storage.read_bytes(manifest).replace(b'"version": 2', b'"version": 3')
            shelf.storage.write_bytes(manifest, newer)
            said = "its version is 3, which this version cannot read"
        case "moved":
            shelf.storage.write_bytes(manifest, shelf.storage.read_bytes(shelf.name(50, MANIFEST_NAME)))
            said = "its manifest is of another checkpoint"
        case _:
            shelf.storage.write_bytes(manifest, b"[1, 2]")
            said = "not a checkpoint manifest"
    found, damages = shelf.usable(tmp_path / "fetched")
    assert found is not None
    assert found.step == 50
    assert [(one.step, said in one.why) for one in damages] == [(60, True)]


@pytest.mark.parametrize("place", ["manifest", "file"])
@pytest.mark.parametrize("what", ["folder", "link", "pipe", "huge"])
def test_what_is_no_file_in_the_place_of_one_is_passed_over(
    shelf: Shelf, place: str, what: str, tmp_path: Path
) -> None:
    """Nothing waits for a pipe's other end, and nothing is read that is not of this storage."""
    root = shelf.storage.local_root
    if root is None and what != "folder":
        pytest.skip("only disks have such things")
    shelf.save(50)
    shelf.save(60)
    name = shelf.name(60, MANIFEST_NAME if place == "manifest" else "deep/empty-0")
    shelf.storage.delete(name)
    if root is None or what == "folder":
        shelf.storage.write_bytes(f"{name}/inside", b"x")
    elif what == "link":
        (root / name).symlink_to(root / shelf.name(50, "rank-0.bin"))
    elif what == "pipe":
        os.mkfifo(root / name)
    else:
        with (root / name).open("wb") as sparse:
            sparse.truncate(1 << 40)
    found, (damage,) = shelf.usable(tmp_path / "fetched")
    assert found is not None
    assert (found.step, damage.step) == (50, 60)
    assert place != "manifest" or MANIFEST_NAME in damage.why
    shelf.save(61, generation=2)
    retained = shelf.catalog.retain(1)
    assert retained.failure is None
    assert shelf.folders() == [folder_name(61, 1, 2)], "it goes like any other leftover"


def test_a_fence_of_before_that_is_no_file_fences_no_attempt(shelf: Shelf) -> None:
    shelf.save(10, attempt=3)
    shelf.storage.write_bytes(f"jobs/{JOB}/fence/inside", b"x")
    assert shelf.catalog.is_fenced(2)
    assert not shelf.catalog.is_fenced(3)
    shelf.catalog.fence(4)
    assert shelf.catalog.is_fenced(3)


def test_a_manifest_that_would_be_too_large_to_be_read_is_not_written(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainers.checkpoints.catalog.MAX_MANIFEST_BYTES", 100)
    with pytest.raises(StorageError, match="its manifest would have"):
        shelf.save(10)
    assert shelf.newest() is None


def test_nothing_is_read_to_find_the_newest_one_and_each_file_once_to_fetch_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = Shelf(f"memory://{tmp_path}/counted", tmp_path)
    shelf.save(10)
    shelf.save(20)
    fresh = Catalog(shelf.storage, JOB)
    read: list[str] = []
    for name in ("cat_file", "open"):
        function = getattr(shelf.storage._fs, name)

        def reading(path: str, *arguments: Any, function: Any = function, **named: Any) -> Any:
            read.append(path.rsplit("/", 1)[-1])
            return function(path, *arguments, **named)

        monkeypatch.setattr(shelf.storage._fs, name, reading)
    found, _ = fresh.newest()
    assert found is not None
    assert set(read) == {MANIFEST_NAME}
    read.clear()
    fresh.fetch(found, tmp_path / "fetched")
    assert Counter(read) == dict.fromkeys(["rank-0.bin", "rank-1.bin", "empty-0", "empty-1"], 1)
    # What was fetched is known to be right: a retention does not read it.
    read.clear()
    fresh.vouch(found)
    shelf.storage.delete(shelf.name(10, MANIFEST_NAME))
    assert fresh._damages([found]) == {}
    assert read == []
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


def test_a_fetch_ends_where_it_is_not_wanted_any_more(shelf: Shelf, tmp_path: Path) -> None:
    shelf.save(10)
    (found,) = shelf.catalog.manifests()

    def check() -> None:
        raise StorageError("the worker was asked to end")

    with pytest.raises(StorageError, match="asked to end"):
        shelf.catalog.fetch(found, tmp_path / "fetched", check)
    assert not (tmp_path / "fetched").exists()


def test_the_list_names_one_of_each_step_whose_files_are_all_there(shelf: Shelf) -> None:
    for step, attempt in ((10, 1), (20, 1), (20, 2), (30, 2), (40, 2)):
        shelf.save(step, attempt)
    shelf.storage.write_bytes(shelf.name(30, "rank-0.bin", 2), b"torn")
    shelf.storage.write_bytes(shelf.name(40, MANIFEST_NAME, 2), b"torn")
    assert [(one.step, one.attempt) for one in shelf.catalog.listed()] == [(20, 2), (10, 1)]


def _counted(calls: list[str], function: Any) -> Any:
    def call(*arguments: Any, **named: Any) -> Any:
        calls.append(function.__name__)
        return function(*arguments, **named)

    return call


def test_a_list_takes_as_many_questions_however_many_files_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[int, int] = {}
    for count in (4, 40):
        storage = Storage(f"memory://{tmp_path}/{count}")
        files = tuple(
            ShardFile(name=f"part-{i}", size_bytes=1, sha256="0" * 64, rank=0) for i in range(count)
        )
        manifest = Manifest(
            job_id=JOB, step=1, attempt=1, generation=1, world_size=1, committed_at=1.0, files=files
        )
        for file in files:
            storage.write_bytes(f"jobs/{JOB}/checkpoints/{manifest.folder}/{file.name}", b"x")
        Catalog(storage, JOB).commit(manifest)
        calls: list[str] = []
        with monkeypatch.context() as counting:
            for name in ("find", "info", "cat_file", "size", "ukey", "open"):
                counting.setattr(storage._fs, name, _counted(calls, getattr(storage._fs, name)))
            assert len(Catalog(storage, JOB).listed()) == 1
        asked[count] = len(calls)
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]
    assert asked[40] == asked[4]


def test_a_checkpoint_that_is_taken_again_leaves_the_one_before_as_it_was(shelf: Shelf) -> None:
    """A writer that dies while it is written, or before its manifest, has lost nothing."""
    shelf.save(10)
    shelf.save(20)
    again = shelf.put(20, take=2)
    assert shelf.newest() == 20
    found, damages = shelf.catalog.newest()
    assert found is not None
    assert (found.take, damages) == (1, [])
    shelf.commit(20, again, take=2)
    found, damages = shelf.catalog.newest()
    assert found is not None
    assert (found.step, found.take, damages) == (20, 2, [])
    assert [(one.step, one.take) for one in shelf.catalog.listed()] == [(20, 2), (10, 1)]
    retained = shelf.catalog.retain(1)
    assert [(one.step, one.take) for one in retained.kept] == [(20, 2)]


def test_files_of_a_committed_checkpoint_are_never_written_again(shelf: Shelf) -> None:
    shelf.save(20)
    with pytest.raises(StorageError, match="is committed already"):
        shelf.put(20)
    assert shelf.newest() == 20


def test_what_else_lies_in_the_folder_is_left_alone(shelf: Shelf) -> None:
    shelf.save(10)
    for foreign in ("readme.txt", "000000000099", "abc-1-1", "000000000099-1-x"):
        shelf.storage.write_bytes(f"jobs/{JOB}/checkpoints/{foreign}/{MANIFEST_NAME}", b"{}")
    shelf.storage.write_bytes(f"jobs/{JOB}/checkpoints/notes.txt", b"hello")
    shelf.storage.write_bytes(shelf.name(10, "added-later.txt"), b"hello")
    assert shelf.catalog.newest()[1] == []
    assert shelf.newest() == 10
    shelf.catalog.retain(1)
    assert "notes.txt" in shelf.folders()


def test_retention_keeps_the_last_ones(shelf: Shelf) -> None:
    for step in (10, 20, 30, 40):
        shelf.save(step)
    assert [one.step for one in shelf.catalog.retain(2).deleted] == [20, 10]
    assert [one.step for one in shelf.catalog.manifests()] == [40, 30]
    assert shelf.catalog.retain(2).deleted == ()


def test_retention_never_deletes_what_was_just_written(shelf: Shelf) -> None:
    """After damage a group goes on below the step of the damaged one."""
    shelf.save(90)
    shelf.save(100)
    shelf.storage.write_bytes(shelf.name(100, "rank-0.bin"), b"broken")
    assert shelf.newest() == 90
    shelf.save(95, generation=2)
    shelf.catalog.retain(1)
    assert shelf.newest() == 95


def test_leftovers_of_older_groups_are_swept_and_those_under_way_are_not(shelf: Shelf) -> None:
    shelf.put(5)
    shelf.put(70)
    shelf.put(8, generation=2)
    shelf.put(80, generation=2)
    shelf.put(90, generation=3)
    shelf.save(20, generation=2)
    shelf.catalog.retain(3)
    assert shelf.folders() == [
        folder_name(8, 1, 2),
        folder_name(20, 1, 2),
        folder_name(80, 1, 2),
        folder_name(90, 1, 3),
    ]


def test_an_older_attempt_may_not_commit_any_more(shelf: Shelf) -> None:
    shelf.catalog.fence(1)
    shelf.save(10, attempt=1)
    Catalog(shelf.storage, JOB).fence(2)
    with pytest.raises(Fenced, match="attempt 1 of job_1 was replaced"):
        shelf.save(20, attempt=1)
    assert shelf.newest() == 10
    shelf.catalog.fence(1)
    with pytest.raises(Fenced):
        shelf.save(30, attempt=1)
    shelf.save(40, attempt=2)
    assert shelf.newest() == 40


@pytest.mark.parametrize("torn", [b"", b"two", b"\0\0"])
def test_a_torn_fence_of_before_fences_no_attempt_for_ever(shelf: Shelf, torn: bytes) -> None:
    shelf.save(10, attempt=3)
    shelf.storage.write_bytes(f"jobs/{JOB}/fence", torn)
    assert shelf.catalog.is_fenced(2), "attempt 3 has written a checkpoint, so it has fenced 2"
    assert not shelf.catalog.is_fenced(3)
    shelf.catalog.fence(4)
    assert shelf.catalog.is_fenced(3)
    shelf.save(20, attempt=4)
    assert shelf.newest() == 20


def test_a_fence_that_is_torn_later_still_stands(shelf: Shelf) -> None:
    shelf.catalog.fence(7)
    shelf.storage.write_bytes(f"jobs/{JOB}/fence", b"")
    for name in shelf.storage.names(f"jobs/{JOB}/fences"):
        shelf.storage.write_bytes(f"jobs/{JOB}/fences/{name}", b"torn")
    assert shelf.catalog.is_fenced(6)
    shelf.catalog.fence(5)
    assert shelf.catalog.is_fenced(6)
    assert not shelf.catalog.is_fenced(7)


def test_drivers_of_an_older_version_are_fenced_and_fence(shelf: Shelf) -> None:
    shelf.catalog.fence(2)
    assert shelf.storage.read_bytes(f"jobs/{JOB}/fence") == b"2", "they read this file"
    shelf.storage.write_bytes(f"jobs/{JOB}/fence", b"3")
    assert shelf.catalog.is_fenced(2), "and write it"


def test_a_fence_that_is_half_written_is_no_number(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between any two writes of a fence, it holds or was never there."""
    writes = shelf.storage.write_bytes
    for count in range(3):
        shelf.storage.delete(f"jobs/{JOB}")
        shelf.catalog.fence(1)
        left = iter(range(count))

        def write(name: str, content: bytes, left: Iterator[int] = left) -> None:
            if next(left, None) is None:
                raise StorageError("killed")
            writes(name, content)

        monkeypatch.setattr(shelf.storage, "write_bytes", write)
        with contextlib.suppress(StorageError):
            shelf.catalog.fence(2)
        monkeypatch.setattr(shelf.storage, "write_bytes", writes)
        assert shelf.catalog.is_fenced(1) is (count > 0)
        shelf.catalog.fence(2)
        assert shelf.catalog.is_fenced(1)


@pytest.mark.parametrize("fault", ["manifest", "missing", "torn", "flipped"])
def test_damaged_checkpoints_do_not_count_as_kept(shelf: Shelf, fault: str) -> None:
    for step in (10, 20, 30, 40, 50):
        shelf.save(step)
    for step in (40, 50):
        name = shelf.name(step, MANIFEST_NAME if fault == "manifest" else "rank-0.bin")
        content = bytearray(shelf.storage.read_bytes(name))
        content[len(content) // 2] ^= 1
        if fault == "missing":
            shelf.storage.delete(name)
        else:
            shelf.storage.write_bytes(name, bytes(content[:-1] if fault == "torn" else content))
    retained = shelf.catalog.retain(3)
    assert retained.deleted == ()
    if fault != "manifest":
        assert [one.step for one in retained.damaged] == [50, 40]
    shelf.save(60)
    assert [one.step for one in shelf.catalog.retain(3).deleted] == [10]
    shelf.save(70)
    shelf.save(80)
    deleted = [one.step for one in shelf.catalog.retain(3).deleted]
    assert deleted == ([30, 20] if fault == "manifest" else [50, 40, 30, 20])
    assert shelf.newest() == 80


def test_what_was_read_once_is_read_again_only_when_it_was_written_to(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (10, 20, 30):
        shelf.save(step)
    read: list[str] = []
    open_read = shelf.storage.open_read

    def opened(name: str) -> Any:
        read.append(name)
        return open_read(name)

    monkeypatch.setattr(shelf.storage, "open_read", opened)
    shelf.catalog.retain(2)
    assert read == [], "what this driver has committed is known"
    other = Catalog(shelf.storage, JOB)
    other.retain(1)
    assert len(read) == 4, "two ranks wrote two files each; of the older checkpoint only sizes are compared"
    shelf.save(40)
    other.retain(1)
    assert len(read) == 8
    other.retain(1)
    assert len(read) == 8


def bytes_read(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """By checkpoint; manifests are not counted."""
    counted: Counter[str] = Counter()
    open_read = shelf.storage.open_read

    def opened(name: str) -> Any:
        counted[name.split("/")[3]] += shelf.storage.size(name)
        return open_read(name)

    monkeypatch.setattr(shelf.storage, "open_read", opened)
    return counted


def test_an_attempt_reads_nothing_of_what_earlier_ones_left_to_retain_it(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (10, 20, 30):
        shelf.save(step)
    read = bytes_read(shelf, monkeypatch)
    shelf.catalog = Catalog(shelf.storage, JOB)
    shelf.save(40, attempt=2)
    shelf.storage.delete(shelf.name(30, "rank-0.bin"))
    retained = shelf.catalog.retain(2)
    assert [one.step for one in retained.deleted] == [10]
    assert [one.step for one in retained.damaged] == [30], "names and sizes are looked at"
    assert read == {}


def test_the_newest_right_one_stays_where_all_younger_ones_are_damaged(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing shows that but their content, and no other one was committed since."""
    for step in (10, 20, 30, 40):
        shelf.save(step)
    for step in (30, 40):
        content = shelf.storage.read_bytes(shelf.name(step, "rank-0.bin"))
        shelf.storage.write_bytes(shelf.name(step, "rank-0.bin"), content[:-1] + b"X")
    read = bytes_read(shelf, monkeypatch)
    retained = Catalog(shelf.storage, JOB).retain(1)
    assert [one.step for one in retained.damaged] == [40, 30]
    assert [one.step for one in retained.deleted] == [10]
    assert sorted(read) == [folder_name(step, 1, 1) for step in (20, 30, 40)]


def test_what_the_storage_does_not_delete_goes_the_next_time(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (10, 20, 30):
        shelf.save(step)
    delete = shelf.storage.delete
    refused = {shelf.name(10, MANIFEST_NAME), shelf.name(20, "").rstrip("/")}

    def refuse(name: str) -> None:
        if name in refused:
            raise StorageError("no")
        delete(name)

    monkeypatch.setattr(shelf.storage, "delete", refuse)
    retained = shelf.catalog.retain(1)
    assert ([one.step for one in retained.deleted], retained.failure) == ([20], "no")
    assert shelf.newest() == 30
    refused.clear()
    retained = shelf.catalog.retain(1)
    assert ([one.step for one in retained.deleted], retained.failure) == ([10], None)
    assert shelf.folders() == [folder_name(30, 1, 1)]


class Killed(BaseException):
    """The driver's process ends here."""


@settings(max_examples=25, derandomize=True)
@given(st.integers(2, 4), st.integers(1, 2), st.integers(0, 20))
def test_a_driver_that_is_killed_while_it_deletes_leaves_no_half_of_a_checkpoint(
    tmp_path_factory: pytest.TempPathFactory, checkpoints: int, keep: int, files: int
) -> None:
    """A folder goes file by file, and the process may end after any of them."""
    scratch = tmp_path_factory.mktemp("killed")
    shelf = Shelf(str(scratch / "storage"), scratch)
    for step in range(checkpoints):
        shelf.save(step)
    whole, left = shelf.storage.delete, files

    def delete(name: str) -> None:
        nonlocal left
        for one in sorted(shelf.storage.sizes(name)) or [""]:
            if left == 0:
                raise Killed
            left -= 1
            whole(f"{name}/{one}" if one else name)
        whole(name)

    shelf.storage.delete = delete  # type: ignore[method-assign]
    with contextlib.suppress(Killed):
        shelf.catalog.retain(keep)
    shelf.storage.delete = whole  # type: ignore[method-assign]
    later = Catalog(shelf.storage, JOB)
    newest, damages = later.newest()
    assert newest is not None
    assert (newest.step, damages) == (checkpoints - 1, [])
    assert later.listed() == later.manifests(), "what has a manifest has all of its files"
    shelf.save(checkpoints, generation=2)
    assert later.retain(keep).damaged == ()
    steps = [one.step for one in later.manifests()]
    assert steps == [*range(checkpoints, checkpoints - keep, -1)]
    assert len(shelf.folders()) == keep, "what the other one left is swept"


def test_links_are_not_followed_into_a_checkpoint(shelf: Shelf, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    source = tmp_path / "source"
    source.mkdir()
    (source / "link").symlink_to(tmp_path / "secret")
    (source / "folder").symlink_to(tmp_path)
    (source / "real").write_text("x")
    assert [file.name for file in shelf.catalog.put(ConfinedFolder(source), 1, 1, 1, 0)] == ["real"]


MANIFEST = Manifest(
    job_id=JOB, step=3, attempt=2, generation=4, world_size=5, committed_at=1.5, score=0.25,
    files=(ShardFile(name="ü/é.bin", size_bytes=7, sha256="ab" * 32, rank=1),),
)  # fmt: skip


def test_a_manifest_survives_storing() -> None:
    assert Manifest.from_json(MANIFEST.to_json()) == MANIFEST
    assert b"take" not in MANIFEST.to_json(), "older versions read it"
    again = replace(MANIFEST, take=3)
    assert Manifest.from_json(again.to_json()) == again
    assert parse_folder_name(again.folder) == (3, 2, 4, 3)
    assert parse_folder_name(f"{MANIFEST.folder}-1") is None, "one checkpoint has one name"
    assert parse_folder_name(MANIFEST.folder) == (3, 2, 4, 1)


def test_a_manifest_of_before_is_still_read() -> None:
    before = json.dumps({"version": 1, **asdict(MANIFEST)}, indent=1).encode()
    assert Manifest.from_json(before) == MANIFEST


def test_every_bit_that_flips_in_a_manifest_is_seen() -> None:
    content = MANIFEST.to_json()
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ValueError, match="not a checkpoint manifest"):
            Manifest.from_json(bytes(flipped))


@pytest.mark.parametrize("name", ["/srv/canary", "../canary", "a/../../canary", "", ".", "a\0", 5, None])
def test_a_manifest_names_no_file_elsewhere(name: Any) -> None:
    file = {"name": name, "size_bytes": 1, "sha256": "", "rank": 0}
    before = json.dumps({"version": 1, **asdict(MANIFEST), "files": [file]}).encode()
    with pytest.raises(ValueError, match="not a checkpoint manifest"):
        Manifest.from_json(before)


@pytest.mark.parametrize(
    "content", [b"", b"null", b"{}", b'{"version": 1}', b"\xff", b'{"version": 1, "files": [{}]}']
)
def test_what_is_no_manifest_is_a_value_error(content: bytes) -> None:
    with pytest.raises(ValueError, match="not a checkpoint manifest"):
        Manifest.from_json(content)


def test_names_that_several_ranks_wrote_are_found() -> None:
    files = [ShardFile(name=name, size_bytes=0, sha256="", rank=rank) for rank, name in enumerate("abca")]
    assert doubled_names(tuple(files)) == ["a"]
