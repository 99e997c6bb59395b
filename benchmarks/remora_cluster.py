"""A head, nodes and drivers of ours without the service around them: what a benchmark measures is the attempt alone."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ray

from cluster.local.connection import connect
from cluster.local.head import start_head, stop_head, wait_until_reachable
from cluster.local.provider import LocalProvider
from cluster.provider import NodeRequest
from cluster.ray.drain import drain
from cluster.ray.membership import RayMembership
from remora.code.bundle import pack
from remora.spec.worker_sizes import WorkerSizes
from service.settings import Settings
from trainers.launch import RayLauncher
from trainers.plan import AttemptPlan, DriverGone, Record


class RemoraCluster:
    """One head and some nodes of one CPU each, in a folder of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._head = start_head(home)
        wait_until_reachable(home, self._head)
        self.provider = LocalProvider(home, self._head.ray_address)

    def connect(self) -> None:
        """Make this process a driver of the cluster."""
        connect(self.home, self._head.ray_address)

    def add_node(self) -> str:
        """Start one more node; returns its id."""
        node_id = f"node_{uuid.uuid4().hex}"
        self.provider.create(NodeRequest(node_id=node_id, pool="bench", resources={"CPU": 1.0}))
        return node_id

    def kill(self, node_id: str) -> float:
        """SIGKILL to every process of a node at once; returns when that was, in seconds since 1970.

        They are looked for before: on a machine with many processes that takes a part of a second.
        """
        found = self.provider.processes(node_id)
        killed_at = time.time()
        for process in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        self.provider.kill(node_id)
        return killed_at

    def drain(self, node_id: str, deadline_at: float) -> None:
        """Give notice that the node goes at that time."""
        member = RayMembership().observe()[node_id]
        drain(member.ray_node_id, "benchmark", deadline_at)

    def wait_for_nodes(self, count: int) -> None:
        """Return when that number of nodes are members."""
        until(lambda: sum(m.is_alive for m in RayMembership().observe().values()) >= count, 180)

    def stop(self) -> None:
        """End everything."""
        ray.shutdown()
        for node_id in self.provider.node_ids():
            self.provider.delete(node_id)
        stop_head(self.home)


class Run:
    """One attempt, followed record by record in a thread."""

    def __init__(self, cluster: RemoraCluster, folder: Path, command: list[str], **plan: Any) -> None:
        storage = cluster.home / "storage"
        packed = cluster.home / "bundle.zip"
        bundle = pack(folder, packed)
        (storage / "bundles").mkdir(parents=True, exist_ok=True)
        shutil.copy(packed, storage / "bundles" / f"{bundle.digest.removeprefix('sha256:')}.zip")
        attempt_id = f"att_{uuid.uuid4().hex}"
        wanted: dict[str, Any] = {
            "job_id": f"job_{uuid.uuid4().hex}",
            "attempt_id": attempt_id,
            "attempt": 1,
            "command": command,
            "bundle": bundle.digest,
            "storage_url": str(storage),
            "checkpoint_url": str(storage),
            "backend": "ddp",
            "sizes": WorkerSizes(1, 3),
            "resources": {"CPU": 1.0},
            "warm_modules": Settings(home=cluster.home).warm,
        }
        self.plan = AttemptPlan(**{**wanted, **plan})
        self.records: list[Record] = []
        self._launcher = RayLauncher()
        self._is_closed = threading.Event()
        self.started_at = time.time()
        self._launcher.start(self.plan)
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    @property
    def steps(self) -> list[tuple[float, int, int]]:
        """Time, step and world size of every reported step, in the order of arrival."""
        metrics = [record for record in list(self.records) if record.kind == "metric"]
        return [(record.at, record.body["step"], record.body["world_size"]) for record in metrics]

    def events(self, kind: str) -> list[Record]:
        """Events of one kind."""
        return [r for r in list(self.records) if r.kind == "event" and r.body["kind"] == kind]

    @property
    def end(self) -> dict[str, Any] | None:
        """Body of the last record, once it is there."""
        return next((record.body for record in list(self.records) if record.kind == "ended"), None)

    def close(self) -> None:
        """End the attempt."""
        self._is_closed.set()
        self._thread.join()
        self._launcher.kill(self.plan.attempt_id)

    def _follow(self) -> None:
        launcher, attempt_id = self._launcher, self.plan.attempt_id
        while self.end is None and not self._is_closed.is_set():
            answer = launcher.poll([attempt_id], {attempt_id: len(self.records)}).get(attempt_id, [])
            if isinstance(answer, DriverGone):
                return
            self.records.extend(answer)
            if not answer:
                time.sleep(0.02)  # the rate of asking, not a wait for anything


@contextlib.contextmanager
def remora_cluster(nodes: int) -> Iterator[RemoraCluster]:
    """A cluster of that number of nodes that this process is connected to, ended whatever happens."""
    with tempfile.TemporaryDirectory(prefix="remora-bench-") as folder:
        cluster = RemoraCluster(Path(folder))
        kept = dict(os.environ)
        try:
            for _ in range(nodes):
                cluster.add_node()
            cluster.connect()
            cluster.wait_for_nodes(nodes)
            yield cluster
        finally:
            cluster.stop()
            os.environ.clear()
            os.environ.update(kept)


def until(look: Callable[[], Any], timeout_s: float) -> Any:
    """Poll until it is so; returns what was seen.  Raises TimeoutError."""
    give_up_at = time.monotonic() + timeout_s
    while not (seen := look()):
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"not within {timeout_s:g} s")
        time.sleep(0.02)
    return seen
