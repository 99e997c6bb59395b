"""Machines of the emulated Azure are real raylets: they join by their start-up data, and go with their eviction."""

from __future__ import annotations

import base64
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import ray

from cluster.azure.emulator.key_vault import secrets_of
from cluster.azure.emulator.machines import LocalMachines
from cluster.local.connection import connect
from cluster.local.environment import MACHINE_VARIABLE
from cluster.local.folders import ClusterFolders
from cluster.local.head import start_head, stop_head, wait_until_reachable
from cluster.local.records import MachineRecord
from cluster.processes import find_by_environment
from cluster.provider import NodeRequest
from cluster.ray.membership import RayMembership
from tests.contracts.cluster.azure_rig import CLUSTER, CPU_SIZE, IB_SIZE, AzureRig

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def head(home: Path) -> Iterator[MachineRecord]:
    # As in Azure by default: machines fetch the authority, too.
    started = start_head(home, encrypted=True)
    wait_until_reachable(home, started)
    connect(home, started.ray_address)
    yield started
    ray.shutdown()
    stop_head(home)
    assert find_by_environment(MACHINE_VARIABLE, started.mark) == []


@pytest.fixture
def rig(home: Path, head: MachineRecord) -> Iterator[AzureRig]:
    with AzureRig(head.ray_address, secrets=secrets_of(home, CLUSTER)) as rig:
        rig.azure = rig.another(ray_tls=True)
        machines = LocalMachines(rig.server.cloud, home, lambda: rig.server.url)
        yield rig
        machines.close()


def until(seen: Callable[[], bool], what: str, timeout_s: float = 120.0) -> None:
    """Look again and again until it is so; fails the test after `timeout_s`."""
    began = time.monotonic()
    pause = threading.Event()
    while not seen():
        assert time.monotonic() - began < timeout_s, f"not within {timeout_s} s: {what}"
        pause.wait(0.1)


def alive(rig: AzureRig, node_id: str) -> bool:
    # The emulator's time goes on with each look, as a controller looks at every tick.
    rig.list()
    member = RayMembership().observe().get(node_id)
    return member is not None and member.is_alive


def where_the_secret_shows(rig: AzureRig, home: Path) -> tuple[list[str], set[str]]:
    """Where of the one machine's processes, log and start-up data the cluster's secret is, and which files have it."""
    secret = ClusterFolders(home.resolve()).token.read_text()
    (machine,) = rig.cloud.machines.values()
    folders = ClusterFolders(home.resolve())
    processes = find_by_environment(MACHINE_VARIABLE, folders.mark_of(machine.name))
    texts = {
        "start-up data": base64.b64decode(machine.custom_data).decode(),
        "log": (folders.nodes / f"{machine.name}.log").read_text(),
    }
    for process in processes:
        with contextlib.suppress(OSError):
            for kind in ("cmdline", "environ"):
                texts[f"{kind} of {process.pid}"] = Path(f"/proc/{process.pid}/{kind}").read_text()
    shown = [name for name, text in texts.items() if secret in text]
    root = folders.temporary_of(machine.name)
    files = [path for path in root.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
    return shown, {f"{path.relative_to(root)} {path.stat().st_mode & 0o777:o}" for path in files}


def test_a_spot_machine_joins_ray_and_is_lost_with_its_eviction(rig: AzureRig, home: Path) -> None:
    node_request = NodeRequest(
        node_id="node_a",
        pool="cpu",
        resources={"CPU": 1.0},
        offering=f"{CPU_SIZE}/1/spot",
        labels={"tier": "x"},
    )
    rig.create(node_request)
    until(lambda: alive(rig, "node_a"), "the machine joins")
    (labels,) = [node["Labels"] for node in ray.nodes() if node["Labels"].get("remora-node") == "node_a"]
    assert (labels["remora-pool"], labels["remora-capacity"], labels["tier"]) == ("cpu", "spot", "x")
    assert where_the_secret_shows(rig, home) == ([], {"root/run/remora/ray.token 600"})

    rig.evict("node_a")
    assert rig.list() == []
    until(lambda: not alive(rig, "node_a"), "Ray notices")
    assert rig.left() == 0
    assert rig.state()["used_s"]["spot"] > 0


def looked_for(rig: AzureRig, home: Path) -> list[str]:
    """How many GPUs each machine's agent looks for."""
    folders = ClusterFolders(home.resolve())
    commands = [
        process.cmdline()
        for machine in rig.cloud.machines.values()
        for process in find_by_environment(MACHINE_VARIABLE, folders.mark_of(machine.name))
    ]
    return [words[words.index("--gpus") + 1] for words in commands if "cluster.node.agent" in words]


def test_instances_of_a_scale_set_join_ray_as_the_nodes_that_their_tags_name(
    rig: AzureRig, home: Path
) -> None:
    for name in ("node_b", "node_c"):
        node_request = NodeRequest(
            node_id=name,
            pool="gpu",
            resources={"CPU": 1.0, "GPU": 1.0},
            offering=f"{IB_SIZE}/1/spot",
            labels={"remora-fabric": "gpu-job_1"},
            fabric="gpu-job_1",
        )
        rig.create(node_request)
    until(lambda: alive(rig, "node_b") and alive(rig, "node_c"), "both join")
    by_name = {one["Labels"].get("remora-node"): one["Labels"] for one in ray.nodes() if one["Alive"]}
    assert {by_name[name]["remora-fabric"] for name in ("node_b", "node_c")} == {"gpu-job_1"}
    assert looked_for(rig, home) == ["0", "0"], "no tool of this host knows of them"
    (seen,) = rig.state()["sets"].values()
    assert seen["capacity"] == 2

    rig.delete("node_b")
    until(lambda: not alive(rig, "node_b"), "Ray notices")
    assert alive(rig, "node_c"), "its neighbour stays"
