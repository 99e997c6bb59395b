"""The head of a server is killed while a job trains, and started again: its driver and workers go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import ray

from cluster.local import connection
from cluster.local.environment import process_environment
from cluster.local.folders import ClusterFolders
from remora.free_ports import free_port
from tests.integration.trainers.lab import Lab, Running, until
from trainers.launch import RayLauncher

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

#: Loopback addresses of the head and of the node for drivers.
HEAD, DRIVERS = "127.0.83.1", "127.0.83.2"
TRAIN = """
import pathlib, sys, time
from remora import training
step = 0
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.05)
    step += 1
    training.report(step, {"loss": 1.0 / step})
"""


class Server:
    """The head and the node for drivers, each a process group of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.address = f"{HEAD}:{free_port(HEAD)}"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, part: str) -> None:
        address = {"head": HEAD, "drivers": DRIVERS}[part]
        words = [part, "--home", str(self.home), "--head", self.address, "--address", address]
        self._processes[part] = subprocess.Popen(
            [sys.executable, "-P", "-m", "cluster.head", *words],
            env=process_environment(self.home, PYTHONUNBUFFERED="1"),
            stdout=(self.home.parent / f"{part}.log").open("ab"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def kill(self, part: str) -> None:
        process = self._processes.pop(part)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        for part in list(self._processes):
            self.kill(part)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "home")
    server.start("head")
    try:
        yield server
    finally:
        ray.shutdown()
        server.close()
        ClusterFolders(server.home).remove_temporary()


@pytest.mark.soak
def test_a_head_that_is_killed_costs_no_step(server: Server, tmp_path: Path) -> None:
    server.start("drivers")
    until(lambda: _connect(server), "the node for drivers can be reached")
    lab = Lab(server.home, server.address, tmp_path)
    try:
        lab.nodes(2)
        finish = tmp_path / "finish"
        running = lab.run({"train.py": TRAIN}, "python", "train.py", str(finish), backend="command")
        running.until(lambda: running.step > 20, "it trains")
        nodes = _nodes()
        server.kill("head")
        before = running.step
        running.until(lambda: running.step > before + 20, "it trains without a head")
        server.start("head")
        until(lambda: _heads() - {nodes[HEAD]}, "the cluster has another head")
        after = running.step
        running.until(lambda: running.step > after + 20, "it trains with the new head")
        # The others are the ones that were there before, and new ones can join.
        assert {**_nodes(), HEAD: ""} == {**nodes, HEAD: ""}
        lab.add_node()
        finish.touch()
        assert running.end()["end_reason"] == "completed"
        steps = [body["step"] for body in running.bodies("metric")]
        assert steps == sorted(set(steps))
    finally:
        lab.close()


@pytest.mark.soak
def test_what_a_killed_head_was_asked_for_is_asked_for_again(server: Server, tmp_path: Path) -> None:
    server.start("drivers")
    until(lambda: _connect(server), "the node for drivers can be reached")
    lab = Lab(server.home, server.address, tmp_path)
    try:
        lab.nodes(3)
        # Two workers, then two drivers, of which one is ready for any attempt, have no process yet.
        with_driver = [_running(lab, tmp_path) for _ in range(2)]
        until(lambda: len(_pending("RayTrainWorker")) == 2, "its workers are asked for")
        pool = RayLauncher(ready_drivers=1, forks=True)
        until(lambda: pool.prepare(1) or _pending("Driver"), "a driver is asked for that is to be ready")
        without = _running(lab, tmp_path)
        until(lambda: len(_pending("Driver")) == 2, "its driver is asked for")
        before = _heads()
        server.kill("head")
        server.start("head")
        until(lambda: _heads() - before, "the cluster has another head")
        began = time.monotonic()

        def all_train() -> bool:
            for one in (*with_driver, without):
                one.launcher.start(one.plan)
                one.poll()
            pool.prepare(1)
            return all(one.step for one in (*with_driver, without)) and not _pending("Driver")

        until(all_train, "all of them train, and a driver is ready")
        assert time.monotonic() - began < 200.0, "less than the 300 s after which an attempt is given up"
        assert [one.gone for one in (*with_driver, without)] == [None] * 3
        (tmp_path / "finish").touch()
        assert [one.end()["end_reason"] for one in (*with_driver, without)] == ["completed"] * 3
    finally:
        lab.close()


def _running(lab: Lab, folder: Path) -> Running:
    """An attempt of one worker that trains until there is a file, and was just launched."""
    finish = folder / "finish"
    return lab.run(
        {"train.py": TRAIN},
        "python",
        "train.py",
        str(finish),
        backend="command",
        min_workers=1,
        max_workers=1,
    )


def _pending(class_name: str) -> list[str]:
    """Actors of that class that Ray has yet to begin."""
    found = ray._private.state.actors().values()
    return [
        one["ActorID"]
        for one in found
        if one["ActorClassName"] == class_name and one["State"] == "PENDING_CREATION"
    ]


def _connect(server: Server) -> bool:
    os.environ.update(process_environment(server.home, RAY_gcs_rpc_server_reconnect_timeout_s="300"))
    try:
        connection.connect(server.home, server.address, DRIVERS)
    except Exception as error:
        print(error)
        return False
    return True


def _nodes() -> dict[str, str]:
    """Ray's ids of living nodes, by their addresses."""
    return {node["NodeManagerAddress"]: node["NodeID"] for node in ray.nodes() if node["Alive"]}


def _heads() -> set[str]:
    with suppress(ray.exceptions.RayError):
        return {
            node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeManagerAddress"] == HEAD
        }
    return set()
