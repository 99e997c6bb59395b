"""What a checkpoint of 200 MB of state costs the training loop, beside the peers in the same process.

The loop trains a network of 16.8 million parameters with AdamW on one core.  A checkpoint is written in one way after
the other, alternately; the stall is by how much the time from before the checkpoint to the end of the next optimizer
step exceeds that of a step without any, as medians.  What goes on writing behind a step, for Remora in a process that
plays the supervisor, is waited for before the next measurement, so that no way pays for another one.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.nn import functional

from remora.script import channel
from remora.torch.layout import Writer
from remora.torch.optimizers import Optimizers
from remora.torch.saving import Saving
from remora.torch.state import LoopState, Progress
from trainers.checkpoints.catalog import Catalog
from trainers.confined_folders import ConfinedFolder
from trainers.storage import Storage
from trainers.supervisor.snapshot_memory import snapshot_space

#: Width of each of four square layers: 16.8 million parameters, 67 MB, and twice that for AdamW.
_WIDTH = 2048
#: Samples in a step of about one second on one core.
_BATCH = 1024
_ROUNDS = 7


def run() -> dict[str, float]:
    """Seconds of a step (`step_s`), and by how much a checkpoint of each kind lengthens it; in a process of its own."""
    return in_own_process("benchmarks.stall")


def in_own_process(module: str) -> dict[str, float]:
    """What a module prints as JSON in its last line, run with one thread as a worker of one CPU."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", module]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    """Measure here, and print the result as JSON."""
    torch.set_num_threads(1)
    with supervised() as (folder, stored):
        print(json.dumps(_Bench(folder, stored).measure()))


@contextlib.contextmanager
def supervised() -> Iterator[tuple[Path, Any]]:
    """Make this process one with a supervisor; a folder on the disk, and where the steps come that are stored."""
    ours, theirs = socket.socketpair()
    stored, storing = multiprocessing.Pipe(duplex=False)
    with (
        tempfile.TemporaryDirectory(prefix="stall-") as folder,
        snapshot_space(f"stall-{os.getpid()}", 1) as space,
    ):
        if space is None:
            sys.exit("there is no file system in memory here (/dev/shm), which this measures")
        supervisor = multiprocessing.Process(target=supervise, args=(ours, storing, space.staging, folder))
        supervisor.start()
        ours.close()
        os.environ.update(
            space.variables(), REMORA_SCRATCH_DIR=folder, **{channel.FD_VARIABLE: str(theirs.detach())}
        )
        try:
            yield Path(folder), stored
        finally:
            supervisor.kill()
            supervisor.join()


def supervise(end: socket.socket, storing: Any, staging: Path, folder: str) -> None:
    """Take checkpoints and store them, as a worker's supervisor does; reports the step of each that is stored."""
    catalog = Catalog(Storage(f"{folder}/storage"), "job_1")
    decoder = channel.Decoder()
    disk = Path(folder)
    places = {"scratch": (disk, disk), "memory": (staging.parent / "script", staging)}
    while received := end.recv(65536):
        for message in decoder.feed(received):
            if message["type"] == "checkpoint":
                step = message["step"]
                come_from, go_to = places[message["room"]]
                taken = go_to / f"taken-{step}"
                (come_from / message["folder"]).rename(taken)
                end.sendall(channel.encode({"type": "taken", "step": step}))
                with ConfinedFolder(taken) as confined:
                    catalog.put(confined, step, 1, 1, 0)
                shutil.rmtree(taken)
                shutil.rmtree(f"{folder}/storage")
                storing.send(step)


class _Bench:
    """One network in training, and the ways to write it."""

    def __init__(self, folder: Path, stored: Any) -> None:
        torch.manual_seed(1)
        self._folder = folder
        self._stored = stored
        layers = [layer for _ in range(4) for layer in (nn.Linear(_WIDTH, _WIDTH), nn.ReLU())]
        self._model = nn.Sequential(*layers)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-4)
        self._batch = torch.randn(_BATCH, _WIDTH)
        optimizers = Optimizers(self._model, self._optimizer)
        self._state = LoopState({"model": self._model, **optimizers.parts}, {})
        self._saving = Saving(self._model, optimizers, torch.device("cpu"))
        self._number = 0
        store = dist.TCPStore("127.0.0.1", 0, 1, is_master=True)
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)

    def measure(self) -> dict[str, float]:
        ways: dict[str, Callable[[], Callable[[], Any]]] = {
            "step_s": lambda: lambda: None,
            "remora_s": self._remora,
            "torch_save_s": self._torch_save,
            "async_save_s": self._async_save,
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(3):
            self._step()
        for round_number in range(_ROUNDS + 1):
            for name, save in ways.items():
                began = time.perf_counter()
                finish = save()
                self._step()
                taken = time.perf_counter() - began
                finish()
                if round_number > 0:  # the first round warms everything up
                    times[name].append(taken)
        step_s = statistics.median(times.pop("step_s"))
        stalls = {name: statistics.median(one) - step_s for name, one in times.items()}
        return {**{name: round(one, 4) for name, one in stalls.items()}, "step_s": round(step_s, 4)}

    def _step(self) -> None:
        functional.mse_loss(self._model(self._batch), self._batch).backward()
        self._optimizer.step()
        self._optimizer.zero_grad()

    def _live(self) -> dict[str, Any]:
        return {"model": self._model.state_dict(), "optimizer": self._optimizer.state_dict()}

    def _remora(self) -> Callable[[], Any]:
        self._number += 1
        state = self._state.capture(Progress(self._number, 0, self._number))
        self._saving.save(self._number, state, Writer(), in_background=True)
        stored: Callable[[], Any] = self._stored.recv
        return stored

    def _torch_save(self) -> Callable[[], Any]:
        path = self._folder / "torch.pt"
        with path.open("wb") as file:
            torch.save(self._live(), file)
            file.flush()
            os.fsync(file.fileno())
        return path.unlink

    def _async_save(self) -> Callable[[], Any]:
        path = self._folder / "dcp"
        future = dcp.async_save(self._live(), checkpoint_id=path)

        def finish() -> None:
            future.result()
            shutil.rmtree(path)

        return finish


if __name__ == "__main__":
    main()
