"""Files that leave a machine through the driver: nothing is stored that is not whole, nothing stays behind."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainers.checkpoints.catalog import Catalog
from trainers.confined_folders import ConfinedFolder
from trainers.driver import relay as module
from trainers.driver.relay import Relay
from trainers.node_folders import sweep_folders
from trainers.storage import Storage, StorageError
from trainers.supervisor import shard_transfer
from trainers.supervisor.shard_transfer import CheckpointShard

SHARD = CheckpointShard(rank=1, step=7, attempt=1, generation=2, size_bytes=11, asked=True)


class Stage:
    """A relay, what it sent, and where it stores."""

    def __init__(self, folder: Path) -> None:
        self.reported: list[dict[str, Any]] = []
        self.relay = Relay(lambda shard, message: self.reported.append({"rank": shard.rank, **message}))
        self.storage = folder / "storage"
        self.relay.catalog = Catalog(Storage(self.storage), "job_1")
        self.work = folder / "work"

    @property
    def kinds(self) -> list[str]:
        return [message["type"] for message in self.reported]

    def stored(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in self.storage.rglob("*") if path.is_file()}

    def kept(self) -> list[Path]:
        return [path for path in self.work.rglob("*") if path.is_file() and path.suffix != ".lock"]


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.setenv("REMORA_WORK_DIR", str(tmp_path / "work"))
    return Stage(tmp_path)


def test_what_came_whole_is_stored_and_reported_like_the_workers_own(stage: Stage) -> None:
    async def scene() -> None:
        relay = stage.relay
        assert relay.offer(SHARD)
        await relay.take(SHARD, "part/b.bin", 6, b"world")
        await relay.take(SHARD, "part/b.bin", 0, b"hello ")
        assert relay.seal(SHARD)
        assert stage.kinds == ["relayed"], "the machine may go before the storage has it"
        await relay.finish()
        assert stage.kinds == ["relayed", "shard"]
        (file,) = stage.reported[1]["files"]
        assert (file.name, file.size_bytes, file.rank) == ("part/b.bin", 11, 1)
        assert (stage.reported[1]["step"], stage.reported[1]["generation"], stage.reported[1]["asked"]) == (
            7,
            2,
            True,
        )
        relay.close()

    asyncio.run(scene())
    assert stage.stored() == {"b.bin": "hello world"}
    assert list(stage.work.iterdir()) == []


def test_what_never_became_whole_is_not_stored(stage: Stage) -> None:
    async def scene() -> None:
        relay = stage.relay
        assert relay.offer(SHARD)
        await relay.take(SHARD, "a", 0, b"half")
        assert not relay.seal(SHARD)
        assert relay.offer(SHARD), "it may be sent again"
        await relay.take(SHARD, "a", 0, b"half")
        await relay.finish()
        with pytest.raises(KeyError):
            await relay.take(SHARD, "a", 4, b"too late")

    asyncio.run(scene())
    assert stage.reported == []
    assert stage.stored() == {}
    assert stage.kept() == []


def test_what_is_offered_again_while_it_is_stored_is_another_one(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of storing the first one took away the second one's files, and the second one those of the first."""
    is_storing, may_store = threading.Event(), threading.Event()
    put = stage.relay.catalog.put

    def slow_put(*arguments: Any) -> Any:
        is_storing.set()
        assert may_store.wait(20.0)
        return put(*arguments)

    async def scene() -> None:
        relay = stage.relay
        monkeypatch.setattr(relay.catalog, "put", slow_put)
        assert relay.offer(SHARD)
        await relay.take(SHARD, "a", 0, b"first time.")
        assert relay.seal(SHARD)
        assert await asyncio.to_thread(is_storing.wait, 20.0)
        assert relay.offer(SHARD)
        await relay.take(SHARD, "a", 0, b"again")
        may_store.set()
        await asyncio.wait(list(relay._storing.values()))
        await relay.take(SHARD, "a", 5, b", once")
        assert relay.seal(SHARD)
        await relay.finish()
        relay.close()

    asyncio.run(scene())
    assert stage.kinds == ["relayed", "shard", "relayed", "shard"]
    assert stage.stored() == {"a": "again, once"}
    assert list(stage.work.iterdir()) == []


def test_the_end_waits_for_everything_that_is_stored_and_then_removes_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_store = threading.Event()
    put = stage.relay.catalog.put

    def slow_put(*arguments: Any) -> Any:
        assert may_store.wait(20.0)
        return put(*arguments)

    async def scene() -> None:
        relay = stage.relay
        monkeypatch.setattr(relay.catalog, "put", slow_put)
        for _ in range(2):
            assert relay.offer(SHARD)
            await relay.take(SHARD, "a", 0, b"once again.")
            assert relay.seal(SHARD)
        ending = asyncio.ensure_future(relay.finish())
        await asyncio.sleep(0)
        assert not ending.done()
        may_store.set()
        await ending
        relay.close()

    asyncio.run(scene())
    assert stage.kinds == ["relayed", "relayed", "shard", "shard"]
    assert list(stage.work.iterdir()) == []


def test_no_path_leaves_the_folder(stage: Stage) -> None:
    async def scene() -> None:
        assert stage.relay.offer(SHARD)
        for name in ("../up", "/etc/passwd", ".", "a/../../up"):
            with pytest.raises(ValueError, match="not a path inside a checkpoint"):
                await stage.relay.take(SHARD, name, 0, b"x")

    asyncio.run(scene())
    assert stage.kept() == []


def test_no_shard_names_its_folder_on_the_drivers_disk(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "canary").mkdir()
    strange: Any = f"../../../{tmp_path}/canary/x"
    shard = replace(SHARD, step=strange)

    async def scene() -> None:
        assert stage.relay.offer(shard)
        await stage.relay.take(shard, "part", 0, b"x")
        stage.relay.close()

    asyncio.run(scene())
    assert list((tmp_path / "canary").iterdir()) == []
    assert stage.kept() == []


def test_no_more_comes_than_was_offered(stage: Stage) -> None:
    async def scene() -> None:
        assert stage.relay.offer(SHARD)
        for offset, chunk in ((-1, b"x"), (0, b"x" * 12), (1 << 40, b"x")):
            with pytest.raises(ValueError, match="than the 11 bytes that were offered"):
                await stage.relay.take(SHARD, "part", offset, chunk)

    asyncio.run(scene())


def test_a_disk_without_space_refuses(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = SimpleNamespace(free=module._SPARE_BYTES + SHARD.size_bytes)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    assert stage.relay.offer(SHARD)
    other = CheckpointShard(rank=2, step=7, attempt=1, generation=2, size_bytes=1, asked=True)
    assert not stage.relay.offer(other), "what was promised to the first is not there for the second"


def test_a_storage_that_fails_is_reported_as_an_abandoned_checkpoint(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise StorageError("the bucket is gone")

    async def scene() -> None:
        assert stage.relay.offer(SHARD)
        await stage.relay.take(SHARD, "a", 0, b"x" * 11)
        monkeypatch.setattr(stage.relay.catalog, "put", fail)
        assert stage.relay.seal(SHARD)
        await stage.relay.finish()

    asyncio.run(scene())
    assert stage.kinds == ["relayed", "log", "abandoned"]
    assert "the bucket is gone" in stage.reported[1]["text"]
    assert stage.kept() == []


def test_a_worker_sends_all_its_files_in_chunks(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    (source / "deep").mkdir(parents=True)
    (source / "deep/long").write_text("0123456789")
    (source / "empty").touch()
    (source / "link").symlink_to("empty")

    def now(method: Any) -> Any:
        return SimpleNamespace(remote=lambda *arguments: method(*arguments))

    async def answer(result: Any) -> Any:
        return await result if asyncio.iscoroutine(result) else result

    loop = asyncio.new_event_loop()

    def get(waiting: Any) -> Any:
        many = waiting if isinstance(waiting, list) else [waiting]
        answers = [loop.run_until_complete(answer(one)) for one in many]
        return answers if isinstance(waiting, list) else answers[0]

    async def seal(shard: CheckpointShard) -> bool:
        return stage.relay.seal(shard)

    driver = SimpleNamespace(
        relay_offer=now(stage.relay.offer), relay_take=now(stage.relay.take), relay_seal=now(seal)
    )
    monkeypatch.setattr("ray.get", get)
    monkeypatch.setattr(shard_transfer, "CHUNK_BYTES", 4)
    whole = CheckpointShard(
        rank=0,
        step=7,
        attempt=1,
        generation=2,
        size_bytes=shard_transfer.size_of(ConfinedFolder(source)),
        asked=False,
    )
    assert whole.size_bytes == 10
    assert shard_transfer.send(driver, whole, ConfinedFolder(source))
    loop.run_until_complete(stage.relay.finish())
    loop.close()
    assert stage.stored() == {"long": "0123456789", "empty": ""}


KILLED = """
import os, signal
from trainers.driver.relay import Relay
from tests.unit.trainers.test_relay import SHARD
relay = Relay(lambda *_: None)
assert relay.offer(SHARD)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_driver_kept_is_removed_by_the_next(stage: Stage) -> None:
    root = Path(__file__).parents[3]
    killed = subprocess.run([sys.executable, "-c", KILLED], cwd=root, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert stage.relay.offer(SHARD)
    assert len([path for path in stage.work.iterdir() if path.is_dir()]) == 2
    assert len(sweep_folders()) == 1, "that of the living one stays"
    stage.relay.close()
    assert list(stage.work.iterdir()) == []
