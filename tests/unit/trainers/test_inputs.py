"""Inputs are on a node once for each of their states, complete or not at all, and are not written to."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from tests.unit.trainers.outputs_of_jobs import put_outputs
from trainers.input_source import InputSource
from trainers.inputs.download import InputMissing, fetched, prune


class Log:
    """The lines for the job's log."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, line: str) -> None:
        self.lines.append(line)

    @property
    def downloads(self) -> int:
        return sum("downloading" in line for line in self.lines)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    folder = tmp_path / "store"
    (folder / "images/train/a").mkdir(parents=True)
    (folder / "images/train/a/1.txt").write_text("one")
    (folder / "images/train/2.txt").write_text("two")
    (folder / "images/other.txt").write_text("other")
    return folder


def source(store: Path, path: str = "images/train", **more: object) -> dict[str, InputSource]:
    return {"data": InputSource(url=str(store), path=path, **more)}  # type: ignore[arg-type]


def contents(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()
    }


def test_a_folder_of_a_store_is_downloaded_once(store: Path, tmp_path: Path) -> None:
    log, shown = Log(), Log()
    for _ in range(2):
        with fetched(source(store), log, shown, tmp_path / "inputs") as found:
            assert contents(found["data"]) == {"a/1.txt": "one", "2.txt": "two"}
    assert log.downloads == 1
    assert shown.lines == ["2 of 2 files of the input data, 6 B"]


def test_another_state_of_it_is_another_input(store: Path, tmp_path: Path) -> None:
    log = Log()
    with fetched(source(store), log, root=tmp_path / "inputs") as first:
        (store / "images/train/2.txt").write_text("new")
        with fetched(source(store), log, root=tmp_path / "inputs") as second:
            assert contents(second["data"])["2.txt"] == "new"
            assert contents(first["data"])["2.txt"] == "two", "who uses it keeps what it began with"
    assert log.downloads == 2


def test_one_file_and_a_whole_store(store: Path, tmp_path: Path) -> None:
    asked = source(store, "images/other.txt") | {"all": InputSource(url=str(store))}
    with fetched(asked, Log(), root=tmp_path / "inputs") as found:
        assert (found["data"].name, found["data"].read_text()) == ("other.txt", "other")
        assert set(contents(found["all"])) == {
            "images/train/a/1.txt",
            "images/train/2.txt",
            "images/other.txt",
        }


def test_its_files_are_not_written_to(store: Path, tmp_path: Path) -> None:
    with fetched(source(store), Log(), root=tmp_path / "inputs") as found:
        assert not (found["data"] / "2.txt").stat().st_mode & 0o222


def test_a_store_that_is_a_folder_of_the_node_is_mounted(store: Path, tmp_path: Path) -> None:
    with fetched(source(store, is_mounted=True), Log(), root=tmp_path / "inputs") as found:
        assert found["data"] == store / "images/train"
    assert not (tmp_path / "inputs").exists()


def test_an_output_of_another_job(tmp_path: Path) -> None:
    put_outputs(
        tmp_path / "named", "job_1", {"model/w.pt": "weights", "model/conf/a.json": "{}", "log.txt": "x"}
    )
    both = {"url": str(tmp_path / "service"), "also": (str(tmp_path / "named"),), "job_id": "job_1"}
    asked = {"model": InputSource(**both, output="model"), "all": InputSource(**both)}  # type: ignore[arg-type]
    with fetched(asked, Log(), root=tmp_path / "inputs") as found:
        assert contents(found["model"]) == {"w.pt": "weights", "conf/a.json": "{}"}
        assert set(contents(found["all"])) == {"model/w.pt", "model/conf/a.json", "log.txt"}


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"path": "absent"}, "inputs.data: there is no file at 'absent' in its store"),
        ({"path": "absent", "is_mounted": True}, "there is no 'absent' in its store on this node"),
        ({"job_id": "job_9"}, "inputs.data: the job job_9 has no outputs"),
        ({"job_id": "job_9", "output": "model"}, "the job job_9 has no output 'model'"),
    ],
)
def test_what_is_not_there_is_said_in_one_sentence(
    asked: dict[str, object], said: str, store: Path, tmp_path: Path
) -> None:
    one = InputSource(**({"url": str(store)} | asked))  # type: ignore[arg-type]
    with pytest.raises(InputMissing, match=said), fetched({"data": one}, Log(), root=tmp_path / "inputs"):
        pytest.fail("it was there")


def test_a_download_that_was_killed_begins_again(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def kill(_source: Path, *_: object) -> None:
        raise Killed

    log = Log()
    with monkeypatch.context() as patched:
        # Between the last file and the record.
        patched.setattr("trainers.inputs.download.json.dumps", kill)
        with pytest.raises(Killed), fetched(source(store), log, root=tmp_path / "inputs"):
            pytest.fail("it was complete")
    (half,) = (path for path in (tmp_path / "inputs").iterdir() if path.is_dir())
    (half / "left.txt").write_text("of the one before")
    with fetched(source(store), log, root=tmp_path / "inputs") as found:
        assert set(contents(found["data"])) == {"a/1.txt", "2.txt"}
    assert log.downloads == 2


def test_workers_of_a_node_download_it_once(store: Path, tmp_path: Path) -> None:
    log, together = Log(), threading.Barrier(3)

    def use() -> None:
        with fetched(source(store), log, root=tmp_path / "inputs"):
            together.wait(60)

    threads = [threading.Thread(target=use) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert log.downloads == 1


def test_those_used_longest_ago_are_removed_and_none_that_is_in_use(store: Path, tmp_path: Path) -> None:
    root = tmp_path / "inputs"
    for number, name in enumerate(("images/train", "images/other.txt", "images")):
        with fetched(source(store, name), Log(), root=root):
            pass
        newest = max(root.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
        os.utime(newest, (number, number))
    with fetched(source(store, "images/train"), Log(), root=root) as used:
        os.utime(next(path for path in root.glob("*.json") if path.stem == used["data"].name), (0, 0))
        assert len(prune(root, 1)) == 1
        assert contents(used["data"])
    assert len(list(root.glob("*.json"))) == 2


def test_a_folder_may_hold_a_file_of_its_own_name(store: Path, tmp_path: Path) -> None:
    (store / "images/train/train").write_text("mine")
    with fetched(source(store), Log(), root=tmp_path / "inputs") as found:
        assert contents(found["data"]) == {"a/1.txt": "one", "2.txt": "two", "train": "mine"}


def test_what_a_killed_download_of_another_state_left_is_removed(store: Path, tmp_path: Path) -> None:
    half = tmp_path / "inputs" / "0123"
    half.mkdir(parents=True)
    (half / "part.txt").write_text("x")
    with fetched(source(store), Log(), root=tmp_path / "inputs"):
        assert not half.exists()


def test_a_download_ends_when_its_job_is_stopped(store: Path, tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    asked = fetched(source(store), Log(), root=tmp_path / "inputs", stop=stop)
    with pytest.raises(InputMissing, match="is being stopped"), asked:
        pytest.fail("it was downloaded")
