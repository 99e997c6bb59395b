"""A driver for tests: starts workers, ends, freezes and adds them, and forms their groups as the real one does."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from remora.free_ports import free_port
from remora.script import channel
from tests.golden.forks import PROCESSES
from tests.golden.gate import Gate
from tests.golden.worker import BitFlip, Job, Mishap, work
from trainers.driver.regrouping import WorkerLocation, assign_ranks

#: Seconds that anything may take on a busy machine.
PATIENCE_S = 180.0
#: Steps that workers may be ahead of the one that the test waits for: it strikes in the middle of any of them.
LEAD = 4


@dataclass
class Worker:
    """One process with the other end of its channel."""

    slot: int
    process: Any
    end: socket.socket
    #: Newest step that it said it is parked after; None while it trains.
    parked: int | None = None
    heard: list[channel.Message] = field(default_factory=list)
    is_gone: bool = False
    #: It was started to join, and is in no group yet.
    waits: bool = False
    #: Its channel is closed, and all that came through it was heard.
    is_silent: bool = False

    def say(self, kind: str, **fields: object) -> None:
        with contextlib.suppress(OSError):
            self.end.sendall(channel.encode({"type": kind, **fields}))


class Driver:
    """Runs one job; use it in a `with` block."""

    #: Body of every worker's process.
    body: Callable[..., None] = staticmethod(work)

    def __init__(
        self, job: Job, out: Path, *, mishap: Mishap | BitFlip | None = None, **variables: str
    ) -> None:
        self.job = job
        self.out = out
        self._mishap = mishap
        self._variables = variables
        self.workers: list[Worker] = []
        self.generation = 1
        #: Sizes of all groups, in order.
        self.world_sizes: list[int] = []
        self._changed = threading.Condition()
        #: Newest step that rank 0 reported.
        self.step = 0
        self.losses: dict[int, float] = {}
        #: What the script reported as `norm`, by step.
        self.norms: dict[int, float] = {}
        self.causes: list[str] = []
        #: Slots that have written their files, by the checkpoint's step.
        self._written: dict[int, set[int]] = {}
        out.mkdir(exist_ok=True)
        self._gate = Gate(out)
        if mishap is None:
            self._gate.limit = LEAD

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            self._signal(worker, signal.SIGKILL)
            worker.process.join()
            worker.end.close()

    # --- workers ----------------------------------------------------------------------------------------------------

    def start(self, count: int, nodes: int = 1) -> None:
        """The first group; the variables of its workers name that many nodes."""
        port = free_port()
        locations = [
            WorkerLocation(slot, f"node-{slot * nodes // count}", "127.0.0.1", slot) for slot in range(count)
        ]
        for one in assign_ranks(locations):
            self._spawn(self._environment(one, port))
        self.world_sizes.append(count)

    def add(self) -> Worker:
        """A worker that is ready to join; `admit` takes it into the next group."""
        worker = self._spawn({"REMORA_JOIN": "1"})
        worker.waits = True
        self.wait(lambda: worker.parked is not None, "the new worker is ready")
        assert worker.parked == -1
        return worker

    def admit(self, worker: Worker) -> None:
        """Let the workers park at a step, and go on with this one too."""
        self.hold_and_part()
        worker.waits = False
        self.regroup()

    def kill(self, slot: int) -> None:
        self.workers[slot].is_gone = True
        self._signal(self.workers[slot], signal.SIGKILL)
        self.workers[slot].process.join()

    def freeze(self, slot: int) -> None:
        self.workers[slot].is_gone = True
        self._signal(self.workers[slot], signal.SIGSTOP)

    @staticmethod
    def _signal(worker: Worker, number: int) -> None:
        """To the worker and the loader processes that it started."""
        with contextlib.suppress(ProcessLookupError):
            try:
                os.killpg(worker.process.pid, number)
            except ProcessLookupError:
                # It was just started, and leads no group yet.
                os.kill(worker.process.pid, number)

    # --- groups -----------------------------------------------------------------------------------------------------

    def hold_and_part(self) -> None:
        """Let all workers agree on a step and park after it."""
        boundary = self._agree("regroup")
        self.wait(lambda: all(worker.parked is not None for worker in self.living), "all are parked")
        assert {worker.parked for worker in self.living} == {boundary}, "all at the agreed step"

    def checkpoint(self) -> int:
        """Let all workers write a checkpoint of the same step; returns it."""
        boundary = self.ask_for_checkpoint()
        self.await_written(boundary)
        return boundary

    def ask_for_checkpoint(self) -> int:
        """Let all workers begin a checkpoint of the same step; returns it."""
        return self._agree("checkpoint")

    def await_written(self, step: int) -> None:
        """Wait until all workers have handed over their files of a checkpoint."""
        slots = {worker.slot for worker in self.living}
        self.wait(lambda: slots <= self.written(step), "all have written")

    def written(self, step: int) -> set[int]:
        """Slots that have handed over their files of a checkpoint."""
        return self._written.get(step, set())

    def _agree(self, action: str) -> int:
        living = self.living
        for worker in living:
            worker.heard.clear()
            worker.say("hold", token=1)
        boundary = 1 + max(int(self.hear(worker, "held")["boundary"]) for worker in living)
        self._gate.limit = max(self._gate.limit, boundary + 1)
        for worker in living:
            worker.say("decide", token=1, boundary=boundary, action=action, stop=action == "regroup")
        return boundary

    def recover(self) -> None:
        """Let everybody park who can, and go on with them."""
        self.part()
        self.regroup()

    def part(self) -> None:
        """Have all workers leave the group, and wait until they have."""
        for worker in self.living:
            if worker.parked is None:
                worker.say("part", generation=self.generation)
        # Who stands at the gate parks before the next step.
        self._gate.limit = max(self._gate.limit, self.step + 2 * LEAD)
        self.wait(lambda: all(worker.parked is not None for worker in self.living), "the living are parked")

    def regroup(self) -> None:
        """The next group, of everybody who lives and is parked."""
        members = self.assign()
        for worker in members:
            assert self.hear(worker, "joined")["generation"] == self.generation

    def assign(self) -> list[Worker]:
        """Assign new ranks to all workers that live and are parked."""
        members = sorted(self.living, key=lambda worker: worker.parked == -1)
        self.generation += 1
        port = free_port()
        for worker in members:
            worker.parked = None
            worker.heard.clear()
        locations = [WorkerLocation(one.slot, "node-0", "127.0.0.1", one.slot) for one in members]
        for one in assign_ranks(locations):
            self.workers[one.slot].say("regroup", generation=self.generation, **self._place(one, port))
        self.world_sizes.append(len(members))
        return members

    def finish(self) -> None:
        """Wait for the end of all workers."""
        self._gate.open()
        for worker in self.living:
            worker.process.join(PATIENCE_S)
            assert worker.process.exitcode == 0, f"slot {worker.slot} ended with {worker.process.exitcode}"

    # --- waiting ----------------------------------------------------------------------------------------------------

    @property
    def living(self) -> list[Worker]:
        return [worker for worker in self.workers if not worker.is_gone and not worker.waits]

    def reach(self, step: int) -> None:
        """Wait until a step was reported."""
        self._gate.limit = step + LEAD
        self.wait(lambda: self.step >= step, f"step {step} is reported")

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        give_up_at = time.monotonic() + PATIENCE_S
        with self._changed:
            while not self._changed.wait_for(condition, 0.5):
                failed = [one.slot for one in self.living if one.process.exitcode]
                assert not failed, f"slot {failed} failed, waiting until {what}"
                assert time.monotonic() < give_up_at, f"it did not happen that {what}"

    def await_ends(self) -> None:
        """Wait until all workers have ended, however they do, and all that they said is there."""
        self._gate.open()
        for worker in self.workers:
            worker.is_gone = True
            worker.process.join(PATIENCE_S)
        self.wait(lambda: all(worker.is_silent for worker in self.workers), "all channels are closed")

    def hear(self, worker: Worker, kind: str) -> channel.Message:
        """The next message of a kind."""

        def found() -> list[channel.Message]:
            return [message for message in worker.heard if message["type"] == kind]

        self.wait(lambda: bool(found()), f"slot {worker.slot} says {kind}")
        return found()[0]

    # --- inside -----------------------------------------------------------------------------------------------------

    def _spawn(self, variables: dict[str, str]) -> Worker:
        ours, theirs = socket.socketpair()
        slot = len(self.workers)
        scratch = self.out / f"scratch-{slot}"
        scratch.mkdir()
        environment = {
            "GLOO_SOCKET_IFNAME": "lo",
            "REMORA_GENERATION": str(self.generation),
            "REMORA_SCRATCH_DIR": str(scratch),
            **self._variables,
            **variables,
        }
        process = PROCESSES.Process(
            target=self.body, args=(self.job, slot, str(self.out), environment, theirs, self._mishap)
        )
        process.start()
        theirs.close()
        worker = Worker(slot, process, ours)
        self.workers.append(worker)
        threading.Thread(target=self._read, args=(worker,), daemon=True).start()
        return worker

    def _place(self, one: Any, port: int) -> dict[str, Any]:
        return {
            "rank": one.rank,
            "world_size": one.world_size,
            "local_rank": one.local_rank,
            "local_world_size": one.local_world_size,
            "node_rank": one.node_rank,
            "master_addr": "127.0.0.1",
            "master_port": port,
        }

    def _environment(self, one: Any, port: int) -> dict[str, str]:
        return {name.upper(): str(value) for name, value in self._place(one, port).items()}

    def _read(self, worker: Worker) -> None:
        decoder = channel.Decoder()
        with contextlib.suppress(OSError):
            while received := worker.end.recv(65536):
                for message in decoder.feed(received):
                    self._take(worker, message)
        with self._changed:
            worker.is_silent = True
            self._changed.notify_all()

    def _take(self, worker: Worker, message: channel.Message) -> None:
        with self._changed:
            worker.heard.append(message)
            if message["type"] == "parted":
                worker.parked = message["step"]
                self.causes.append(message["why"])
            elif message["type"] == "report":
                self.step = max(self.step, message["step"])
                self.losses[message["step"]] = message["metrics"]["loss"]
                self.norms[message["step"]] = message["metrics"].get("norm", 0.0)
            elif message["type"] == "checkpoint":
                folder = self.out / f"scratch-{worker.slot}" / message["folder"]
                whole = self.out / f"checkpoint-{message['step']}"
                whole.mkdir(exist_ok=True)
                for path in folder.iterdir():
                    assert not (whole / path.name).exists(), "every rank has file names of its own"
                    path.rename(whole / path.name)
                self._written.setdefault(message["step"], set()).add(worker.slot)
                worker.say("taken", step=message["step"], park=False)
            self._changed.notify_all()

    def weights(self) -> dict[str, torch.Tensor]:
        """The weights that the workers hold at the end, which are the same on each."""
        held = [torch.load(self.out / f"weights-{one.slot}.pt", weights_only=True) for one in self.living]
        for other in held[1:]:
            assert all(torch.equal(held[0][name], other[name]) for name in other)
        weights: dict[str, torch.Tensor] = held[0]
        return weights

    def record(self) -> dict[int, list[int]]:
        """Samples that the models saw, by step: sorted, and those of a repeated try once."""
        steps: dict[int, set[int]] = {}
        for step, samples in self.tries():
            steps.setdefault(step, set()).update(samples)
        return {step: sorted(samples) for step, samples in sorted(steps.items())}

    def tries(self) -> Iterator[tuple[int, list[int]]]:
        """Every micro-batch that any worker began, with its step."""
        for path in sorted(self.out.glob("samples-*.jsonl")):
            for text in path.read_text().splitlines():
                with contextlib.suppress(ValueError):  # the last line of a killed worker
                    step, samples = json.loads(text)
                    yield step, samples
