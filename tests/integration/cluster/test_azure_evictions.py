"""The emulated Azure as a process of its own: its machines are real raylets with agents, which hear of evictions."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
import ray
from azure.identity.aio import ManagedIdentityCredential
from ray._raylet import GcsClient

from cluster.azure import catalogue
from cluster.azure.body import machine_name
from cluster.azure.emulator.server import REGION
from cluster.azure.provider import AzureProvider
from cluster.local.connection import connect
from cluster.local.environment import MACHINE_VARIABLE, process_environment
from cluster.local.head import start_head, stop_head, wait_until_reachable
from cluster.local.provider import LocalProvider
from cluster.local.records import MachineRecord
from cluster.processes import find_by_environment
from cluster.provider import NodeRequest
from cluster.ray.members import MemberNode
from cluster.ray.membership import BEAT_NAMESPACE, BEAT_PREFIX, RayMembership
from tests.contracts.cluster.azure_rig import CLUSTER, CPU_SIZE, settings
from tests.e2e.processes import is_alive, until

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(600)]

#: Long enough for the agent to hear of it on a busy machine, and not as long as the usual one.
NOTICE_S = 20.0


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def head(home: Path) -> Iterator[MachineRecord]:
    started = start_head(home)
    wait_until_reachable(home, started)
    connect(home, started.ray_address)
    yield started
    ray.shutdown()
    stop_head(home)
    assert find_by_environment(MACHINE_VARIABLE, started.mark) == []


@pytest.fixture(scope="module")
def emulator(home: Path, head: MachineRecord) -> Iterator[str]:
    """Address of `python -m cluster.azure.emulator --home ...`."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "cluster.azure.emulator",
            "--port",
            "0",
            "--home",
            str(home),
            "--cluster",
            CLUSTER,
        ],
        env=process_environment(home),
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
        local = LocalProvider(home, "")
        for node_id in local.node_ids():
            local.kill(node_id)
            local.delete(node_id)


@pytest.fixture(scope="module")
def azure(emulator: str, head: MachineRecord) -> Iterator[AzureProvider]:
    offerings = catalogue.offerings(REGION)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", emulator)
        identity = ManagedIdentityCredential(client_id="rig")
        provider = AzureProvider(settings(emulator), identity, head.ray_address, lambda: offerings)
        yield provider
        provider.close()


class Joined:
    """A spot machine that the emulated cloud made, once it has joined and its agent has given a sign of life."""

    def __init__(
        self, azure: AzureProvider, emulator: str, head: MachineRecord, home: Path, node_id: str
    ) -> None:
        self.node_id = node_id
        self.machine = machine_name(CLUSTER, node_id)
        self._emulator = emulator
        self._local = LocalProvider(home, head.ray_address)
        azure.create(
            NodeRequest(
                node_id=node_id,
                pool="cpu",
                resources={"CPU": 1.0},
                offering=f"{CPU_SIZE}/1/spot",
            )
        )
        # No client asks the cloud for anything from here on: it makes the machine, and takes it, by itself.
        until(self.member, "the machine joins")
        client, key = GcsClient(address=head.ray_address), BEAT_PREFIX + node_id.encode()
        until(lambda: client.internal_kv_get(key, BEAT_NAMESPACE), "its agent gives a sign of life")
        self.heartbeat = json.loads(client.internal_kv_get(key, BEAT_NAMESPACE))

    def member(self) -> MemberNode | None:
        found = RayMembership().observe().get(self.node_id)
        return found if found is not None and found.is_alive else None

    def is_drained(self) -> MemberNode:
        """As Ray sees it once it drains."""
        return until(
            lambda: (seen := self.member()) and (seen if seen.is_draining else None), "Ray drains it"
        )

    def processes(self) -> tuple[psutil.Process, ...]:
        return self._local.processes(self.machine)

    def agent(self) -> psutil.Process:
        (agent,) = [one for one in self.processes() if "cluster.node.agent" in one.cmdline()]
        return agent

    def control(self, what: str) -> dict[str, Any]:
        """The cloud does this to the machine; its answer."""
        answer = control(self._emulator, f"machines/{self.machine}/{what}", {})
        found: dict[str, Any] = answer.json() if answer.content else {}
        return found

    def is_gone(self) -> None:
        """Ray loses it, and nothing of it is left, in the cloud's books either."""
        until(lambda: self.member() is None, "Ray loses the node")
        until(lambda: self._local.list() == [], "the machine's power is off")
        assert self.processes() == (), "raylet, agent and work are gone"
        state = books(self._emulator)
        assert (state["machines"], state["interfaces"], state["disks"]) == ({}, [], [])


@ray.remote(num_cpus=1)
class Work:
    """What keeps a drained node: one without work would be let go before its deadline."""

    def is_there(self) -> bool:
        return True


def begin_work() -> Any:
    work = Work.remote()  # type: ignore[attr-defined]
    assert ray.get(work.is_there.remote())
    return work


class Announced:
    """An event of the metadata service of one machine."""

    def __init__(self, emulator: str, machine: str, announcement: dict[str, Any]) -> None:
        url = f"{emulator}/metadata/control/machines/{machine}/events"
        answer = httpx2.post(url, json=announcement).raise_for_status().json()
        self._url = f"{emulator}/metadata/control/events/{answer['EventId']}"

    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = httpx2.get(self._url).raise_for_status().json()
        return found


def control(emulator: str, path: str, document: dict[str, Any]) -> httpx2.Response:
    return httpx2.post(f"{emulator}/control/{path}", json=document).raise_for_status()


def books(emulator: str) -> dict[str, Any]:
    found: dict[str, Any] = httpx2.get(f"{emulator}/control/state").raise_for_status().json()
    return found


def blocks_sigterm(pid: int) -> bool:
    (mask,) = re.findall(r"^SigBlk:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(int(mask, 16) >> (signal.SIGTERM - 1) & 1)


def test_a_machine_that_azure_takes_is_drained_until_it_goes_with_all_that_ran_on_it(
    home: Path, head: MachineRecord, emulator: str, azure: AzureProvider
) -> None:
    machine = Joined(azure, emulator, head, home, "node_a")
    assert not blocks_sigterm(machine.agent().pid)
    _work = begin_work()
    control(emulator, "knobs", {"notice_s": NOTICE_S})
    evicts_at = machine.control("notice")["evicts_at"]
    assert machine.is_drained().deadline_at == pytest.approx(evicts_at, abs=1.0)
    machine.is_gone()
    assert time.time() >= evicts_at - 1.0, "not before its time"
    assert azure.list() == []


def test_the_event_is_acknowledged_to_the_cloud_once_the_work_has_left(
    home: Path, head: MachineRecord, emulator: str, azure: AzureProvider
) -> None:
    machine = Joined(azure, emulator, head, home, "node_b")
    assert machine.heartbeat["problems"] == []
    work = begin_work()
    event = Announced(emulator, machine.machine, {"type": "Terminate", "notice_s": 600})
    not_before = parsedate_to_datetime(event.document()["NotBefore"]).timestamp()
    drained = machine.is_drained()
    assert drained.deadline_at == pytest.approx(not_before, abs=2.0)
    assert drained.leaves is not None
    assert "Terminate" in drained.leaves
    assert not event.document()["IsAcknowledged"], "its work is still there"
    ray.kill(work)
    until(lambda: event.document()["IsAcknowledged"], "the event is acknowledged")
    agent = machine.agent()
    assert is_alive(agent)
    agent.send_signal(signal.SIGTERM)
    until(lambda: not is_alive(agent), "its agent ends when it is asked to")
    assert "Traceback" not in (home / f"nodes/{machine.machine}.log").read_text()
    machine.control("evict")
    machine.is_gone()
