"""A real cluster, real drivers, and the service's part played by the test: start, poll, stop, kill."""

from __future__ import annotations

import contextlib
import json
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import ray

from cluster.local.connection import connect
from cluster.local.folders import ClusterFolders
from cluster.local.head import start_head, stop_head, wait_until_reachable
from cluster.local.provider import LocalProvider
from cluster.policies.placement import CAPACITY_LABEL, FABRIC_LABEL
from cluster.provider import NodeRequest
from cluster.ray.membership import RayMembership
from remora.code.bundle import pack
from remora.states import EndReason
from tests.attempt_plans import plan_of
from trainers.environments.build import KeptEnvironment, kept_environments
from trainers.launch import RayLauncher
from trainers.plan import AttemptPlan, DriverGone, Record
from trainers.secret_values import chunks_of

#: Seconds within which anything must have happened on a busy machine.
PATIENCE_S = 180.0


def until(seen: Callable[[], Any], what: str, timeout_s: float = PATIENCE_S) -> Any:
    """Poll until it is so; returns what was seen."""
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    while not (value := seen()):
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        pause.wait(0.05)
    return value


def processes_of(attempt_id: str) -> list[psutil.Process]:
    """Every living process that was started with the attempt's id in its environment."""
    mark = f"REMORA_ATTEMPT_ID={attempt_id}".encode()
    found = []
    for process in psutil.process_iter():
        try:
            if mark in Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0"):
                found.append(process)
        except OSError:
            continue
    return [one for one in found if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


class Running:
    """One attempt, followed as the service follows it."""

    def __init__(self, plan: AttemptPlan) -> None:
        self.plan = plan
        self.launcher = RayLauncher()
        self.records: list[Record] = []
        self.gone: DriverGone | None = None

    def poll(self) -> None:
        """Take what is new; every record comes once and in order."""
        after = len(self.records)
        answer = self.launcher.poll([self.plan.attempt_id], {self.plan.attempt_id: after})
        new = answer.get(self.plan.attempt_id, [])
        if isinstance(new, DriverGone):
            self.gone = new
            return
        assert [record.seq for record in new] == list(range(after + 1, after + 1 + len(new)))
        self.records.extend(new)

    def until(self, seen: Callable[[], Any], what: str, timeout_s: float = PATIENCE_S) -> Any:
        """Poll until it is so.  Fails with what was reported so far."""

        def look() -> Any:
            self.poll()
            return seen()

        try:
            return until(look, what, timeout_s)
        except AssertionError as error:
            reported = "\n".join(f"{one.kind} {one.body}" for one in self.records if one.kind != "metric")
            raise AssertionError(f"{error}\n{reported[-6000:]}") from None

    def keep(self, kept: dict[str, str], token: int = 1) -> None:
        """Send the driver for which job nodes are kept, and wait until it has taken that."""
        until(lambda: self.launcher.keep(self.plan.attempt_id, kept, token), "the driver hears of kept nodes")

    def end(self, timeout_s: float = PATIENCE_S) -> dict[str, Any]:
        """Wait for the last word."""
        body: dict[str, Any] = self.until(lambda: self.ended, "the attempt ends", timeout_s)
        return body

    @property
    def ended(self) -> dict[str, Any] | None:
        last = self.records[-1] if self.records else None
        return last.body if last is not None and last.kind == "ended" else None

    def bodies(self, kind: str) -> list[dict[str, Any]]:
        """What records of that kind say; a text of several lines counts as several."""
        bodies = [record.body for record in self.records if record.kind == kind]
        if kind != "log":
            return bodies
        return [{**body, "text": line} for body in bodies for line in body["text"].split("\n")]

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [body for body in self.bodies("event") if body["kind"] == kind]

    def text(self, stream: str | None = None) -> str:
        lines = [body for body in self.bodies("log") if stream in (None, body["stream"])]
        return "\n".join(body["text"] for body in lines)

    @property
    def progress(self) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        for body in self.bodies("progress"):
            merged.update(body)
        return merged

    @property
    def step(self) -> int:
        return max((body["step"] for body in self.bodies("metric")), default=0)

    @property
    def checkpoints(self) -> list[int]:
        return [body["step"] for body in self.bodies("checkpoint") if not body.get("deleted")]

    @property
    def world_sizes(self) -> list[int]:
        return [body["data"]["world_size"] for body in self.events("worker_group.started")]

    def shims(self) -> dict[int, psutil.Process]:
        """Shim of each rank."""
        found: dict[int, psutil.Process] = {}
        for one in processes_of(self.plan.attempt_id):
            # The first process of a shim goes once it has detached itself.
            with contextlib.suppress(psutil.NoSuchProcess):
                # A sidecar has a shim, but no rank.
                if "command_shim.py" in " ".join(one.cmdline()) and "RANK" in one.environ():
                    found[int(one.environ()["RANK"])] = one
        return found

    def child(self, rank: int) -> psutil.Process:
        """The user's own process of a rank."""
        child: psutil.Process = until(lambda: self._shim(rank).children(), f"rank {rank} runs")[0]
        return child

    def _shim(self, rank: int) -> psutil.Process:
        # A shim detaches itself at its start: for a moment its first process is gone and the next one not seen yet.
        shim: psutil.Process = until(lambda: self.shims().get(rank), f"rank {rank} has a shim")
        return shim

    def supervisor(self, rank: int) -> psutil.Process:
        """The Ray worker that supervises a rank."""
        return psutil.Process(int(self._shim(rank).environ()["REMORA_SUPERVISOR"]))

    def node_of(self, rank: int) -> str:
        """Our node on which a rank runs."""
        return str(self.supervisor(rank).environ()["REMORA_NODE_ID"])

    def close(self) -> None:
        """What the service does with every attempt that is over; then nothing of it may be left."""
        self.launcher.kill(self.plan.attempt_id)
        until(
            lambda: not processes_of(self.plan.attempt_id),
            f"nothing is left of {self.plan.attempt_id}: {processes_of(self.plan.attempt_id)}",
            20.0,
        )


class Lab:
    """The cluster and its storage."""

    def __init__(self, home: Path, ray_address: str, folder: Path) -> None:
        self.provider = LocalProvider(home, ray_address)
        self.storage = folder / "storage"
        self._home = home
        self._folder = folder
        self._attempts: list[Running] = []
        self._made = 0

    def nodes(self, count: int) -> list[str]:
        """Have exactly that number of nodes of one CPU on which no worker runs."""
        for node in self.provider.list():
            if not node.is_running or self._is_leaving(node.node_id):
                self.provider.delete(node.node_id)
        living = [node.node_id for node in self.provider.list()]
        while len(living) < count:
            living.append(self.add_node(wait=False))
        for surplus in living[count:]:
            self.provider.delete(surplus)
        until(lambda: self.members() == set(living[:count]), f"{count} nodes are there")
        until(
            lambda: ray.available_resources().get("CPU", 0.0) == count, f"{count} CPUs are free", PATIENCE_S
        )
        return living[:count]

    @property
    def next_node(self) -> str:
        """The node that is added next."""
        return f"node_lab{self._made + 1}"

    def add_node(
        self,
        *,
        wait: bool = True,
        pool: str = "local",
        fabric: str | None = None,
        capacity: str | None = None,
    ) -> str:
        node_id = self.next_node
        self._made += 1
        known = {FABRIC_LABEL: fabric, CAPACITY_LABEL: capacity}
        labels = {label: value for label, value in known.items() if value is not None}
        self.provider.create(NodeRequest(node_id=node_id, pool=pool, resources={"CPU": 1.0}, labels=labels))
        if wait:
            until(lambda: node_id in self.members(), f"{node_id} joins")
        return node_id

    def members(self) -> set[str]:
        seen = RayMembership().observe()
        return {name for name, one in seen.items() if one.is_alive and not one.is_draining}

    def _is_leaving(self, node_id: str) -> bool:
        member = RayMembership().observe().get(node_id)
        return member is not None and (member.is_draining or not member.is_alive)

    def plan(self, files: dict[str, str], *command: str, **fields: Any) -> AttemptPlan:
        """A plan for a command in a folder with these files; two workers unless `fields` say otherwise."""
        number = uuid.uuid4().hex[:10]
        wanted: dict[str, Any] = {
            "job_id": f"job_{number}",
            "attempt_id": f"att_{number}",
            "attempt": 1,
            "command": list(command),
            "bundle": self.bundle(files),
            "storage_url": str(self.storage),
            "checkpoint_url": str(self.storage),
            "backend": "ddp",
            "min_workers": 2,
            "max_workers": 2,
            "resources": {"CPU": 1.0},
            "checkpoint_interval_s": None,
            "regroup_s": 60.0,
        }
        # Folders of the test are closed to other users: a command that is given one of them is not confined.
        said = f"{files} {command} {fields}"
        wanted["isolation"] = "none" if tempfile.gettempdir() in said else "auto"
        return plan_of(**{**wanted, **fields})

    def bundle(self, files: dict[str, str]) -> str:
        with tempfile.TemporaryDirectory(dir=self._folder) as packing:
            code = Path(packing) / "code"
            code.mkdir()
            for name, content in files.items():
                path = code / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(content)
            packed = pack(code, Path(packing) / "bundle.zip")
            target = self.storage / "bundles" / f"{packed.digest.removeprefix('sha256:')}.zip"
            target.parent.mkdir(parents=True, exist_ok=True)
            (Path(packing) / "bundle.zip").rename(target)
        return packed.digest

    def new_path(self, name: str) -> Path:
        """A path below the lab's folder at which nothing is yet."""
        return self._folder / f"{name}-{uuid.uuid4().hex[:10]}"

    def start(self, plan: AttemptPlan, values: Mapping[str, str] | None = None) -> Running:
        """`values` are those of the plan's secrets."""
        running = Running(plan)
        self._attempts.append(running)
        running.launcher.start(plan, chunks_of(values or {}))
        return running

    def run(self, files: dict[str, str], *command: str, **fields: Any) -> Running:
        return self.start(self.plan(files, *command, **fields))

    def driver(self) -> psutil.Process:
        """The only driver of this cluster."""
        (driver,) = until(self._drivers, "a driver runs")
        return driver

    def _drivers(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            try:
                is_driver = process.name().startswith("ray::Driver")
                if is_driver and str(self._home) in process.environ().get("RAY_AUTH_TOKEN_PATH", ""):
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def manifest_of(self, running: Running, step: int) -> tuple[Path, dict[str, Any]]:
        folder = self.storage / "jobs" / running.plan.job_id / "checkpoints"
        (found,) = folder.glob(f"{step:012d}-*/remora-manifest.json")
        return found.parent, json.loads(found.read_text())

    def work_folders(self) -> list[Path]:
        """What supervisors keep on the nodes while they run."""
        folders = ClusterFolders(self._home)
        works = [folders.temporary_of(node_id) / "work" for node_id in self.provider.node_ids()]
        assert all(work.is_dir() for work in works), "this looks where nothing ever is"
        return [path for work in works for path in work.iterdir()]

    def environments(self, node_id: str) -> list[KeptEnvironment]:
        """The environments of jobs that a node keeps."""
        folder = ClusterFolders(self._home).temporary_of(node_id) / "work" / "environments"
        return kept_environments(folder) if folder.is_dir() else []

    def close_attempts(self) -> None:
        while self._attempts:
            self._attempts.pop().close()

    def close(self) -> None:
        self.close_attempts()
        for node_id in self.provider.node_ids():
            self.provider.kill(node_id)
            self.provider.delete(node_id)

    def stop(self, running: Running, reason: EndReason) -> None:
        running.launcher.stop(running.plan.attempt_id, reason)


@contextlib.contextmanager
def open_lab(home: Path, folder: Path) -> Iterator[Lab]:
    """A lab with a head and no nodes yet; nothing of it is left afterwards."""
    head = start_head(home)
    try:
        wait_until_reachable(home, head)
        connect(home, head.ray_address)
        lab = Lab(home, head.ray_address, folder)
        try:
            yield lab
        finally:
            lab.close()
    finally:
        ray.shutdown()
        stop_head(home)
        ClusterFolders(home).remove_temporary()
