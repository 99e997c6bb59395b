"""One embedded service as its users have it: `remora up` on a home of its own, the command line, the client."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import psutil

from cluster.local.folders import ClusterFolders
from remora import Client
from remora.free_ports import free_port
from remora.states import NodeState
from tests.e2e.processes import PATIENCE_S, is_alive, kill, processes_with, until

T = TypeVar("T")

REMORA = str(Path(sys.executable).with_name("remora"))
API, CONTROLLER = "service.api_process", "service.controller"


@dataclass(frozen=True)
class Answer:
    """What one command said."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one JSON document on standard output."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """The JSON documents on standard output, one per line."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def complaints(self) -> list[str]:
        """The lines on standard error of a command that failed and said nothing else."""
        assert self.out == ""
        lines = self.err.splitlines()
        assert all(line.startswith("remora: ") for line in lines), self.err
        return [line.removeprefix("remora: ") for line in lines]

    @property
    def complaint(self) -> str:
        """The only one of them."""
        (line,) = self.complaints
        return line


class Embedded:
    """`remora up`: started, killed in parts or whole, started again on the same home, ended."""

    def __init__(
        self,
        home: Path,
        nodes: int = 2,
        cloud: str = "local",
        variables: Mapping[str, str] | None = None,
        clusters: tuple[str, ...] = (),
        ray_address: str = "",
    ) -> None:
        """`variables` are added to the environment of its processes and commands; `clusters` are beside the first.

        `ray_address`: of an existing Ray cluster, with that number of `nodes`.
        """
        self._clusters = clusters
        self._where = ["--ray-address", ray_address] if ray_address else ["--cloud", cloud]
        self.home = home
        self.nodes = nodes
        self.cloud = cloud
        self._port = free_port("127.0.0.1")
        self.url = f"http://127.0.0.1:{self._port}"
        self.process: subprocess.Popen[bytes]
        #: The folder of the store `datasets`.
        self.datasets = home.parent / "datasets"
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("REMORA_")},
            "REMORA_HOME": str(home),
            "REMORA_STORES": json.dumps({"datasets": str(self.datasets)}),
            **(variables or {}),
        }

    def start(self) -> None:
        """Start it, and wait until its nodes may be given work."""
        self.home.mkdir(exist_ok=True)
        words = [REMORA, "up", "--port", str(self._port), "--nodes", str(self.nodes), *self._where]
        words += [word for name in self._clusters for word in ("--cluster", name)]
        with self.up_log.open("ab") as log:
            begin = log.tell()
            self.process = subprocess.Popen(
                words, env=self._environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        until(lambda: self._says_nodes_ready(begin), "it has the nodes that it begins with")

    @property
    def variables(self) -> dict[str, str]:
        """The environment of its processes and commands."""
        return dict(self._environment)

    @property
    def up_log(self) -> Path:
        """What `remora up` prints."""
        return self.home / "up.log"

    def log(self, name: str) -> str:
        """What one of its processes wrote: `api`, `controller`, `head`."""
        return (self.home / "logs" / f"{name}.log").read_text()

    def _says_nodes_ready(self, begin: int) -> bool:
        said = self.up_log.read_bytes()[begin:].decode()
        assert self.process.poll() is None, f"`remora up` ended: {said}"
        if "as many as the existing cluster has" in said:
            return len(self.ready_nodes()) == self.nodes
        if "of the policies says" in said:
            # In a cloud there are none before a job needs them.
            return self.cloud != "local" or len(self.ready_nodes()) == self.nodes
        return f"{self.nodes} ready after" in said

    # --- as users meet it ----------------------------------------------------------------------------------------

    def remora(self, *words: str, folder: Path | None = None, stdin: str = "") -> Answer:
        """Run one command of the command line.  No command ever shows a traceback of ours."""
        done = subprocess.run(
            [REMORA, *words],
            env=self._environment,
            cwd=folder or self.home,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S * 2,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return Answer(done.returncode, done.stdout, done.stderr)

    def client(self) -> Client:
        """A client that outlasts restarts."""
        return Client(self.url)

    def ready_nodes(self) -> list[str]:
        """Ids of the nodes that may be given work."""
        with self.client() as client:
            return [node.id for node in client.nodes() if node.state is NodeState.READY]

    # --- faults --------------------------------------------------------------------------------------------------

    def part(self, module: str) -> psutil.Process | None:
        """The API's or the controller's process, if it runs."""
        for child in psutil.Process(self.process.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if module in child.cmdline():
                    return child
        return None

    def kill_part(self, module: str) -> None:
        """SIGKILL the API or the controller, and wait until another one runs in its place."""
        victim = until(lambda: self.part(module), f"{module} runs")
        kill(victim)
        until(lambda: self.part(module), f"{module} was started again")

    def kill(self) -> None:
        """SIGKILL `remora up`, the API and the controller, all at once."""
        parts = [psutil.Process(self.process.pid), self.part(API), self.part(CONTROLLER)]
        assert all(parts)
        for part in parts:
            assert part is not None
            part.send_signal(signal.SIGKILL)
        assert self.process.wait(timeout=PATIENCE_S) == -signal.SIGKILL
        until(lambda: not any(is_alive(part) for part in parts if part), "API and controller are dead")

    def tidy(self) -> None:
        """Whatever a test left: the service runs, and no job is under way."""
        if self.process.poll() is not None:
            self.start()
        with self.client() as client:
            for job in client.jobs():
                if not job.terminal:
                    client.cancel(job.id)
                    client.wait(job.id, PATIENCE_S)

    # --- the end -------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Ctrl-C; afterwards nothing of it may be left: no process, no socket, no temporary folder."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            assert self.process.wait(timeout=PATIENCE_S) == 0, self.up_log.read_text()[-2000:]
        else:
            self.remora("down")
        until(lambda: not processes_with(str(self.home)), "every process of the home has ended", 15.0)
        assert not ClusterFolders(self.home).temporary.exists()
        assert not list((self.home / "nodes").glob("*.json"))
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", self._port)) != 0, "the API's port is still open"


class Follower(threading.Thread, Generic[T]):
    """A client that follows a stream of a job from its beginning to its end, through whatever happens."""

    def __init__(self, stream: Iterable[T]) -> None:
        super().__init__(daemon=True)
        self._stream = stream
        self.items: list[T] = []
        self._error: Exception | None = None
        self.start()

    def run(self) -> None:
        """Collect."""
        try:
            for item in self._stream:
                self.items.append(item)
        except Exception as error:
            self._error = error

    def all(self) -> list[T]:
        """Everything, once the stream has ended by itself."""
        self.join(PATIENCE_S)
        assert not self.is_alive(), "the stream did not end"
        assert self._error is None, self._error
        return self.items
