"""What scripts write into their outputs folder: whose version counts, what is taken when, and that nothing is torn."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trainers.checkpoints.catalog import Catalog
from trainers.driver.account import Account
from trainers.driver.outputs import Outputs
from trainers.outputs.catalog import OutputsCatalog
from trainers.outputs.manifest import Changes, OutputFile, from_json, merge, to_json
from trainers.plan import AttemptPlan
from trainers.storage import Storage, StorageError
from trainers.supervisor.collecting import MAX_FILES, Collecting
from trainers.supervisor.environment import Place

PLACE = Place(
    job_id="job_1", attempt_id="att_1", attempt=1, generation=1, rank=0, world_size=2, local_rank=0,
    local_world_size=2, node_rank=0, num_nodes=1, master_addr="127.0.0.1", master_port=1,
)  # fmt: skip
PLAN = AttemptPlan(
    job_id="job_1", attempt_id="att_1", attempt=1, command=["x"], bundle=None, storage_url="", checkpoint_url="",
    backend="ddp", min_workers=1, max_workers=1, resources={"CPU": 1.0},
)  # fmt: skip


def version(name: str, rank: int, generation: int = 1, stored: str = "") -> OutputFile:
    where = stored or f"{name}-{generation}-{rank}"
    return OutputFile(
        name=name, size_bytes=1, sha256="0", stored=where, rank=rank, attempt=1, generation=generation
    )


def wrote(*files: OutputFile) -> Changes:
    return Changes(rank=files[0].rank, group=files[0].group, written=files)


@pytest.mark.parametrize(
    ("order", "stays"),
    [
        (((0, 1), (1, 1)), (0, 1)),
        (((1, 1), (0, 1)), (0, 1)),
        (((0, 1), (1, 2)), (1, 2)),
        (((1, 2), (0, 1)), (1, 2)),
    ],
)
def test_of_one_name_the_latest_group_and_then_the_lowest_rank_counts(
    order: tuple[tuple[int, int], ...], stays: tuple[int, int]
) -> None:
    files: dict[str, OutputFile] = {}
    for rank, generation in order:
        files = merge(files, wrote(version("a", rank, generation)))
    assert files == {"a": version("a", *stays)}


def test_a_worker_takes_back_what_it_wrote_and_rank_0_whatever_it_saw() -> None:
    files = {"a": version("a", 0), "b": version("b", 1)}
    assert set(merge(files, Changes(rank=1, group=(1, 1), removed=("a", "b", "c")))) == {"a"}
    assert set(merge(files, Changes(rank=0, group=(1, 1), removed=("a", "b")))) == set()
    assert set(merge({"a": version("a", 1, 2)}, Changes(rank=0, group=(1, 1), removed=("a",)))) == {"a"}


@pytest.mark.parametrize("turn", [1, -1])
def test_of_a_file_and_a_folder_of_one_name_the_lower_rank_s_stays(turn: int) -> None:
    files: dict[str, OutputFile] = {}
    for file in [version("x", 0), version("x/y", 1), version("x/y/z", 2), version("xy", 2)][::turn]:
        files = merge(files, wrote(file))
    assert set(files) == {"x", "xy"}
    files = merge(files, wrote(version("x/y", 1, generation=2)))
    assert set(files) == {"x/y", "xy"}


def test_a_manifest_comes_back_as_it_was_and_nonsense_is_refused() -> None:
    files = {"a": version("a", 0), "b/c": version("b/c", 1)}
    assert from_json(to_json("job_1", 1, 2.0, files.values())) == files
    for nonsense in (b"", b"[]", b'{"version": 2, "files": []}', b'{"version": 1, "files": [{}]}'):
        with pytest.raises(ValueError, match="not a manifest of outputs"):
            from_json(nonsense)


class Worker:
    """A rank's outputs folder without a rank."""

    def __init__(self, tmp_path: Path, files: dict[str, OutputFile] | None = None, rank: int = 0) -> None:
        self.told: list[Changes] = []
        self.complaints: list[str] = []
        self.catalog = OutputsCatalog(Storage(tmp_path / "storage"), "job_1")
        self.folder = tmp_path / f"outputs-{rank}-{len(files or {})}"
        place = replace(PLACE, rank=rank)
        self.collecting = Collecting(
            self.folder, self.catalog, lambda: place, self.told.append, self.complaints.append
        )
        self.collecting.fill(files or {}, ["model"])

    def write(self, name: str, text: str, age_s: float = 10.0) -> None:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        at = time.time() - age_s
        os.utime(path, (at, at))

    @property
    def written(self) -> list[str]:
        return [file.name for changes in self.told for file in changes.written]


def test_a_script_that_ends_by_itself_leaves_everything(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    assert (worker.folder / "model").is_dir()
    worker.write("model/weights", "abc", age_s=0)
    worker.write("log", "x")
    (worker.folder / "link").symlink_to("/etc/passwd")
    worker.collecting.finish(was_killed=False)
    assert worker.written == ["log", "model/weights"]
    worker.catalog.fetch(worker.told[0].written, tmp_path / "again")
    assert (tmp_path / "again/model/weights").read_text() == "abc"


def test_of_a_killed_script_only_what_it_had_finished_writing_is_taken(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    worker.write("half", "a", age_s=0)
    worker.write("whole", "b")
    worker.collecting.finish(was_killed=True)
    assert worker.written == ["whole"]


def test_what_the_job_has_is_there_and_is_not_told_again(tmp_path: Path) -> None:
    first = Worker(tmp_path)
    first.write("snapshot", "1")
    first.write("old", "1")
    first.collecting.finish(was_killed=False)
    files = merge({}, first.told[0])
    second = Worker(tmp_path, files, rank=1)
    assert (second.folder / "snapshot").read_text() == "1"
    second.collecting.finish(was_killed=False)
    assert second.told == []
    second.write("snapshot", "2")
    (second.folder / "old").unlink()
    second.collecting.finish(was_killed=False)
    assert (second.written, second.told[0].removed) == (["snapshot"], ("old",))


def test_a_file_that_is_written_to_while_it_is_stored_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker(tmp_path)
    worker.write("a", "1")
    store = Storage.write_file

    def slow(storage: Storage, name: str, source: Path, **options: Any) -> None:
        store(storage, name, source, **options)
        worker.write("a", "22", age_s=5.0)

    monkeypatch.setattr(Storage, "write_file", slow)
    worker.collecting.finish(was_killed=False)
    assert worker.told == []
    assert Storage(tmp_path / "storage").names("jobs/job_1/outputs") == []


def test_too_many_files_are_said_once(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    for number in range(MAX_FILES + 1):
        (worker.folder / f"{number:06d}").touch()
    worker.collecting._known = {name: trace for name, _, trace in worker.collecting._walk()}
    (worker.folder / "000000").unlink()
    for number in range(10):
        (worker.folder / f"before-{number}").touch()
        (worker.folder / f"-{number}").touch()
    worker.collecting.finish(was_killed=False)
    (complaint,) = worker.complaints
    assert complaint == f"more than {MAX_FILES} files are in the outputs folder; put them into an archive"
    (changes,) = worker.told
    assert changes == Changes(rank=0, group=(1, 1), removed=("000000",)), "what is behind the cut is not gone"


def test_a_folder_that_vanishes_while_it_is_looked_through_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker(tmp_path)
    for name in ("a/1", "b/1", "c"):
        worker.write(name, "x")
    scan = os.scandir

    def vanishing(path: str) -> Any:
        for here, other in (("a", "b"), ("b", "a")):
            if str(path) == str(worker.folder / here) and (worker.folder / here).exists():
                shutil.rmtree(worker.folder / other)
        return scan(path)

    with monkeypatch.context() as racing:
        racing.setattr(os, "scandir", vanishing)
        worker.collecting.finish(was_killed=False)
    assert worker.complaints == []
    assert worker.written in (["a/1", "c"], ["b/1", "c"])


def test_a_round_that_fails_is_said_and_the_next_one_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, said = Worker(tmp_path), threading.Event()
    worker.write("a", "1")

    def complain(sentence: str) -> None:
        worker.complaints.append(sentence)
        said.set()

    worker.collecting._complain = complain
    with monkeypatch.context() as broken:
        broken.setattr(OutputsCatalog, "put", lambda *_: 1 / 0)
        worker.collecting.start()
        worker.collecting.hurry()
        assert said.wait(30)
    worker.collecting.finish(was_killed=False)
    assert worker.written == ["a"]
    assert worker.complaints == [
        "the outputs folder could not be looked through: ZeroDivisionError('division by zero')"
    ]


def test_a_named_output_that_a_script_made_a_file_breaks_no_start(tmp_path: Path) -> None:
    first = Worker(tmp_path)
    (first.folder / "model").rmdir()
    first.write("model", "weights")
    first.collecting.finish(was_killed=False)
    second = Worker(tmp_path, merge({}, first.told[0]), rank=1)
    assert (second.folder / "model").read_text() == "weights"
    assert second.complaints == ["the output model is a file: a script put it where its folder was"]


def test_a_file_that_was_replaced_since_the_list_was_made_comes_in_its_newest_version(tmp_path: Path) -> None:
    first = Worker(tmp_path)
    first.write("snapshot", "1")
    first.write("log", "1")
    first.collecting.finish(was_killed=False)
    listed = merge({}, first.told[0])
    first.write("snapshot", "22")
    (first.folder / "log").unlink()
    first.collecting.finish(was_killed=False)
    first.catalog.commit(merge(listed, first.told[1]), 1, 0.0)
    for old in listed.values():
        Storage(tmp_path / "storage").delete(f"jobs/job_1/outputs/{old.stored}")
    second = Worker(tmp_path, listed, rank=1)
    assert (second.folder / "snapshot").read_text() == "22"
    assert not (second.folder / "log").exists()
    second.collecting.finish(was_killed=False)
    assert second.told == []


def test_a_file_that_cannot_be_stored_at_the_end_is_tried_again_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainers.supervisor.collecting._PAUSES_S", (0.0, 0.0))
    worker, write, refusals = Worker(tmp_path), Storage.write_file, [1, 2]

    def fails_twice(storage: Storage, name: str, source: Path) -> None:
        if refusals:
            refusals.pop()
            _refuse()
        write(storage, name, source)

    worker.write("a", "1")
    with monkeypatch.context() as broken:
        broken.setattr(Storage, "write_file", _refuse)
        worker.collecting.finish(was_killed=False)
    assert worker.told == [Changes(rank=0, group=(1, 1), unstored=("a",))]
    assert worker.complaints == ["the output a could not be stored: the disk is full"]
    assert stored(tmp_path) == []
    monkeypatch.setattr(Storage, "write_file", fails_twice)
    worker.collecting.finish(was_killed=False)
    assert (worker.written, worker.told[-1].unstored) == (["a"], ())


def _refuse(*_: Any, **__: Any) -> None:
    raise StorageError("the disk is full")


def test_a_storage_that_fills_up_keeps_no_torn_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker(tmp_path)
    worker.write("a", "1")

    def fill_up(_: Path, target: Path) -> None:
        target.write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("trainers.supervisor.collecting._PAUSES_S", (0.0,))
    monkeypatch.setattr(shutil, "copyfile", fill_up)
    worker.collecting.finish(was_killed=False)
    assert (worker.written, stored(tmp_path)) == ([], [])


class Head:
    """The driver's part, without a driver."""

    def __init__(self, tmp_path: Path, attempt: int = 1) -> None:
        storage = Storage(tmp_path / "storage")
        self.account = Account(1 << 20)
        self.catalog = OutputsCatalog(storage, "job_1")
        self.outputs = Outputs(replace(PLAN, attempt=attempt), self.account)
        checkpoints = Catalog(storage, "job_1")
        checkpoints.fence(attempt)
        self.damage = self.outputs.open(self.catalog, checkpoints)

    def hear(self, *all_changes: Changes) -> None:
        async def play() -> None:
            for changes in all_changes:
                self.outputs.hear(changes)
                await asyncio.wait({self.outputs._under_way})

        asyncio.run(play())

    def finish(self, *all_changes: Changes, within_s: float = 30.0) -> None:
        async def play() -> None:
            for changes in all_changes:
                self.outputs.hear(changes)
            await self.outputs.finish(within_s)

        asyncio.run(play())

    def acknowledge(self, up_to: int = 1_000_000) -> None:
        """The service has stored records up to that number, and the clock ticks."""

        async def play() -> None:
            self.outputs.tick()
            if self.outputs._removal is not None:
                await self.outputs._removal

        self.account.records(up_to, 1)
        asyncio.run(play())

    def bodies(self, kind: str) -> list[dict[str, Any]]:
        return [record.body for record in self.account.records(0, 100) if record.kind == kind]


def stored(tmp_path: Path) -> list[str]:
    return Storage(tmp_path / "storage").names("jobs/job_1/outputs")


def test_what_is_committed_is_told_and_what_it_replaces_is_removed(tmp_path: Path) -> None:
    head, worker = Head(tmp_path), Worker(tmp_path)
    for text in ("1", "2", "3"):
        worker.write("snapshot", text * 3, age_s=10.0 - int(text))
        worker.collecting.finish(was_killed=False)
        head.hear(worker.told[-1])
    head.acknowledge(0)
    assert len(stored(tmp_path)) == 4, (
        "all versions, and the manifest: the service may still name any of them"
    )
    newest = head.bodies("output")[-1]
    head.acknowledge()
    assert len(stored(tmp_path)) == 2, "the newest version, and the manifest"
    file = newest["files"]["snapshot"]
    assert (Path(newest["location"]) / file["stored"]).read_text() == "333"
    assert file["size_bytes"] == 3
    assert Head(tmp_path).outputs.files == head.outputs.files


def test_an_attempt_that_was_replaced_changes_nothing(tmp_path: Path) -> None:
    old, worker = Head(tmp_path, attempt=1), Worker(tmp_path)
    Head(tmp_path, attempt=2)
    worker.write("snapshot", "1")
    worker.collecting.finish(was_killed=False)
    old.hear(worker.told[0])
    assert old.bodies("output") == []
    assert Head(tmp_path, attempt=3).outputs.files == {}
    next_one = Head(tmp_path, attempt=4)
    assert len(stored(tmp_path)) == 1
    next_one.acknowledge()
    assert stored(tmp_path) == [], "what nobody names is swept when an attempt has begun"
    assert next_one.bodies("output") == []


def test_an_attempt_tells_once_what_the_one_before_may_have_kept_to_itself(tmp_path: Path) -> None:
    first, worker = Head(tmp_path), Worker(tmp_path)
    assert first.bodies("output") == []
    worker.write("snapshot", "1")
    worker.collecting.finish(was_killed=False)
    first.hear(worker.told[0])
    worker.write("snapshot", "22")
    worker.collecting.finish(was_killed=False)
    first.finish(worker.told[1])
    first.acknowledge()
    assert len(stored(tmp_path)) == 3, "an attempt that ends removes nothing"
    second = Head(tmp_path, attempt=2)
    (told,) = second.bodies("output")
    assert told["files"]["snapshot"]["size_bytes"] == 2
    assert len(stored(tmp_path)) == 3
    second.acknowledge()
    assert len(stored(tmp_path)) == 2


def test_what_an_older_attempt_still_commits_does_not_count(tmp_path: Path) -> None:
    first, worker = Head(tmp_path), Worker(tmp_path)
    worker.write("snapshot", "1")
    worker.collecting.finish(was_killed=False)
    first.hear(worker.told[0])
    second = Head(tmp_path, attempt=2)
    # It had asked whether it may, before the second one began.
    first.catalog.commit({}, 1, 1000.0)
    assert set(second.catalog.newest()) == {"snapshot"}
    third = Head(tmp_path, attempt=3)
    assert set(third.outputs.files) == {"snapshot"}
    third.acknowledge()
    assert {"remora-outputs-3.json", third.outputs.files["snapshot"].folder} == set(stored(tmp_path))


def test_a_list_from_before_they_had_numbers_is_the_oldest(tmp_path: Path) -> None:
    first, worker = Head(tmp_path), Worker(tmp_path)
    worker.write("snapshot", "1")
    worker.collecting.finish(was_killed=False)
    first.hear(worker.told[0])
    folder = tmp_path / "storage/jobs/job_1/outputs"
    (folder / "remora-outputs-1.json").rename(folder / "remora-outputs.json")
    assert set(Head(tmp_path, attempt=2).outputs.files) == {"snapshot"}
    assert sorted(path.name for path in folder.glob("*.json")) == ["remora-outputs-2.json"]


def test_outputs_that_cannot_be_read_are_left_where_they_are(tmp_path: Path) -> None:
    head, worker = Head(tmp_path), Worker(tmp_path)
    worker.write("snapshot", "1")
    worker.collecting.finish(was_killed=False)
    head.hear(worker.told[0])
    manifest = "remora-outputs-1.json"
    before = set(stored(tmp_path)) - {manifest}
    Storage(tmp_path / "storage").write_bytes(f"jobs/job_1/outputs/{manifest}", b"torn")
    after = Head(tmp_path)
    assert after.outputs.files == {}
    assert after.damage is not None
    assert after.damage.startswith("not a manifest of outputs")
    worker.write("other", "2")
    worker.collecting.finish(was_killed=False)
    after.hear(worker.told[1])
    after.acknowledge()
    later = Head(tmp_path, attempt=2)
    later.acknowledge()
    assert set(later.outputs.files) == {"other"}
    aside = "remora-outputs.json.damaged-1"
    assert {*before, aside} <= set(stored(tmp_path)), "also after a change, and in later attempts"
    assert Storage(tmp_path / "storage").read_bytes(f"jobs/job_1/outputs/{aside}") == b"torn"


def test_a_storage_that_fails_is_an_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = Head(tmp_path)
    with monkeypatch.context() as broken:
        broken.setattr(Storage, "write_bytes", _refuse)
        head.hear(wrote(version("a", 0)), wrote(version("b", 0)))
    (event,) = head.bodies("event")
    assert event["kind"] == "attempt.outputs_refused"
    assert event["message"] == "The outputs were not stored: the disk is full."
    assert not head.outputs.is_complete
    head.finish()
    assert head.outputs.is_complete
    assert set(head.bodies("output")[-1]["files"]) == {"a", "b"}


def unstored(rank: int, generation: int, *names: str) -> Changes:
    return Changes(rank=rank, group=(1, generation), unstored=names)


def test_what_a_worker_could_not_leave_is_an_event_and_makes_the_outputs_incomplete(tmp_path: Path) -> None:
    head = Head(tmp_path)
    head.finish(wrote(version("weights", 0)), unstored(0, 1, "weights", "log"))
    assert not head.outputs.is_complete
    (event,) = head.bodies("event")
    assert (event["kind"], event["data"]) == (
        "attempt.outputs_unstored",
        {"rank": 0, "names": ["weights", "log"]},
    )
    assert "did not take 2 of its outputs (weights, log)" in event["message"]


def test_what_only_a_higher_rank_could_not_leave_is_not_missed(tmp_path: Path) -> None:
    head = Head(tmp_path)
    head.finish(wrote(version("weights", 0)), unstored(1, 1, "weights"))
    assert head.outputs.is_complete


def test_what_an_earlier_worker_group_could_not_leave_is_its_successors_affair(tmp_path: Path) -> None:
    head = Head(tmp_path)
    head.finish(unstored(0, 1, "weights"), wrote(version("weights", 0, generation=2)), unstored(1, 1, "log"))
    assert head.outputs.is_complete


def test_at_the_end_a_refused_list_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head, write, refusals = Head(tmp_path), Storage.write_bytes, [1, 2]

    def fails_twice(storage: Storage, name: str, content: bytes) -> None:
        if refusals:
            refusals.pop()
            _refuse()
        write(storage, name, content)

    monkeypatch.setattr(Storage, "write_bytes", fails_twice)
    head.finish(wrote(version("a", 0)))
    assert head.outputs.is_complete
    assert [event["kind"] for event in head.bodies("event")] == ["attempt.outputs_refused"]


def test_a_list_that_stays_the_older_one_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = Head(tmp_path)
    monkeypatch.setattr(Storage, "write_bytes", _refuse)
    head.finish(wrote(version("a", 0)), within_s=0.3)
    assert not head.outputs.is_complete
    kinds = [event["kind"] for event in head.bodies("event")]
    assert kinds == ["attempt.outputs_refused", "attempt.outputs_incomplete"]
