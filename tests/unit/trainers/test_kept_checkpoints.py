"""What a worker group has handed over stays on its node, and the next one reads it there before the storage."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from trainers.checkpoints.catalog import Catalog, CheckpointDamaged
from trainers.checkpoints.manifest import Manifest, ShardFile
from trainers.node_folders import KEPT_NAME, fill_once, sweep_folders, work_root
from trainers.storage import Storage
from trainers.supervisor import kept_checkpoints as kept_module
from trainers.supervisor import snapshot_memory
from trainers.supervisor.checkpoint_intake import CheckpointIntake, CheckpointOffer
from trainers.supervisor.kept_checkpoints import KeptCheckpoints, give_back, kept_checkpoints
from trainers.supervisor.shard_transfer import CheckpointShard
from trainers.supervisor.snapshot_memory import SnapshotSpace, memory_root, sweep_memory

JOB, ATTEMPT = "job_1", "att_1"
#: More than any node of a test has.
PLENTY = 1 << 60


@pytest.fixture(autouse=True)
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node with a disk and a memory of its own."""
    monkeypatch.setenv("REMORA_WORK_DIR", str(tmp_path / "work"))
    (tmp_path / "memory").mkdir()
    monkeypatch.setattr("trainers.supervisor.snapshot_memory._MEMORY", tmp_path / "memory")
    monkeypatch.setattr(kept_module, "_FREE_MEMORY", 0.0)
    monkeypatch.setattr(kept_module, "_FREE_DISK", 0.0)


class Worker:
    """One worker's part: takes what its script wrote, stores it and keeps it."""

    def __init__(self, storage: Storage, folder: Path, memory: Path | None = None) -> None:
        self.storage = storage
        self.catalog = Catalog(storage, JOB)
        memory = memory or folder / "snapshots"
        for path in (folder / "scratch", folder / "staging", memory / "script", memory / "taken"):
            path.mkdir(parents=True, exist_ok=True)
        space = SnapshotSpace(memory / "script", memory / "taken", PLENTY, memory, "own", memory / "files")
        self._places = {"scratch": folder / "scratch", "memory": memory / "script"}
        self._intake = CheckpointIntake(folder / "scratch", folder / "staging", space)

    def save(
        self, kept: KeptCheckpoints, step: int, root: str = "scratch", rank: int = 0, size: int = 10
    ) -> tuple[ShardFile, ...]:
        """Store a rank's files of a checkpoint, and keep them where they may be."""
        written = self._places[root] / f"of-{step}-{rank}"
        (written / "deep").mkdir(parents=True)
        (written / "deep" / f"part-{rank}").write_bytes(bytes([step]) * size)
        offer = CheckpointOffer(step=step, generation=1, root=root, folder=written.name, asked=False)
        taken = self._intake.take(offer)
        files = self.catalog.put(taken.folder, step, 1, 1, rank, consume=False)
        shard = CheckpointShard(rank=rank, step=step, attempt=1, generation=1, size_bytes=size, asked=False)
        if kept.may_keep(root, size):
            kept.keep(taken, shard)
        taken.discard()
        return files

    def commit(self, step: int, files: tuple[ShardFile, ...]) -> Manifest:
        manifest = Manifest(
            job_id=JOB, step=step, attempt=1, generation=1, world_size=1, committed_at=0.0, files=files
        )
        self.catalog.commit(manifest)
        return manifest

    def empty_storage(self, manifest: Manifest) -> None:
        """Of the checkpoint nothing but its manifest can be read any more."""
        for file in manifest.files:
            self.storage.delete(f"jobs/{JOB}/checkpoints/{manifest.folder}/{file.name}")


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    made = Worker(Storage(tmp_path / "storage"), tmp_path)
    yield made
    give_back(ATTEMPT)
    assert left() == []


def left() -> list[Path]:
    """What is kept for no worker."""
    root = memory_root()
    assert root is not None
    return [path for above in (work_root(), root) for path in above.iterdir()]


@pytest.mark.parametrize("root", ["scratch", "memory"])
def test_the_next_worker_group_reads_on_the_node_what_the_last_one_handed_over(
    worker: Worker, root: str, tmp_path: Path
) -> None:
    with kept_checkpoints(ATTEMPT, 0) as kept:
        manifest = worker.commit(5, worker.save(kept, 5, root) + worker.save(kept, 5, root, rank=1))
    worker.empty_storage(manifest)
    sweep_folders()
    sweep_memory()
    with kept_checkpoints(ATTEMPT, 0) as kept:
        found = worker.catalog.fetch(manifest, tmp_path / "resume", near=kept.give)
        assert (found / "deep" / "part-1").read_bytes() == bytes([5]) * 10
        assert kept.given_bytes == manifest.size_bytes == 20


def test_a_file_that_has_changed_on_the_node_is_read_from_the_storage(worker: Worker, tmp_path: Path) -> None:
    with kept_checkpoints(ATTEMPT, 0) as kept:
        manifest = worker.commit(5, worker.save(kept, 5) + worker.save(kept, 5, rank=1))
        first, second = sorted(work_root().glob(f"*{KEPT_NAME}*/{manifest.folder}/*/deep/*"))
        for path, content in ((first, bytes([6]) * 10), (second, b"cut")):
            # Another file: the storage of this test is on the same disk, and shares the one that was stored.
            path.unlink()
            path.write_bytes(content)
        found = worker.catalog.fetch(manifest, tmp_path / "resume", near=kept.give)
        assert [(found / "deep" / f"part-{rank}").read_bytes() for rank in (0, 1)] == [bytes([5]) * 10] * 2
        worker.empty_storage(manifest)
        with pytest.raises(CheckpointDamaged, match=r"part-[01] is missing"):
            worker.catalog.fetch(manifest, tmp_path / "again", near=kept.give)


def test_a_checkpoint_that_is_in_memory_is_not_copied(worker: Worker, tmp_path: Path) -> None:
    with kept_checkpoints(ATTEMPT, 0) as kept:
        manifest = worker.commit(5, worker.save(kept, 5, "memory") + worker.save(kept, 5, "memory", rank=1))
        worker.empty_storage(manifest)

        def fetch(target: Path) -> None:
            worker.catalog.fetch(manifest, target, near=kept.give)

        above, name = kept.place_for(manifest, 2, tmp_path)
        assert above.is_relative_to(tmp_path / "memory")
        found = fill_once(above, name, fetch, lambda: None)
        (origin,) = above.glob(f"{manifest.folder}/0/deep/part-0")
        assert (found / "deep" / "part-0").samefile(origin)
        # The next group has a folder of its own, and that of the one before goes; workers of a node share it.
        again, _ = kept.place_for(manifest, 3, tmp_path)
        fill_once(again, "resume-3", fetch, lambda: None)
        shutil.rmtree(above / manifest.folder)
        assert kept.place_for(manifest, 3, tmp_path) == (above, "resume-3")
        assert not found.exists()
        # Of what is not whole in memory nothing is put there.
        assert kept.place_for(manifest, 4, tmp_path) == (tmp_path, "resume")


def test_a_node_keeps_the_newest_checkpoints_of_an_attempt(worker: Worker) -> None:
    with kept_checkpoints(ATTEMPT, 0) as kept:
        for step in (1, 2, 3):
            worker.save(kept, step)
            worker.save(kept, step, rank=1)
        # A rank that is late keeps nothing that is older than what is there.
        worker.save(kept, 1, rank=2)
        assert steps() == {2: ["0", "1"], 3: ["0", "1"]}


def steps() -> dict[int, list[str]]:
    """Ranks whose files are kept on the disk, by step."""
    found: dict[int, list[str]] = {}
    for path in sorted(work_root().glob(f"*{KEPT_NAME}*/0*/*")):
        found.setdefault(int(path.parent.name.partition("-")[0]), []).append(path.name)
    return found


def test_what_is_kept_has_a_bound_in_bytes(worker: Worker) -> None:
    with kept_checkpoints(ATTEMPT, 25) as kept:
        worker.save(kept, 1)
        worker.save(kept, 2)
        worker.save(kept, 3, size=20)
        assert steps() == {3: ["0"]}, "older ones are deleted"
        worker.save(kept, 4, size=30)
        assert steps() == {3: ["0"]}, "what is larger than the bound is not kept"


def test_what_has_to_stay_free_is_not_used(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_module, "_FREE_DISK", 1.0)
    with kept_checkpoints(ATTEMPT, 0) as kept:
        worker.save(kept, 1)
        assert steps() == {}
        worker.save(kept, 1, "memory")
        assert kept.give(
            "000000000001-1-1",
            ShardFile(name="deep/part-0", size_bytes=10, sha256="", rank=0),
            work_root() / "given",
        )
    (work_root() / "given").unlink()


def test_what_was_written_on_another_file_system_is_copied(tmp_path: Path) -> None:
    """As where a job has a file system in memory of its own, which goes with the last of its workers."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        if Path(other).stat().st_dev == tmp_path.stat().st_dev:
            pytest.skip("/dev/shm is no file system of its own here")
        worker = Worker(Storage(tmp_path / "storage"), tmp_path, Path(other))
        with kept_checkpoints(ATTEMPT, 0) as kept:
            manifest = worker.commit(5, worker.save(kept, 5, "memory"))
            worker.empty_storage(manifest)
            worker.catalog.fetch(manifest, tmp_path / "resume", near=kept.give)
            assert list(Path(other).glob("taken/*")) == []
    give_back(ATTEMPT)
    assert left() == []


def test_a_node_gives_nothing_of_another_node_of_its_machine(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kept_checkpoints(ATTEMPT, 0) as kept:
        manifest = worker.commit(5, worker.save(kept, 5, "memory"))
    with monkeypatch.context() as patched:
        patched.setenv("REMORA_WORK_DIR", str(tmp_path / "other-node"))
        with kept_checkpoints(ATTEMPT, 0) as kept:
            worker.catalog.fetch(manifest, tmp_path / "resume", near=kept.give)
            assert kept.given_bytes == 0


def test_what_a_script_that_ended_well_has_handed_over_goes_with_the_last_worker(worker: Worker) -> None:
    with kept_checkpoints(ATTEMPT, 0) as first:
        with kept_checkpoints(ATTEMPT, 0) as second:
            worker.save(first, 5)
            worker.save(second, 5, "memory", rank=1)
            second.give_back()
        assert steps() == {5: ["0"]}, "another worker lives"
        first.give_back()
    assert left() == []


def forget_nothing() -> None:
    sweep_folders()
    sweep_memory()


def forget_the_attempt() -> None:
    give_back(ATTEMPT)


def lose_the_node() -> None:
    shutil.rmtree(work_root())
    sweep_memory()
    work_root()


@pytest.mark.parametrize(
    ("what_happens", "stays"), [(forget_nothing, True), (forget_the_attempt, False), (lose_the_node, False)]
)
def test_what_is_kept_goes_with_its_attempt_and_its_node(
    worker: Worker, what_happens: Callable[[], None], stays: bool
) -> None:
    with kept_checkpoints(ATTEMPT, 0) as kept:
        worker.save(kept, 5)
        worker.save(kept, 5, "memory", rank=1)
    assert len(left()) == 4, "two folders with their locks"
    what_happens()
    assert bool(left()) is stays


def test_what_nothing_has_used_for_long_is_swept(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    with kept_checkpoints(ATTEMPT, 0) as kept:
        worker.save(kept, 5)
        worker.save(kept, 5, "memory", rank=1)
    monkeypatch.setattr("trainers.node_folders.KEPT_S", 0.0)
    forget_nothing()
    assert left() == []


def test_a_folder_that_keeps_nothing_goes_with_its_worker(worker: Worker) -> None:
    with kept_checkpoints(ATTEMPT, 0):
        assert len(left()) == 4
    assert left() == []


def keep_until_killed(folder: Path, memory: Path, is_half_done: Any) -> None:
    """A supervisor that has kept one rank's part, and stops in the middle of the copy of another's."""
    os.environ["REMORA_WORK_DIR"] = str(folder / "work")
    snapshot_memory._MEMORY = folder / "memory"
    kept_module._FREE_MEMORY = kept_module._FREE_DISK = 0.0

    def half(source: IO[bytes], target: IO[bytes], _: int) -> None:
        target.write(source.read(5))
        target.flush()
        is_half_done.set()
        signal.pause()

    vars(shutil)["copyfileobj"] = half
    worker = Worker(Storage(folder / "storage"), folder, memory)
    with kept_checkpoints(ATTEMPT, 0) as kept:
        worker.save(kept, 5)
        worker.save(kept, 5, "memory", rank=1)


def test_a_supervisor_that_is_killed_while_it_keeps_a_part_leaves_the_others(
    worker: Worker, tmp_path: Path
) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        if Path(other).stat().st_dev == tmp_path.stat().st_dev:
            pytest.skip("/dev/shm is no file system of its own here")
        context = multiprocessing.get_context("fork")
        is_half_done = context.Event()
        process = context.Process(target=keep_until_killed, args=(tmp_path, Path(other), is_half_done))
        process.start()
        assert is_half_done.wait(60)
        process.kill()
        process.join()
    sweep_folders()
    sweep_memory()
    digest = hashlib.sha256(bytes([5]) * 10).hexdigest()
    files = tuple(
        ShardFile(name=f"deep/part-{rank}", size_bytes=10, sha256=digest, rank=rank) for rank in (0, 1)
    )
    manifest = worker.commit(5, files)
    with kept_checkpoints(ATTEMPT, 0) as kept:
        found = worker.catalog.fetch(manifest, tmp_path / "resume", near=kept.give)
        assert [(found / file.name).read_bytes() for file in files] == [bytes([5]) * 10] * 2
        assert kept.given_bytes == 10, "the other one came from the storage"
