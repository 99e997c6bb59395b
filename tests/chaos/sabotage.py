"""A job that is sabotaged: attempts follow each other as the service would start them, and nodes are replaced."""

from __future__ import annotations

import dataclasses
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from cluster.ray.drain import drain
from cluster.ray.membership import RayMembership
from tests.chaos.faults import Fault, Kind
from tests.chaos.script import TRAIN
from tests.integration.network.lan import Lan
from tests.integration.trainers.lab import Lab, Running, processes_of, until

#: Workers, each on a node of its own.
WORKERS = 3
#: Seconds within which anything must have happened on a busy machine, the start of an attempt included.
_PATIENCE_S = 150.0
#: How an attempt may end, and the blow without which it does not; all of its workers must have been struck.
_ENDS_BY: dict[str, set[Kind]] = {
    "node_lost": {"kill", "drain", "freeze", "cut", "blackout"},
    "supervisor_lost": {"supervisor"},
    "signal": {"worker"},
}


@dataclass(frozen=True)
class Worker:
    """One worker that trains."""

    node_id: str
    supervisor: psutil.Process
    #: The user's own process.
    script: psutil.Process


class Job:
    """The script on three nodes, until `finish`."""

    def __init__(self, lab: Lab, lan: Lan | None, out: Path) -> None:
        self._lab = lab
        self._lan = lan
        self.out = out
        #: Nodes that were struck, and are not to be struck again.
        self._struck: set[str] = set()
        #: Nodes that are gone or go, to be deleted once the others train without them.
        self._leaving: list[str] = []
        #: Blows from which it has not recovered yet, and how many workers it had before the first of them.
        self._blows: list[Kind] = []
        self._size_before = 0
        #: What was done, for the search for the reason why it failed.
        self.reported: list[str] = []
        lab.nodes(WORKERS)
        plan = lab.plan(
            {"train.py": TRAIN}, "python", "train.py", str(out), "0.01", "0",
            min_workers=1, max_workers=WORKERS, checkpoint_interval_s=1.0,
        )  # fmt: skip
        self.attempts: list[Running] = [lab.start(plan)]

    @property
    def run(self) -> Running:
        """The attempt of now."""
        return self.attempts[-1]

    # --- the part of the service

    def until(self, seen: Callable[[], Any], what: str) -> None:
        """Wait until it is so; an attempt that ends meanwhile is followed by the next one."""

        def look() -> Any:
            # It may be another attempt than the one on which the waiting began.
            self.run.poll()
            assert self.run.gone is None, self.run.gone
            if self.run.ended is not None and self.run.ended["end_reason"] != "completed":
                self._follow()
            return seen()

        try:
            until(look, what, _PATIENCE_S)
        except AssertionError as error:
            reported = [f"{one.kind} {one.body}" for one in self.run.records if one.kind != "metric"]
            error.add_note("\n".join(reported)[-6000:])
            raise

    def _follow(self) -> None:
        over = self.run
        assert over.ended is not None
        blows, reason = set(self._blows), over.ended["end_reason"]
        assert blows & _ENDS_BY.get(reason, set()), over.ended
        none_is_left = "blackout" in blows or len(self._blows) >= self._size_before
        assert none_is_left, f"others hold the state: {over.ended}"
        self.reported.append(f"attempt {over.plan.attempt} ended: {over.ended['message']}")
        self.reported.append(over.text("stderr")[-2000:])
        over.close()
        number = over.plan.attempt + 1
        self.attempts.append(
            self._lab.start(
                dataclasses.replace(
                    over.plan,
                    attempt=number,
                    attempt_id=f"{over.plan.attempt_id}_{number}",
                    previous_step=max((one.step for one in self.attempts), default=0) or None,
                )
            )
        )

    # --- the course of a run

    def trains(self, steps: int, workers: int) -> None:
        """Wait until that number of workers that were not struck have done some steps."""
        self.until(lambda: self._size >= workers and len(self._unharmed()) >= workers, f"{workers} train")
        begun = self._mark()
        self.until(lambda: self._steps_since(begun) >= steps, f"they do {steps} steps")

    def recovers_from(self, change: tuple[int, int]) -> None:
        """Wait until another group does steps than the one that was struck; see `change`."""
        self.until(lambda: self.change > change, "another group takes over")
        begun = self._mark()
        self.until(lambda: self._steps_since(begun) >= 2, "it does steps")
        self._blows.clear()

    def finish(self) -> None:
        """Let it end."""
        (self.out / "finish").touch()

        def is_through() -> bool:
            ended = self.run.ended
            return ended is not None and ended["end_reason"] == "completed"

        self.until(is_through, "the job completes")

    @property
    def change(self) -> tuple[int, int]:
        """Attempt, and number of groups that it has had."""
        groups = self.run.events("worker_group.started") + self.run.events("worker_group.regrouped")
        return len(self.attempts), len(groups)

    @property
    def _size(self) -> int:
        metrics = self.run.bodies("metric")
        return metrics[-1]["world_size"] if metrics else 0

    def _mark(self) -> tuple[int, int]:
        return len(self.attempts), len(self.run.bodies("metric"))

    def _steps_since(self, mark: tuple[int, int]) -> int:
        attempts, metrics = mark
        return len(self.run.bodies("metric")) - (metrics if len(self.attempts) == attempts else 0)

    # --- the workers

    def _workers(self) -> list[Worker]:
        found = []
        for shim in processes_of(self.run.plan.attempt_id):
            try:
                children, seen = shim.children(), shim.environ()
                if "command_shim.py" in " ".join(shim.cmdline()) and children:
                    supervisor = psutil.Process(int(seen["REMORA_SUPERVISOR"]))
                    found.append(Worker(seen["REMORA_NODE_ID"], supervisor, children[0]))
            except psutil.NoSuchProcess:
                continue
        return sorted(found, key=lambda one: one.node_id)

    def _unharmed(self) -> list[Worker]:
        return [one for one in self._workers() if one.node_id not in self._struck]

    def strike(self, fault: Fault) -> None:
        """Inject a fault; returns when it has fired."""
        workers = self._unharmed()
        victim = workers[fault.victim % len(workers)]
        self._size_before = self._size_before if self._blows else self._size
        self._blows.append(fault.kind)
        self.reported.append(f"{fault.kind} {victim.node_id} at step {self.run.step}")
        match fault.kind:
            case "kill":
                self._kill(victim.node_id)
            case "blackout":
                for node_id in {one.node_id for one in self._workers()} | {victim.node_id}:
                    self._kill(node_id)
            case "drain":
                self._drain(victim.node_id, fault.deadline_s)
            case "cut" if self._lan is not None:
                self._cut(self._lan, victim)
            case "freeze" | "cut":
                self._freeze(victim)
            case "supervisor":
                _end(victim.supervisor)
            case "worker":
                _end(victim.script)

    def clear(self, fault: Fault) -> None:
        """What becomes of struck nodes when the others train without them."""
        for node_id in self._leaving:
            if fault.thaws:
                self._lab.provider.thaw(node_id)
                self._heal(node_id)
            else:
                self._lab.provider.kill(node_id)
                self._lab.provider.delete(node_id)
        self._leaving.clear()

    def close(self) -> None:
        """Struck nodes are ended, whatever has become of them, and then what is left of the attempts."""
        for node_id in self._struck:
            self._lab.provider.kill(node_id)
            self._lab.provider.delete(node_id)
        self._lab.close_attempts()

    def _kill(self, node_id: str) -> None:
        self._lab.provider.kill(node_id)
        assert self._lab.provider.processes(node_id) == ()
        self._lab.provider.delete(node_id)
        self._replace(node_id)

    def _drain(self, node_id: str, deadline_s: float) -> None:
        drain(RayMembership().observe()[node_id].ray_node_id, "the cloud takes it", time.time() + deadline_s)
        until(lambda: node_id not in self._lab.members(), "the node drains")
        self._leaving.append(node_id)
        self._replace(node_id)

    def _freeze(self, victim: Worker) -> None:
        self._lab.provider.freeze(victim.node_id)
        # A fault before this one may have ended the script, and the process that would reap it stands still now.
        until(lambda: _is_dead(victim.script) or _stands_still(victim.script), "it stands still")
        self._leaving.append(victim.node_id)
        self._replace(victim.node_id)

    def _cut(self, lan: Lan, victim: Worker) -> None:
        member = RayMembership().observe()[victim.node_id]
        lan.cut(member.address)
        with pytest.raises(TimeoutError):
            socket.create_connection((member.address, member.raylet_port), timeout=1.0).close()
        self._leaving.append(victim.node_id)
        self._replace(victim.node_id)

    def _heal(self, node_id: str) -> None:
        addresses = [node.address for node in self._lab.provider.list() if node.node_id == node_id]
        if self._lan is not None:
            for address in addresses:
                self._lan.heal(address)

    def _replace(self, node_id: str) -> None:
        if node_id not in self._struck:
            self._struck.add(node_id)
            self._lab.add_node(wait=False)


def _end(process: psutil.Process) -> None:
    process.kill()
    until(lambda: _is_dead(process), "it is dead")


def _stands_still(process: psutil.Process) -> bool:
    return bool(process.status() == psutil.STATUS_STOPPED)


def _is_dead(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE or not process.is_running()
    except psutil.NoSuchProcess:
        return True
