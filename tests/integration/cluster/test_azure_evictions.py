"""The emulated Azure as a process of its own: its machines are real raylets with agents, which hear of evictions."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import ray
from azure.identity.aio import ManagedIdentityCredential
from ray._raylet import GcsClient

from cluster.azure import catalogue
from cluster.azure.body import machine_name
from cluster.azure.emulator.server import REGION
from cluster.azure.provider import AzureProvider
from cluster.connection import connect
from cluster.local.environment import process_environment
from cluster.local.head import start_head, stop_head, wait_until_reachable
from cluster.local.provider import LocalProvider
from cluster.local.records import Machine
from cluster.membership import BEAT_NAMESPACE, BEAT_PREFIX, MemberNode, RayMembership
from cluster.provider import NodeRequest
from tests.contracts.cluster.azure_rig import CLUSTER, CPU_SIZE, settings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

NODE = "node_a"
#: Long enough for the agent to hear of it on a busy machine, and not as long as the usual one.
NOTICE_S = 20.0


@pytest.fixture
def head(tmp_path: Path) -> Iterator[Machine]:
    started = start_head(tmp_path)
    wait_until_reachable(tmp_path, started)
    connect(tmp_path, started.ray_address)
    yield started
    ray.shutdown()
    stop_head(tmp_path)


@pytest.fixture
def emulator(tmp_path: Path, head: Machine) -> Iterator[str]:
    """Address of `python -m cluster.azure.emulator --home ...`."""
    process = subprocess.Popen(
        [sys.executable, "-m", "cluster.azure.emulator", "--port", "0", "--home", str(tmp_path)],
        env=process_environment(tmp_path),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    yield process.stdout.readline().strip()
    process.send_signal(signal.SIGTERM)
    try:
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.stdout.close()
        LocalProvider(tmp_path, "").kill(NODE)
        LocalProvider(tmp_path, "").delete(NODE)


@pytest.fixture
def azure(emulator: str, head: Machine, monkeypatch: pytest.MonkeyPatch) -> Iterator[AzureProvider]:
    monkeypatch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", emulator)
    offerings = catalogue.offerings(REGION)
    identity = ManagedIdentityCredential(client_id="rig")
    provider = AzureProvider(settings(emulator), identity, head.ray_address, lambda: offerings)
    yield provider
    provider.close()


def until(seen: Callable[[], object], what: str, timeout_s: float = 180.0) -> None:
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    while not seen():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        pause.wait(0.1)


def member() -> MemberNode | None:
    found = RayMembership().observe().get(NODE)
    return found if found is not None and found.is_alive else None


def blocks_sigterm(pid: int) -> bool:
    (mask,) = re.findall(r"^SigBlk:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(int(mask, 16) >> (signal.SIGTERM - 1) & 1)


def control(emulator: str, path: str, document: dict[str, Any]) -> httpx2.Response:
    return httpx2.post(f"{emulator}/control/{path}", json=document).raise_for_status()


def test_a_machine_that_azure_takes_is_drained_until_it_goes_with_all_that_ran_on_it(
    tmp_path: Path, head: Machine, emulator: str, azure: AzureProvider
) -> None:
    offering = f"{CPU_SIZE}/1/spot"
    azure.create(NodeRequest(node_id=NODE, pool="cpu", resources={"CPU": 1.0}, offering=offering))
    # Nobody asks the cloud for anything from here on: it makes the machine, and takes it, by itself.
    until(member, "the machine joins")
    client, key = GcsClient(address=head.ray_address), BEAT_PREFIX + NODE.encode()
    until(lambda: client.internal_kv_get(key, BEAT_NAMESPACE), "its agent gives a sign of life")
    local = LocalProvider(tmp_path, head.ray_address)
    agents = [one.pid for one in local.processes(NODE) if "cluster.agent" in one.cmdline()]
    assert [blocks_sigterm(pid) for pid in agents] == [False]

    @ray.remote(num_cpus=1)
    class Work:
        def is_there(self) -> bool:
            return True

    # A drained node without work would be let go before its deadline.
    work = Work.remote()  # type: ignore[attr-defined]
    assert ray.get(work.is_there.remote())

    control(emulator, "knobs", {"notice_s": NOTICE_S})
    told = control(emulator, f"machines/{machine_name(CLUSTER, NODE)}/notice", {}).json()
    until(lambda: (seen := member()) and seen.is_draining, "Ray drains the node")
    seen = member()
    assert seen is not None
    assert seen.deadline_at == pytest.approx(told["evicts_at"], abs=1.0)

    until(lambda: member() is None, "Ray loses the node")
    until(lambda: local.list() == [], "the machine's power is off")
    assert local.processes(NODE) == (), "raylet, agent and work are gone"
    assert time.time() >= told["evicts_at"] - 1.0, "not before its time"
    state = httpx2.get(f"{emulator}/control/state").raise_for_status().json()
    assert (state["machines"], state["interfaces"], state["disks"]) == ({}, [], [])
    assert azure.list() == []
