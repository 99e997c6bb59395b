"""Runs one rank's supervisor with a real child; the driver is played."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from remora.code.bundle import pack
from remora.isolation import decide
from remora.machine_isolation import offered
from tests.attempt_plans import plan_of
from trainers.checkpoints.manifest import Manifest
from trainers.storage import Storage
from trainers.supervisor.assignment import Assignment, ChildFailed, PlannedStop
from trainers.supervisor.kept_checkpoints import give_back
from trainers.supervisor.supervisor import Supervisor
from trainers.worker_identity import WorkerIdentity

ROOT = Path(__file__).parents[3]


class Driver:
    """Takes what supervisors deliver."""

    def __init__(self) -> None:
        self.deliver = SimpleNamespace(remote=lambda *call: call)
        self.messages: list[dict[str, Any]] = []
        self.batches: list[int] = []
        self.log_is_full = False
        self.log_room = 1 << 20
        self.is_dead = False
        self.is_slow = threading.Event()
        self.is_slow.set()
        self.changed = threading.Condition()

    def get(self, call: tuple[int, int, list[dict[str, Any]]]) -> dict[str, Any]:
        self.is_slow.wait(20.0)
        if self.is_dead:
            raise ray.exceptions.RayActorError
        with self.changed:
            self.batches.append(len(call[2]))
            self.messages.extend(one for message in call[2] for one in line_by_line(message))
            self.changed.notify_all()
        return {"log_is_full": self.log_is_full, "log_room": self.log_room, "log_is_taken": True}

    def all(self, kind: str) -> list[dict[str, Any]]:
        return [message for message in self.messages if message["type"] == kind]

    def wait_for(self, kind: str, count: int = 1) -> dict[str, Any]:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.all(kind)) >= count, 20.0), (kind, self.messages)
        return self.all(kind)[count - 1]


def line_by_line(message: dict[str, Any]) -> list[dict[str, Any]]:
    """A message with one or more lines as one message for each of them."""
    if message["type"] != "log":
        return [message]
    said = {"type": "log", "stream": message["stream"]}
    return [{**said, "text": line} for line in message["text"].split("\n")]


def without_ray(driver: Driver, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Supervisors reach that driver without Ray, and keep their files in `folder`."""
    monkeypatch.setattr("ray.get", driver.get)
    monkeypatch.setattr("ray.util.get_node_ip_address", lambda: "127.0.0.1")
    monkeypatch.setenv("REMORA_WORK_DIR", str(folder / "work"))
    (folder / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder / "temporary"))
    monkeypatch.setattr("trainers.supervisor.temporary_folders._PATH_BYTES", 4096)
    (folder / "memory").mkdir()
    monkeypatch.setattr("trainers.supervisor.snapshot_memory._MEMORY", folder / "memory")
    monkeypatch.setattr("trainers.supervisor.secret_files._MEMORY", folder / "memory")


class Stage:
    """Runs a supervisor in a thread, as Ray Train does."""

    def __init__(self, driver: Driver, folder: Path) -> None:
        self.driver = driver
        self.folder = folder
        self.storage = Storage(folder / "storage")
        #: Takes the place of the file system in memory.
        self.memory = folder / "memory" / f"remora-{os.getuid()}"
        self.secrets = folder / "memory" / f"remora-secrets-{os.getuid()}"
        #: Where a script finds it: one that is confined sees the memory of its job there.
        self.memory_of_scripts = self.memory if decide("auto", offered()) is None else Path("/dev/shm")
        #: Where folders of temporary files lie.
        self.temporary = folder / "temporary" / f"remora-tmp-{os.getuid()}"
        self.outcome: Exception | None = None
        self.supervisor: Supervisor | None = None
        self._thread: threading.Thread | None = None

    def start(
        self,
        code: str = "",
        is_joining: bool = False,
        rank: int = 1,
        values: Mapping[str, str] | None = None,
        resume: Manifest | None = None,
        **fields: Any,
    ) -> Supervisor:
        """`values` are those of secrets, by name."""
        source = self.folder / "code"
        source.mkdir(exist_ok=True)
        (source / "train.py").write_text(code)
        packed = pack(source, self.folder / "bundle.zip")
        name = f"bundles/{packed.digest.removeprefix('sha256:')}.zip"
        self.storage.write_file(name, self.folder / "bundle.zip")
        wanted: dict[str, Any] = {
            "job_id": "job_1", "attempt_id": "att_1", "attempt": 1, "bundle": packed.digest,
            "command": [sys.executable, "train.py"], "storage_url": self.storage.url,
            "checkpoint_url": self.storage.url, "backend": "ddp", "min_workers": 1, "max_workers": 2,
            "resources": {"CPU": 1.0}, "variables": {"PYTHONPATH": str(ROOT)},
        }  # fmt: skip
        identity = WorkerIdentity(
            job_id="job_1", attempt_id="att_1", attempt=1, generation=1, rank=rank, world_size=2, local_rank=0,
            local_world_size=1, node_rank=1, num_nodes=2, master_addr="127.0.0.1", master_port=29500,
        )  # fmt: skip
        plan = plan_of(**{**wanted, **fields})
        self.supervisor = Supervisor(
            Assignment(
                plan=plan,
                identity=identity,
                driver=self.driver,
                resume=resume,
                slot=identity.rank,
                is_joining=is_joining,
                secrets=values or {},
            )
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self.supervisor

    def _run(self) -> None:
        assert self.supervisor is not None
        try:
            self.supervisor.run()
        except (ChildFailed, PlannedStop) as outcome:
            self.outcome = outcome

    def end(self) -> dict[str, Any]:
        """Wait for its end; returns its last message."""
        assert self._thread is not None
        self._thread.join(30.0)
        assert not self._thread.is_alive()
        return self.driver.messages[-1]

    def close(self) -> None:
        if self.supervisor is not None:
            self.supervisor.instruct({"type": "stop", "at_once": True})
            self.driver.is_slow.set()
            self.end()
        if Path(os.environ["REMORA_WORK_DIR"]).is_dir():
            # What the next worker group would read.
            give_back("att_1")
        assert list((self.folder / "work").iterdir()) == []
        assert not self.temporary.exists() or list(self.temporary.iterdir()) == []
        assert not self.secrets.exists() or list(self.secrets.iterdir()) == []
