"""A Ray cluster as its manual starts one: `ray start`, default settings, one process session per node."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cluster.processes import end, find_by_environment
from remora.free_ports import free_port

_MARK = "REMORA_BENCHMARK_NODE"
_ROOT = Path(__file__).resolve().parents[1]
_DRAIN = """
import sys, ray
from cluster.ray.drain import drain
ray.init(log_to_driver=False)
node = next(one for one in ray.nodes() if one["Alive"] and one["NodeManagerAddress"] == sys.argv[1])
drain(node["NodeID"], "benchmark", float(sys.argv[2]))
"""


class StockCluster:
    """One head and some nodes, each with a loopback address of its own and one CPU."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.address = f"127.9.9.1:{free_port()}"
        self._started: list[str] = []
        port = self.address.rpartition(":")[2]
        self._start(1, "--head", f"--port={port}", "--num-cpus=0", "--include-dashboard=false")

    @property
    def nodes(self) -> list[str]:
        """Names of all that was started after the head."""
        return self._started[1:]

    def add_node(self) -> str:
        """Start one more node; returns its name."""
        return self._start(len(self._started) + 1, f"--address={self.address}", "--num-cpus=1")

    def kill(self, name: str) -> None:
        """SIGKILL to every process of a node at once."""
        end(find_by_environment(_MARK, name), grace_s=0)

    def drain(self, name: str, deadline_at: float) -> None:
        """Give notice that a node goes at that time, as a cloud's would reach Ray."""
        number = name.rpartition("-")[2]
        words = [f"127.9.9.{number}", str(deadline_at)]
        subprocess.run([sys.executable, "-c", _DRAIN, *words], env=self.environment(), check=True, cwd=_ROOT)

    def stop(self) -> None:
        """End everything that was started."""
        for name in self._started:
            self.kill(name)

    def environment(self, name: str = "") -> dict[str, str]:
        """What a process needs to use the cluster; with a name, what makes it part of that node."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "REMORA_"))}
        marks = {_MARK: name} if name else {}
        return {
            **kept,
            **marks,
            "RAY_ADDRESS": self.address,
            "RAY_AUTH_MODE": "disabled",
            "RAY_USAGE_STATS_ENABLED": "0",
        }

    def _start(self, number: int, *arguments: str) -> str:
        name = f"{os.getpid()}-{number}"
        environment = self.environment(name)
        environment.pop("RAY_ADDRESS")
        temporary = self._folder / str(number)
        temporary.mkdir()
        command = [
            *(
                sys.executable,
                "-m",
                "ray.scripts.scripts",
                "start",
                "--block",
                f"--node-ip-address=127.9.9.{number}",
            ),
            *(f"--temp-dir={temporary}", "--object-store-memory=100000000", *arguments),
        ]
        with (temporary / "log").open("wb") as log:
            subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, start_new_session=True, cwd="/"
            )
        self._started.append(name)
        return name


@contextlib.contextmanager
def stock_cluster(nodes: int) -> Iterator[StockCluster]:
    """A cluster of that number of nodes, ended whatever happens."""
    with tempfile.TemporaryDirectory(prefix="rb-") as folder:
        cluster = StockCluster(Path(folder))
        try:
            for _ in range(nodes):
                cluster.add_node()
            yield cluster
        finally:
            cluster.stop()
