"""What scripts write into their outputs folder: whose version counts, what is taken when, and that nothing is torn."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import pytest

from tests.attempt_plans import plan_of
from trainers.checkpoints.catalog import Catalog
from trainers.confined_folders import MAX_DEPTH, ConfinedFolder
from trainers.driver.account import Account
from trainers.driver.outputs import Outputs
from trainers.outputs.catalog import OutputsCatalog
from trainers.outputs.manifest import Changes, End, OutputFile, merge, without_clashes
from trainers.outputs.versions import OutputHistory, Version, from_json, to_json
from trainers.storage import Storage, StorageError
from trainers.supervisor.outputs_collector import MAX_FILES, OutputsCollector
from trainers.worker_identity import WorkerIdentity

IDENTITY = WorkerIdentity(
    job_id="job_1", attempt_id="att_1", attempt=1, generation=1, rank=0, world_size=2, local_rank=0,
    local_world_size=2, node_rank=0, num_nodes=1, master_addr="127.0.0.1", master_port=1,
)  # fmt: skip
PLAN = plan_of(
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


@pytest.mark.parametrize("direction", [1, -1])
def test_of_a_file_and_a_folder_of_one_name_the_lower_rank_s_stays(direction: int) -> None:
    files: dict[str, OutputFile] = {}
    for file in [version("x", 0), version("x/y", 1), version("x/y/z", 2), version("xy", 2)][::direction]:
        files = without_clashes(merge(files, wrote(file)))
    assert set(files) == {"x", "xy"}
    files = without_clashes(merge(files, wrote(version("x/y", 1, generation=2))))
    assert set(files) == {"x/y", "xy"}


def test_a_manifest_comes_back_as_it_was_and_nonsense_is_refused() -> None:
    older = Version(number=1, files={"a": version("a", 0)})
    newest = Version(number=2, files={"a": version("a", 0, stored="other"), "b/c": version("b/c", 1)})
    kept = OutputHistory(newest=newest, before=(older, Version()), failed_starts=1)
    assert from_json(to_json("job_1", 1, 2.0, kept)) == kept
    deep, files = b"[" * 100_000, b'{"version": 1, "files": [{}]}'
    for nonsense in (b"", b"[]", deep, b'{"version": 2, "files": []}', files):
        with pytest.raises(ValueError, match="not a manifest of outputs"):
            from_json(nonsense)


def test_a_manifest_from_before_outputs_had_versions_is_read() -> None:
    fields = {
        "name": "a",
        "size_bytes": 1,
        "sha256": "0",
        "stored": "u/a",
        "rank": 0,
        "attempt": 1,
        "generation": 1,
    }
    old = json.dumps({"version": 1, "job_id": "job_1", "attempt": 1, "committed_at": 2.0, "files": [fields]})
    assert from_json(old.encode()) == OutputHistory(
        newest=Version(files={"a": version("a", 0, stored="u/a")})
    )


def test_a_manifest_of_which_a_bit_has_changed_or_that_leads_elsewhere_is_refused() -> None:
    content = to_json("job_1", 1, 2.0, OutputHistory(newest=Version(number=1, files={"a": version("a", 0)})))
    for position in range(len(content)):
        flipped = bytearray(content)
        flipped[position] ^= 1
        with pytest.raises(ValueError, match="not a manifest of outputs"):
            from_json(bytes(flipped))
    for name, stored in (("../a", "u/a"), ("a", "/etc/passwd")):
        elsewhere = OutputHistory(newest=Version(files={name: version(name, 0, stored=stored)}))
        with pytest.raises(ValueError, match="is no name inside a folder"):
            from_json(to_json("job_1", 1, 2.0, elsewhere))


class Worker:
    """A rank's outputs folder without a rank."""

    def __init__(
        self,
        tmp_path: Path,
        files: dict[str, OutputFile] | None = None,
        rank: int = 0,
        paths: dict[str, str] | None = None,
        most_bytes: int | None = None,
    ) -> None:
        self.all_reported: list[Changes] = []
        self.complaints: list[str] = []
        self.catalog = OutputsCatalog(Storage(tmp_path / "storage"), "job_1")
        self.folder = tmp_path / f"outputs-{rank}-{len(files or {})}"
        identity = replace(IDENTITY, rank=rank)
        self.collector = OutputsCollector(
            self.folder,
            self.catalog,
            lambda: identity,
            self.all_reported.append,
            self.complaints.append,
            outputs=("model", *(paths or {}).values()),
            paths=paths,
            most_bytes=most_bytes,
        )
        self.collector.fill(files or {})

    def write(self, name: str, text: str, age_s: float = 10.0) -> None:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        at = time.time() - age_s
        os.utime(path, (at, at))

    @property
    def reported(self) -> list[Changes]:
        """What it reported, but for words that nothing has changed."""
        return [one for one in self.all_reported if one.written or one.removed or one.unstored]

    @property
    def written(self) -> list[str]:
        return [file.name for changes in self.reported for file in changes.written]


def test_a_script_that_ends_by_itself_leaves_everything(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    assert (worker.folder / "model").is_dir()
    worker.write("model/weights", "abc", age_s=0)
    worker.write("log", "x")
    (worker.folder / "link").symlink_to("/etc/passwd")
    worker.collector.finish(end="clean")
    assert worker.written == ["log", "model/weights"]
    worker.catalog.fetch(worker.reported[0].written, tmp_path / "again")
    assert (tmp_path / "again/model/weights").read_text() == "abc"


def test_of_a_killed_script_only_what_it_had_finished_writing_is_taken(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    worker.write("model/half", "a", age_s=0)
    worker.write("model/finished", "b")
    worker.write("whole", "b")
    worker.collector.finish(end="killed")
    assert worker.written == ["whole"], "nothing of an output in which something was being written"
    assert worker.all_reported[-1].busy == {"model"}


def test_what_the_job_has_is_there_and_is_not_reported_again(tmp_path: Path) -> None:
    first = Worker(tmp_path)
    first.write("snapshot", "1")
    first.write("old", "1")
    first.collector.finish(end="clean")
    files = merge({}, first.reported[0])
    second = Worker(tmp_path, files, rank=1)
    assert (second.folder / "snapshot").read_text() == "1"
    second.collector.finish(end="clean")
    assert second.reported == []
    second.write("snapshot", "2")
    (second.folder / "old").unlink()
    second.collector.finish(end="clean")
    assert (second.written, second.reported[0].removed) == (["snapshot"], ("old",))


def test_how_long_storing_takes_a_file_that_the_end_of_a_script_has_torn_is_not_taken(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    worker.write("half", "a", age_s=0)
    worker.collector.note_end()
    worker.collector._ended_at = (worker.collector._ended_at or 0.0) - 3600
    at = worker.collector._ended_at
    os.utime(worker.folder / "half", (at, at))
    worker.collector.finish(end="killed")
    assert worker.written == []


def look(worker: Worker, number: int = 1) -> Changes:
    """What a worker says of a round while its script runs."""
    worker.collector.scan(number)
    worker.collector._scan(2.0)
    return worker.all_reported[-1]


def test_an_output_is_at_rest_when_nothing_in_it_has_changed_for_two_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, now = Worker(tmp_path), [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    worker.write("model/weights", "abc")
    # As after a jump of the clock: what is written now seems to be of tomorrow.
    worker.write("model/state", "de", age_s=-86400)
    first = look(worker)
    assert (first.written, first.busy, first.round) == ((), {"model"}, 1)
    now[0] += 2.0
    second = look(worker, 2)
    assert ([file.name for file in second.written], second.busy) == (["model/state", "model/weights"], set())
    assert second.change_counts == first.change_counts, "nothing has changed between the two"
    (worker.folder / "model/state").unlink()
    third = look(worker, 3)
    assert third.change_counts["model"] == second.change_counts["model"] + 1
    assert third.removed == ("model/state",)


def test_a_small_file_that_never_rests_holds_nothing_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, now = Worker(tmp_path), [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    for line in range(5):
        worker.write("model/train.log", "x" * line, age_s=0)
        assert look(worker).busy == {"model"}
        now[0] += 7.0
    worker.write("model/weights", "abc")
    worker.write("model/train.log", "x" * 9, age_s=0)
    said = look(worker)
    assert (sorted(file.name for file in said.written), said.busy) == (
        ["model/train.log", "model/weights"],
        set(),
    )


def test_a_folder_that_the_script_has_rotated_away_is_reported_as_one(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    for name in ("model/checkpoint-20/a", "model/checkpoint-40/a"):
        worker.folder.joinpath(name).parent.mkdir(parents=True)
        worker.write(name, "1")
    look(worker)
    shutil.rmtree(worker.folder / "model/checkpoint-20")
    said = look(worker)
    assert (said.removed, said.removed_folders) == (("model/checkpoint-20/a",), ("model/checkpoint-20",))


def test_a_log_is_known_by_what_it_held_before(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    for text in ("one\n", "one\ntwo\n", "three\nfour\nfive\n"):
        worker.write("log", text, age_s=20.0 - len(text))
        look(worker)
    assert [file.is_grown for changes in worker.reported for file in changes.written] == [False, True, False]


@pytest.mark.parametrize("by_rename", [False, True])
def test_a_file_of_the_working_folder_is_kept_and_put_there_again(tmp_path: Path, by_rename: bool) -> None:
    code = tmp_path / "code"
    (code / "saved").mkdir(parents=True)
    (code / "saved/snapshot.pt").write_text("of the code")
    first = Worker(tmp_path, paths={"saved/snapshot.pt": "snapshot"})
    first.collector.place_files(code, is_first=True, collects=True)
    look(first)
    assert first.written == [], "what the code brings is no output"
    written = code / "saved/new" if by_rename else code / "saved/snapshot.pt"
    written.write_text("state")
    if by_rename:
        written.replace(code / "saved/snapshot.pt")
    first.collector.finish(end="clean")
    assert first.written == ["snapshot/snapshot.pt"]
    assert not (first.folder / "snapshot/snapshot.pt").exists()

    second = Worker(tmp_path, merge({}, first.reported[0]), rank=1, paths={"saved/snapshot.pt": "snapshot"})
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    second.collector.place_files(fresh, is_first=True, collects=True)
    assert (fresh / "saved/snapshot.pt").read_text() == "state"
    second.collector.finish(end="clean")
    assert second.reported == []


def test_a_file_of_the_working_folder_is_not_put_through_a_link(tmp_path: Path) -> None:
    first = Worker(tmp_path, paths={"saved/snapshot.pt": "snapshot"})
    code, canary = tmp_path / "code", tmp_path / "canary"
    (code / "saved").mkdir(parents=True)
    canary.mkdir()
    first.collector.place_files(code, is_first=True, collects=True)
    (code / "saved/snapshot.pt").write_text("state")
    first.collector.finish(end="clean")
    second = Worker(tmp_path, merge({}, first.reported[0]), rank=1, paths={"saved/snapshot.pt": "snapshot"})
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    (fresh / "saved").symlink_to(canary)
    with pytest.raises(OSError, match="leads through a link"):
        second.collector.place_files(fresh, is_first=True, collects=True)
    assert list(canary.iterdir()) == []


def test_a_file_that_is_written_to_while_it_is_stored_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker(tmp_path)
    worker.write("a", "1")
    store = Storage.write_open

    def slow(storage: Storage, name: str, source: IO[bytes], **options: Any) -> None:
        store(storage, name, source, **options)
        worker.write("a", "22", age_s=5.0)

    monkeypatch.setattr(Storage, "write_open", slow)
    worker.collector.finish(end="clean")
    assert worker.reported == []
    assert Storage(tmp_path / "storage").names("jobs/job_1/outputs") == []


def test_too_many_files_are_said_once(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    for number in range(MAX_FILES + 1):
        (worker.folder / f"{number:06d}").touch()
    worker.collector._known = {name: trace for name, _, trace in worker.collector._walk()}
    (worker.folder / "000000").unlink()
    for number in range(10):
        (worker.folder / f"before-{number}").touch()
        (worker.folder / f"-{number}").touch()
    worker.collector.finish(end="clean")
    (complaint,) = worker.complaints
    assert complaint == f"more than {MAX_FILES} files are in the outputs folder; put them into an archive"
    (changes,) = worker.reported
    assert (changes.written, changes.removed) == ((), ("000000",)), "what is behind the cut is not gone"


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
        worker.collector.finish(end="clean")
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

    worker.collector._on_problem = complain
    with monkeypatch.context() as broken:
        broken.setattr(OutputsCatalog, "put", lambda *_: 1 / 0)
        worker.collector.start()
        worker.collector.scan_now()
        assert said.wait(30)
    worker.collector.finish(end="clean")
    assert worker.written == ["a"]
    assert worker.complaints == [
        "the outputs folder could not be looked through: ZeroDivisionError('division by zero')"
    ]


def test_a_named_output_that_a_script_made_a_file_breaks_no_start(tmp_path: Path) -> None:
    first = Worker(tmp_path)
    (first.folder / "model").rmdir()
    first.write("model", "weights")
    first.collector.finish(end="clean")
    second = Worker(tmp_path, merge({}, first.reported[0]), rank=1)
    assert (second.folder / "model").read_text() == "weights"
    assert second.complaints == ["the output model is a file: a script put it where its folder was"]


def test_a_file_that_was_replaced_since_the_list_was_made_comes_in_its_newest_version(tmp_path: Path) -> None:
    first = Worker(tmp_path)
    first.write("snapshot", "1")
    first.write("log", "1")
    first.collector.finish(end="clean")
    listed = merge({}, first.reported[0])
    first.write("snapshot", "22")
    (first.folder / "log").unlink()
    first.collector.finish(end="clean")
    newest = merge(listed, first.reported[1])
    first.catalog.commit(OutputHistory(newest=Version(number=2, files=newest)), 1, 0.0)
    for old in listed.values():
        Storage(tmp_path / "storage").delete(f"jobs/job_1/outputs/{old.stored}")
    second = Worker(tmp_path, listed, rank=1)
    assert (second.folder / "snapshot").read_text() == "22"
    assert not (second.folder / "log").exists()
    second.collector.finish(end="clean")
    assert second.reported == []


def test_a_file_that_cannot_be_stored_at_the_end_is_tried_again_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainers.supervisor.outputs_collector._PAUSES_S", (0.0, 0.0))
    worker, write, refusals = Worker(tmp_path), Storage.write_open, [1, 2]

    def fails_twice(storage: Storage, name: str, source: IO[bytes]) -> None:
        if refusals:
            refusals.pop()
            _refuse()
        write(storage, name, source)

    worker.write("a", "1")
    with monkeypatch.context() as broken:
        broken.setattr(Storage, "write_open", _refuse)
        worker.collector.finish(end="clean")
    assert [(one.unstored, one.busy, one.end) for one in worker.reported] == [(("a",), {""}, "clean")]
    assert worker.complaints == ["the output a could not be stored: the disk is full"]
    assert stored(tmp_path) == []
    monkeypatch.setattr(Storage, "write_open", fails_twice)
    worker.collector.finish(end="clean")
    assert (worker.written, worker.reported[-1].unstored) == (["a"], ())


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

    monkeypatch.setattr("trainers.supervisor.outputs_collector._PAUSES_S", (0.0,))
    monkeypatch.setattr(shutil, "copyfile", fill_up)
    worker.collector.finish(end="clean")
    assert (worker.written, stored(tmp_path)) == ([], [])


class Head:
    """The driver's part, without a driver."""

    def __init__(self, tmp_path: Path, attempt: int = 1, ranks: int = 1, **plan: Any) -> None:
        storage = Storage(tmp_path / "storage")
        self.ranks = ranks
        self.storage = tmp_path / "storage"
        self.account = Account(1 << 20)
        self.catalog = OutputsCatalog(storage, "job_1")
        self.outputs = Outputs(replace(PLAN, attempt=attempt, **plan), self.account)
        checkpoints = Catalog(storage, "job_1")
        checkpoints.fence(attempt)
        self.damage = self.outputs.open(self.catalog, checkpoints)
        self.outputs.begin_group(dict(enumerate(range(ranks))), 1)

    def hear(self, *all_changes: Changes) -> None:
        """Workers that have ended left this."""

        async def play() -> None:
            for changes in all_changes:
                self.outputs.receive(changes.rank, replace(changes, end="clean"))
                self.outputs.agree()
                await asyncio.wait({self.outputs._under_way})

        asyncio.run(play())

    def finish(self, *all_changes: Changes, within_s: float = 30.0) -> None:
        async def play() -> None:
            for changes in all_changes:
                if changes.group > (1, 1):
                    self.outputs.begin_group(dict(enumerate(range(self.ranks))), changes.group[1])
                self.outputs.receive(changes.rank, replace(changes, end="clean"))
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


def test_what_is_committed_is_reported_and_what_it_replaces_is_removed(tmp_path: Path) -> None:
    head, worker = Head(tmp_path), Worker(tmp_path)
    for text in ("1", "2", "3", "4", "5"):
        worker.write("snapshot", text * 3, age_s=10.0 - int(text))
        worker.collector.finish(end="clean")
        head.hear(worker.reported[-1])
    head.acknowledge(0)
    assert len(stored(tmp_path)) == 6, (
        "all versions, and the manifest: the service may still name any of them"
    )
    newest = head.bodies("output")[-1]
    head.acknowledge()
    assert len(stored(tmp_path)) == 4, "the newest version, two to fall back to, and the manifest"
    file = newest["files"]["snapshot"]
    assert (Path(newest["location"]) / file["stored"]).read_text() == "555"
    assert file["size_bytes"] == 3
    assert Head(tmp_path).outputs.files == head.outputs.files


def test_an_attempt_that_was_replaced_changes_nothing(tmp_path: Path) -> None:
    old, worker = Head(tmp_path, attempt=1), Worker(tmp_path)
    Head(tmp_path, attempt=2)
    worker.write("snapshot", "1")
    worker.collector.finish(end="clean")
    old.hear(worker.reported[0])
    assert old.bodies("output") == []
    assert Head(tmp_path, attempt=3).outputs.files == {}
    next_one = Head(tmp_path, attempt=4)
    assert len(stored(tmp_path)) == 1
    next_one.acknowledge()
    assert stored(tmp_path) == [], "what no manifest names is swept when an attempt has begun"
    assert next_one.bodies("output") == []


def test_an_attempt_reports_once_what_the_one_before_may_have_kept_to_itself(tmp_path: Path) -> None:
    first, worker = Head(tmp_path), Worker(tmp_path)
    assert first.bodies("output") == []
    for text in ("a", "b", "cc"):
        worker.write("snapshot", text)
        worker.collector.finish(end="clean")
        first.hear(worker.reported[-1])
    worker.write("snapshot", "dd")
    worker.collector.finish(end="clean")
    first.finish(worker.reported[-1])
    first.acknowledge()
    assert len(stored(tmp_path)) == 5, "an attempt that ends removes nothing"
    second = Head(tmp_path, attempt=2)
    (reported,) = second.bodies("output")
    assert reported["files"]["snapshot"]["size_bytes"] == 2
    assert len(stored(tmp_path)) == 5
    second.acknowledge()
    assert len(stored(tmp_path)) == 4


def test_what_an_older_attempt_still_commits_does_not_count(tmp_path: Path) -> None:
    first, worker = Head(tmp_path), Worker(tmp_path)
    worker.write("snapshot", "1")
    worker.collector.finish(end="clean")
    first.hear(worker.reported[0])
    second = Head(tmp_path, attempt=2)
    # It had asked whether it may, before the second one began.
    first.catalog.commit(OutputHistory(), 1, 1000.0)
    assert set(second.catalog.newest().newest.files) == {"snapshot"}
    third = Head(tmp_path, attempt=3)
    assert set(third.outputs.files) == {"snapshot"}
    third.acknowledge()
    assert {"remora-outputs-3.json", third.outputs.files["snapshot"].folder} == set(stored(tmp_path))


def test_a_list_from_before_they_had_numbers_is_the_oldest(tmp_path: Path) -> None:
    first, worker = Head(tmp_path), Worker(tmp_path)
    worker.write("snapshot", "1")
    worker.collector.finish(end="clean")
    first.hear(worker.reported[0])
    folder = tmp_path / "storage/jobs/job_1/outputs"
    (folder / "remora-outputs-1.json").rename(folder / "remora-outputs.json")
    assert set(Head(tmp_path, attempt=2).outputs.files) == {"snapshot"}
    assert sorted(path.name for path in folder.glob("*.json")) == ["remora-outputs-2.json"]


def test_outputs_that_cannot_be_read_are_left_where_they_are(tmp_path: Path) -> None:
    head, worker = Head(tmp_path), Worker(tmp_path)
    worker.write("snapshot", "1")
    worker.collector.finish(end="clean")
    head.hear(worker.reported[0])
    manifest = "remora-outputs-1.json"
    before = set(stored(tmp_path)) - {manifest}
    Storage(tmp_path / "storage").write_bytes(f"jobs/job_1/outputs/{manifest}", b"torn")
    after = Head(tmp_path)
    assert after.outputs.files == {}
    assert after.damage is not None
    assert after.damage.startswith("not a manifest of outputs")
    worker.write("other", "2")
    worker.collector.finish(end="clean")
    after.hear(worker.reported[1])
    after.acknowledge()
    later = Head(tmp_path, attempt=2)
    later.acknowledge()
    assert set(later.outputs.files) == {"other"}
    aside = "remora-outputs.json.damaged-1"
    assert {*before, aside} <= set(stored(tmp_path)), "also after a change, and in later attempts"
    assert Storage(tmp_path / "storage").read_bytes(f"jobs/job_1/outputs/{aside}") == b"torn"


def test_a_folder_in_the_place_of_the_list_is_set_aside_too(tmp_path: Path) -> None:
    folder = tmp_path / "storage/jobs/job_1/outputs"
    (folder / "remora-outputs-1.json" / "inside").mkdir(parents=True)
    head, worker = Head(tmp_path), Worker(tmp_path)
    assert head.damage is not None
    assert "is a folder" in head.damage
    assert (folder / "remora-outputs.json.damaged-1" / "inside").is_dir()
    worker.write("snapshot", "1")
    worker.collector.finish(end="clean")
    head.hear(worker.reported[0])
    assert set(Head(tmp_path, attempt=2).outputs.files) == {"snapshot"}


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


def saved(tmp_path: Path, attempt: int, *texts: str) -> Head:
    """An attempt whose workers saved one after the other."""
    head, worker = Head(tmp_path, attempt=attempt), Worker(tmp_path, rank=0)
    for text in texts:
        worker.write("snapshot", text)
        worker.collector.finish(end="clean")
        head.hear(replace(worker.reported[-1], group=(attempt, 1)))
    return head


def failed(tmp_path: Path, attempt: int, *, has_failed: bool = True) -> Head:
    """An attempt whose command leaves a log and fails."""
    head = Head(tmp_path, attempt=attempt)
    log = replace(version("events.out.tfevents.1", 0, stored=f"log-{attempt}/x"), attempt=attempt)

    async def play() -> None:
        head.outputs.receive(0, Changes(rank=0, group=(attempt, 1), written=(log,), end="failed"))
        await head.outputs.finish(has_failed=has_failed)

    asyncio.run(play())
    return head


def content(head: Head) -> str:
    """What the snapshot holds with which a worker starts now."""
    file = head.outputs.start.files["snapshot"]
    return Storage(head.storage).read_bytes(f"jobs/job_1/outputs/{file.stored}").decode()


def test_a_start_that_fails_falls_back_to_the_version_before_and_loses_nothing(tmp_path: Path) -> None:
    saved(tmp_path, 1, "one", "two", "three")
    failed(tmp_path, 2)
    third = failed(tmp_path, 3)
    assert third.outputs.fallen_back is not None
    fourth = Head(tmp_path, attempt=4)
    assert content(fourth) == "one"
    reported = fourth.bodies("output")[-1]["files"]["snapshot"]
    fourth.acknowledge()
    assert Path(fourth.catalog.location, reported["stored"]).read_text() == "three", (
        "the newest one is still there"
    )
    failed(tmp_path, 5)
    assert content(Head(tmp_path, attempt=6)) == "three", "twice at most"


def test_an_attempt_that_fails_for_another_reason_does_not_fall_back(tmp_path: Path) -> None:
    saved(tmp_path, 1, "one", "two")
    failed(tmp_path, 2, has_failed=False)
    assert content(Head(tmp_path, attempt=3)) == "two"
    assert Head(tmp_path, attempt=3).outputs.fallen_back is None


def test_what_is_saved_after_falling_back_is_the_newest_version(tmp_path: Path) -> None:
    saved(tmp_path, 1, "one", "two")
    failed(tmp_path, 2)
    assert content(saved(tmp_path, 3, "other")) == "other"
    after = Head(tmp_path, attempt=4)
    assert (content(after), after.outputs.fallen_back) == ("other", None)
    failed(tmp_path, 5)
    assert content(Head(tmp_path, attempt=6)) == "one", "what had failed is no version to fall back to"


class Pair:
    """Two workers that save together, asked by a driver; each on a node of its own."""

    def __init__(self, tmp_path: Path, **plan: Any) -> None:
        self.tmp_path = tmp_path
        self.head = Head(tmp_path, ranks=2, outputs=("model",), **plan)
        most_bytes = plan.get("max_output_bytes")
        self.workers = [Worker(tmp_path, rank=rank, most_bytes=most_bytes) for rank in (0, 1)]
        self.reported = [0, 0]

    def write(self, rank: int, name: str, text: str) -> None:
        path = self.workers[rank].folder / "model" / name
        path.parent.mkdir(exist_ok=True)
        self.workers[rank].write(f"model/{name}", text)

    def hear(self, rank: int) -> None:
        reported = self.workers[rank].all_reported
        for changes in reported[self.reported[rank] :]:
            self.head.outputs.receive(rank, changes)
        self.reported[rank] = len(reported)

    def rounds(self) -> None:
        """Everybody is asked until nothing is left to confirm."""

        async def play() -> None:
            for _ in range(3):
                self.head.outputs.hurry()
                for rank, worker in enumerate(self.workers):
                    worker.collector.scan(self.head.outputs._rounds.number)
                    worker.collector._scan(2.0)
                    self.hear(rank)
                self.head.outputs.agree()
            await self.head.outputs.finish()

        asyncio.run(play())

    def end(self, *ranks: int, end: End = "killed") -> None:
        """These workers end; of others nothing is ever said again."""
        for rank in ranks:
            self.workers[rank].collector.finish(end=end)
            self.hear(rank)
        asyncio.run(self.head.outputs.finish())

    def restored(self) -> list[str]:
        """What a worker that starts now finds."""
        start = self.head.catalog.newest().start
        found = Worker(self.tmp_path, dict(start.files), rank=10 + start.number)
        files = (path for path in found.folder.rglob("*") if path.is_file())
        return sorted(path.relative_to(found.folder / "model").as_posix() for path in files)


WHOLE = ["checkpoint-20/model", "checkpoint-20/random-0", "checkpoint-20/random-1"]


def saved_together(tmp_path: Path, **plan: Any) -> Pair:
    pair = Pair(tmp_path, **plan)
    pair.write(0, "checkpoint-20/random-0", "r")
    pair.write(1, "checkpoint-20/random-1", "r")
    pair.write(0, "checkpoint-20/model", "m")
    pair.rounds()
    assert pair.restored() == WHOLE
    return pair


def test_a_save_that_a_lost_node_was_part_of_is_not_restored(tmp_path: Path) -> None:
    pair = saved_together(tmp_path)
    pair.write(0, "checkpoint-60/random-0", "r")
    pair.write(1, "checkpoint-60/random-1", "r")
    # Rank 0's node is lost before it has written the model.
    pair.end(1)
    assert pair.restored() == WHOLE


def test_a_pause_in_the_middle_of_a_save_is_no_rest_when_the_last_file_is_named(tmp_path: Path) -> None:
    pair = saved_together(tmp_path, output_commits={"model": "model"})
    pair.write(0, "checkpoint-60/random-0", "r")
    pair.write(1, "checkpoint-60/random-1", "r")
    pair.rounds()
    assert pair.restored() == WHOLE
    pair.write(0, "checkpoint-60/model", "m")
    pair.rounds()
    assert len(pair.restored()) == 6


def test_a_folder_that_rank_0_has_rotated_away_is_not_restored(tmp_path: Path) -> None:
    pair = saved_together(tmp_path)
    for rank in (0, 1):
        pair.write(rank, f"checkpoint-60/random-{rank}", "r")
    pair.write(0, "checkpoint-60/model", "m")
    shutil.rmtree(pair.workers[0].folder / "model/checkpoint-20")
    pair.rounds()
    assert pair.restored() == [name.replace("20", "60") for name in WHOLE]
    assert (pair.workers[1].folder / "model/checkpoint-20/random-1").exists()


def test_who_wrote_to_the_newest_version_is_who_is_waited_for(tmp_path: Path) -> None:
    pair = saved_together(tmp_path)
    pair.write(0, "best/model", "m")
    pair.write(1, "best/extra", "m")
    pair.rounds()
    pair.write(0, "best/model", "mm")
    # Rank 1 wrote to this folder, too; rank 0 ends, and rank 1 is lost.
    pair.end(0)
    assert "best/model" in pair.restored()
    assert pair.head.outputs.files["model/best/model"].size_bytes == 1


# --- how large outputs may be


def too_large(head: Head) -> list[dict[str, Any]]:
    return [body for body in head.bodies("event") if body["kind"] == "attempt.outputs_too_large"]


def test_a_folder_that_is_too_large_is_not_copied_and_the_version_before_stays_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = saved_together(tmp_path, max_output_bytes=1000)
    copied: list[str] = []
    store = Storage.write_open

    def count(storage: Storage, name: str, source: IO[bytes], **options: Any) -> None:
        copied.append(name)
        store(storage, name, source, **options)

    monkeypatch.setattr(Storage, "write_open", count)
    shutil.rmtree(pair.workers[0].folder / "model/checkpoint-20")
    sparse = pair.workers[0].folder / "model/checkpoint-40"
    pair.write(0, "checkpoint-40/model", "m")
    os.truncate(sparse / "model", 1 << 42)
    os.utime(sparse / "model", (1e9, 1e9))
    pair.rounds()
    pair.rounds()
    assert copied == [], "four tebibytes of nothing would be copied for days"
    assert pair.restored() == WHOLE, "what the script has removed meanwhile is not gone either"
    (body,) = too_large(pair.head)
    assert body["message"] == (
        "Rank 0 has 4.0 TiB (4398046511104 bytes), and the outputs of a job may have 1000 B (1000 bytes,"
        " REMORA_MAX_OUTPUT_BYTES): the job goes on and keeps the version before, until files are removed from"
        " REMORA_OUTPUTS_DIR or operators allow more."
    )
    assert body["data"] == {"size_bytes": 1 << 42, "limit_bytes": 1000}
    assert not pair.head.outputs.is_complete, "no model is made of the version before"
    os.truncate(sparse / "model", 100)
    os.utime(sparse / "model", (1e9, 1e9))
    pair.end(0, 1, end="clean")
    assert pair.restored() == ["checkpoint-40/model"], "once it fits it is published"
    assert pair.head.outputs.is_complete
    assert len(too_large(pair.head)) == 1


def test_a_folder_that_is_too_large_at_the_end_leaves_the_version_before(tmp_path: Path) -> None:
    pair = saved_together(tmp_path, max_output_bytes=1000)
    (pair.workers[0].folder / "model/checkpoint-20/model").unlink()
    pair.write(0, "checkpoint-40/model", "m" * 2000)
    pair.end(0, 1, end="clean")
    assert pair.restored() == WHOLE
    assert len(too_large(pair.head)) == 1
    assert not pair.head.outputs.is_complete


def test_files_of_several_ranks_are_counted_together(tmp_path: Path) -> None:
    pair = saved_together(tmp_path, max_output_bytes=1000)
    for number in range(5):
        for rank in (0, 1):
            pair.write(rank, f"checkpoint-20/random-{rank}", str(number) * 600)
        pair.rounds()
    (body,) = too_large(pair.head)
    assert body["message"].startswith("3 files of the outputs have 1.2 KiB (1201 bytes), and ")
    assert not pair.head.outputs.is_complete
    assert [file.size_bytes for file in pair.head.outputs.files.values()] == [1, 1, 1]
    pair.head.outputs._is_ending = False
    pair.head.acknowledge()
    assert too_large(pair.head) == [], "the service has it"
    assert len(stored(tmp_path)) == 3 + 2 + 1, "the version before, what waits to fit, and the manifest"
    for rank in (0, 1):
        pair.write(rank, f"checkpoint-20/random-{rank}", "y" * 400)
    pair.rounds()
    assert pair.head.outputs.is_complete
    assert sorted(file.size_bytes for file in pair.head.outputs.files.values()) == [1, 400, 400]
    pair.head.outputs._is_ending = False
    pair.head.acknowledge()
    assert len(stored(tmp_path)) == 3 + 2 + 1, "what fits, the save before it, and the manifest"
    for rank in (0, 1):
        pair.write(rank, f"checkpoint-20/random-{rank}", "x" * 600)
    pair.rounds()
    assert len(too_large(pair.head)) == 1, "it is reported again when it happens again"


def test_a_start_whose_outputs_became_too_large_has_not_failed(tmp_path: Path) -> None:
    saved(tmp_path, 1, "one")
    head = Head(tmp_path, attempt=2, max_output_bytes=1000)
    worker = Worker(tmp_path, dict(head.outputs.start.files), most_bytes=1000)
    worker.write("snapshot", "x" * 1001)
    worker.collector.finish(end="failed")

    async def play() -> None:
        head.outputs.receive(0, replace(worker.all_reported[-1], group=(2, 1)))
        await head.outputs.finish(has_failed=True)

    asyncio.run(play())
    assert len(too_large(head)) == 1
    assert Head(tmp_path, attempt=3).outputs.fallen_back is None


def test_a_file_that_grows_while_it_is_read_is_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker(tmp_path)
    worker.write("log", "x" * 1000)
    copied: list[str] = []
    monkeypatch.setattr(Storage, "write_open", lambda _, name, __: copied.append(name))
    path = worker.folder / "log"

    class Growing:
        """Reads a file to which another process adds as much as was read."""

        def __init__(self, opened: IO[bytes]) -> None:
            self.opened = opened

        def fileno(self) -> int:
            return self.opened.fileno()

        def read(self, count: int) -> bytes:
            with path.open("ab") as file:
                file.write(b"x" * 1000)
            assert path.stat().st_size < 100_000, "it is read for ever"
            return self.opened.read(min(count, 1000))

        def __enter__(self) -> Growing:
            return self

        def __exit__(self, *_: object) -> None:
            self.opened.close()

    open_file = ConfinedFolder.open_file
    monkeypatch.setattr(ConfinedFolder, "open_file", lambda folder, name: Growing(open_file(folder, name)))
    worker.collector.finish(end="clean")
    assert copied == []
    assert worker.written == []


def test_what_lies_too_deep_is_left_out_and_holds_nothing_up(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    deepest = "/".join("d" * (MAX_DEPTH - 1))
    for name in (f"{deepest}/kept", f"{deepest}/d/left"):
        (worker.folder / name).parent.mkdir(parents=True)
        (worker.folder / name).write_text("x")
    worker.collector.finish(end="clean")
    assert worker.written == [f"{deepest}/kept"]
    assert worker.all_reported[-1].busy == frozenset()
    (complaint,) = worker.complaints
    assert complaint.endswith(f"is not kept: it lies in {MAX_DEPTH} folders or more")


def test_more_folders_than_can_be_looked_at_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainers.supervisor.outputs_collector._MAX_SEEN", 50)
    worker = Worker(tmp_path)
    for number in range(60):
        (worker.folder / f"{number}").mkdir()
    worker.collector.finish(end="clean")
    assert worker.complaints == ["more than 50 folders are in the outputs folder: not all are kept"]
