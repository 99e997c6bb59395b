"""Remora on a Ray cluster that it did not start, whose Python has no Remora: jobs train there, and nothing is left."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import site
import subprocess
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster import processes
from remora.free_ports import free_port
from remora.states import JobState, NodeState
from tests.e2e.embedded import REMORA, Embedded
from tests.e2e.processes import PATIENCE_S, JobProcesses, until
from tests.e2e.scripts import Steps
from tests.integration.trainers.scripts import LOCKSTEP

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(900)]

#: What the processes of the cluster carry in their environment: the node that they belong to.
MARK = "TEST_EXISTING_NODE"
#: What is seen by a program of the cluster's own: all of what another one could have left.
OBSERVER = """
import json, sys
import ray
from ray._private import state
from ray.experimental import internal_kv

ray.init(address=sys.argv[1], namespace="others", log_to_driver=False)
groups = state.state.placement_group_table().values()
living = [node for node in ray.nodes() if node["Alive"]]
print(json.dumps({
    "nodes": sorted(node["NodeManagerAddress"] for node in living),
    "draining": len(state.state.get_draining_nodes()),
    "actors": [one["ActorClassName"] for one in state.actors().values() if one["State"] != "DEAD"],
    "groups": [one["name"] for one in groups if one["state"] != "REMOVED"],
    "entries": [key.decode() for key in internal_kv._internal_kv_list(b"", namespace=b"remora")],
    "answer": ray.get(ray.remote(lambda: 6 * 7).remote()),
}))
"""


class ForeignCluster:
    """A head and nodes as their own operator starts them: `ray start`, a secret, a Python without Remora."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        venv.create(folder / "venv", with_pip=False)
        self._python = folder / "venv/bin/python"
        (packages,) = (folder / "venv/lib").glob("python3*/site-packages")
        # A bare path: the files there that lead to Remora are not followed.
        (packages / "others.pth").write_text("\n".join(site.getsitepackages()))
        token = folder / "token"
        token.write_text("0123456789abcdef" * 4)
        token.chmod(0o600)
        self.variables = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
        self._mark = f"{folder}/"
        self._block = f"127.{os.getpid() % 200 + 20}.{os.getpid() // 200 % 250}"
        self.address = f"{self._block}.1:{free_port(f'{self._block}.1')}"
        #: Sockets have short paths.
        self._temporary = Path(tempfile.mkdtemp(prefix="fr"))

    def start(self, number: int) -> str:
        """Start the node with that number, the head if it is 1; returns its address once it runs."""
        address = f"{self._block}.{number}"
        port = self.address.rpartition(":")[2]
        heads = ["--head", f"--port={port}", "--include-dashboard=false"]
        joins = heads if number == 1 else [f"--address={self.address}"]
        said = self._folder / f"{number}.log"
        with said.open("wb") as log:
            subprocess.Popen(
                [
                    *(
                        str(self._python),
                        "-P",
                        "-m",
                        "ray.scripts.scripts",
                        "start",
                        "--block",
                        "--num-cpus=1",
                    ),
                    *(f"--node-ip-address={address}", f"--temp-dir={self._temporary / str(number)}"),
                    *("--object-store-memory=80000000", "--disable-usage-stats", *joins),
                ],
                env={**self._environment, MARK: f"{self._mark}{number}"},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=self._folder,
            )
        until(lambda: "Ray runtime started" in said.read_text(), f"node {number} runs")
        return address

    def kill(self, number: int) -> None:
        """SIGKILL all of a node at once."""
        assert processes.sweep(MARK, f"{self._mark}{number}", 0) > 0

    def observed(self) -> dict[str, Any]:
        """What a program of the cluster's own sees."""
        done = subprocess.run(
            [str(self._python), "-P", "-c", OBSERVER, self.address],
            env=self._environment,
            cwd=self._folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return found

    def imports_remora(self) -> bool:
        """Whether its Python has the packages that jobs need."""
        words = [str(self._python), "-P", "-c", "import remora"]
        return not subprocess.run(
            words, env=self._environment, cwd=self._folder, capture_output=True
        ).returncode

    def left(self) -> list[str]:
        """Folders of Remora that are left on its nodes."""
        return [path.name for path in self._temporary.glob("remora-*")]

    def end(self) -> None:
        """End all of it."""
        for number in range(1, 10):
            processes.sweep(MARK, f"{self._mark}{number}", 0)
        shutil.rmtree(self._temporary, ignore_errors=True)

    @property
    def _environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        # What jobs leave on these nodes is there alone.
        own = {"TMPDIR": str(self._temporary), "RAY_raylet_start_wait_time_s": "180"}
        return {**kept, **self.variables, **own}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ForeignCluster]:
    folder = tmp_path / "operator"
    folder.mkdir()
    cluster = ForeignCluster(folder)
    try:
        for number in (1, 2):
            cluster.start(number)
        yield cluster
    finally:
        cluster.end()


def test_a_job_trains_through_the_loss_of_a_node_and_the_cluster_stays_as_it_was(
    cluster: ForeignCluster, tmp_path: Path
) -> None:
    assert not cluster.imports_remora(), "its nodes have Remora only if it is brought there"
    before = cluster.observed()
    home = tmp_path / "home"
    service = Embedded(
        home,
        variables={**cluster.variables, "REMORA_ISOLATION": "none"},
        ray_address=cluster.address,
    )
    script = Steps(tmp_path, steps=60)
    try:
        service.start()
        said = service.up_log.read_text()
        assert "It has 2 nodes for jobs." in said
        with service.client() as client:
            job = client.submit(script.spec)
            script.allow(20)
            until(lambda: client.job(job.id).checkpoint_step, "a checkpoint is committed")
            cluster.kill(2)
            until(
                lambda: (
                    [one.address for one in client.nodes() if one.state is NodeState.READY]
                    == [before["nodes"][0]]
                ),
                "the service knows of the loss",
            )
            added = cluster.start(3)
            script.allow_all()
            ended = client.wait(job.id, PATIENCE_S)
            assert ended.state is JobState.SUCCEEDED, ended.message
            assert [point.step for point in client.metrics(job.id)] == list(range(1, 61))
            until(lambda: len(service.ready_nodes()) == 2, "the new node is used as well")
            assert not JobProcesses(home, job.id).left()
    finally:
        with contextlib.suppress(AttributeError):
            service.end()
    assert cluster.left() == [], "nothing of a job is left on a node"
    there = sorted([before["nodes"][0], added])
    until(lambda: cluster.observed()["nodes"] == there, "the member is known to have left")
    after = cluster.observed()
    assert (after["draining"], after["answer"]) == (0, 42)
    assert (after["actors"], after["groups"], after["entries"]) == ([], [], [])


def test_workers_run_on_as_many_nodes_as_the_policies_allow(cluster: ForeignCluster, tmp_path: Path) -> None:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "train.py").write_text(LOCKSTEP)
    service = Embedded(
        tmp_path / "home",
        variables={**cluster.variables, "REMORA_ISOLATION": "none"},
        ray_address=cluster.address,
    )

    def allow(nodes: int) -> None:
        document = f"pools: {{existing: {{sizes: [node], max_nodes: {nodes}, drain_s: 60s}}}}"
        client.apply_policy(document, based_on=client.policy().version)

    try:
        service.start()
        with service.client() as client:
            allow(1)
            until(lambda: len(service.ready_nodes()) == 1, "one of the two nodes is used")
            job = client.submit(
                {
                    "code": str(folder),
                    "command": ["python", "train.py", "1000000", "0.05"],
                    "backend": "command",
                    "workers": {"min": 1, "max": 2},
                    "resources": {"cpus": 1},
                    "checkpoint": {"interval": "1s"},
                }
            )
            until(lambda: (client.job(job.id).checkpoint_step or 0) > 60, "it has trained for a while")
            assert client.job(job.id).world_size == 1, "there is a node that is free, and none of ours"
            allow(2)
            until(lambda: client.job(job.id).world_size == 2, "it grows onto the other node")
            nodes, repeated = set(service.ready_nodes()), client.job(job.id).repeated_steps
            allow(1)
            until(lambda: client.job(job.id).world_size == 1, "it leaves the node that drains")
            (drained,) = nodes - set(service.ready_nodes())
            until(lambda: client.node(drained).state is NodeState.GONE, "the node is released")
            assert client.job(job.id).repeated_steps == repeated
            assert cluster.observed()["draining"] == 0, "Ray and other programs know of no drain"
            client.cancel(job.id)
            client.wait(job.id, PATIENCE_S)
    finally:
        service.end()


def test_what_a_killed_service_left_is_removed_from_elsewhere(
    cluster: ForeignCluster, tmp_path: Path
) -> None:
    service = Embedded(tmp_path / "home", variables=cluster.variables, ray_address=cluster.address)
    service.start()
    service.kill()
    assert cluster.observed()["entries"], "the nodes are still claimed"

    def remora(*words: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **cluster.variables, "REMORA_HOME": str(tmp_path / "another")}
        return subprocess.run([REMORA, *words], env=environment, capture_output=True, text=True, timeout=300)

    refused = remora("up", "--port", "0", "--ray-address", cluster.address)
    assert refused.returncode == 1
    assert f"the cluster is used by the service in {tmp_path / 'home'}" in refused.stderr
    removed = remora("down", "--ray-address", cluster.address)
    assert removed.returncode == 0, removed.stderr
    assert "Nothing of Remora is left" in removed.stdout
    after = cluster.observed()
    assert (after["actors"], after["groups"], after["entries"]) == ([], [], [])
    service.end()


def test_a_secret_that_is_wrong_is_reported_with_the_variables_that_give_it(
    cluster: ForeignCluster, tmp_path: Path
) -> None:
    environment = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "f" * 64}
    words = [REMORA, "up", "--home", str(tmp_path / "home"), "--port", "0", "--ray-address", cluster.address]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert "RAY_AUTH_TOKEN_PATH" in done.stderr
    assert "Traceback" not in done.stderr
    assert "f" * 64 not in done.stderr + done.stdout
    assert not (tmp_path / "home/joined.token").exists()
