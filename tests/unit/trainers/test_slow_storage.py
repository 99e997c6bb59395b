"""A storage that really is slow, and a notice: what it would not have in time leaves through the driver."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.trainers.slow_storage import narrow, widen
from tests.unit.trainers.supervisor_stage import Driver, Stage, without_ray
from trainers.checkpoints.catalog import Catalog
from trainers.driver.relay import Relay
from trainers.storage import Storage

#: Bytes per second of the wire, and those that it is believed to have.
REAL, BELIEVED = 100_000.0, 1e9
#: Takes a fifth of a second; takes longer than any notice of a minute.
SMALL, BIG = 20_000, 10_000_000

#: Writes a small checkpoint, and when it may go on another small one and a big one.
SCRIPT = f"""
import pathlib, time
from remora import training

def checkpoint(step, size):
    with training.checkpoint(step) as folder:
        (folder / "weights").write_bytes(bytes(size))

checkpoint(1, {SMALL})
while not pathlib.Path("go-on").exists():
    time.sleep(0.01)
checkpoint(2, {SMALL})
checkpoint(3, {BIG})
"""


class RelayingDriver(Driver):
    """A driver whose relay is real, on an event loop of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self.relay = Relay(
            lambda shard, message: self.get((shard.generation, shard.rank, [message])) and None
        )
        self.relay_offer, self.relay_take, self.relay_seal = map(
            self._remote, (self.relay.offer, self.relay.take, self.relay.seal)
        )

    def get(self, call: Any) -> Any:
        """What `ray.get` does, for messages and for calls of the relay."""
        if isinstance(call, list):
            return [one.result() for one in call]
        return call.result() if isinstance(call, Future) else super().get(call)

    def _remote(self, method: Callable[..., Any]) -> SimpleNamespace:
        return SimpleNamespace(remote=lambda *arguments: self.call(method, *arguments))

    def call(self, method: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Call something of the relay on its loop."""

        async def run() -> Any:
            answer = method(*arguments)
            return await answer if asyncio.iscoroutine(answer) else answer

        return asyncio.run_coroutine_threadsafe(run(), self.loop)

    def close(self) -> None:
        self.call(self.relay.finish).result()
        self.call(self.relay.close).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Stage]:
    driver = RelayingDriver()
    without_ray(driver, tmp_path, monkeypatch)
    narrow(REAL)
    driver.relay.catalog = Catalog(Storage(f"slow://{tmp_path}/far"), "job_1")
    played = Stage(driver, tmp_path)
    yield played
    widen()
    driver.close()
    played.close()


def far(stage: Stage, step: int) -> list[int]:
    """Sizes of the files of a step that the storage has."""
    return [path.stat().st_size for path in (stage.folder / "far").rglob(f"{step:012d}-1-1/weights")]


@pytest.mark.parametrize("clock_set_by_s", [0.0, 3600.0, -3600.0])
def test_what_was_measured_decides_who_brings_a_checkpoint_to_the_storage(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, clock_set_by_s: float
) -> None:
    driver = stage.driver
    running = stage.start(SCRIPT, checkpoint_url=f"slow://{stage.folder}/far", write_bytes_per_s=BELIEVED)
    assert driver.wait_for("shard")["step"] == 1
    running.instruct({"type": "preemption", "deadline_at": time.time() + 60.0})
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() + clock_set_by_s)
    (code,) = stage.folder.glob("work/**/train.py")
    (code.parent / "go-on").touch()

    assert driver.wait_for("relayed")["step"] == 3, "it would take longer than the machine is there"
    assert driver.wait_for("shard", 2)["step"] == 2, "a small one is there in time by itself"
    assert stage.end()["exit_code"] == 0
    assert (far(stage, 2), far(stage, 3)) == ([SMALL], []), "the machine may go before the storage has it"

    widen()
    assert driver.wait_for("shard", 3)["step"] == 3
    assert far(stage, 3) == [BIG]
