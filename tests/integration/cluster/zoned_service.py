"""The service over an emulated Azure whose machines stand in zones; a test runs its ticks and looks on.

The head, the API, the controller with all its loops, Azure's own clients and the machines are the real ones; only the
pause between two ticks is the test's.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest
import ray

from cluster.azure.emulator.emulated_cloud import DELETING, Cloud, EmulatedMachine
from cluster.azure.emulator.server import EmulatorServer
from cluster.azure.emulator.start_up import read
from cluster.local import connection
from cluster.local.environment import process_environment
from cluster.local.head import start_head, stop_head, wait_until_reachable
from cluster.local.provider import LocalProvider
from cluster.node.boot import parse
from cluster.policies.offerings import zone_and_capacity
from cluster.provider import NodeRequest
from cluster.scheduling.view import LEAVING
from remora import Client
from remora.ray_labels import NODE_LABEL
from remora.views import Job
from service.controller.connecting import connect
from service.controller.controller import Controller
from service.embedded.emulated_azure import emulated_azure_settings, write_azure_settings
from service.queue.rows import NodeRow
from service.settings import Settings
from service.store.database import Database
from service.store.jobs import live_attempts
from service.store.migrate import migrate
from service.store.nodes import current_nodes
from tests.e2e.processes import PATIENCE_S
from tests.e2e.processes import until as wait_for
from trainers.ray_train import draining_nodes

#: Where the controller learns its tokens; it says so to the whole process.
_TOKENS = "AZURE_POD_IDENTITY_AUTHORITY_HOST"
_POLICIES = """\
pools:
  cpu:
    sizes: [Standard_D4s_v5]
    zones: [{zones}]
    capacity: spot
    max_nodes: {max_nodes}
    join_timeout_s: {join_timeout_s}
    idle_s: 5
"""


class ZonedService:
    """One service, its cloud and its Ray cluster."""

    def __init__(
        self, server: EmulatorServer, controller: Controller, database: Database, client: Client, home: Path
    ) -> None:
        self.client = client
        self._server = server
        self._controller = controller
        self._database = database
        self._local = LocalProvider(home, "")
        #: The pool's limit that holds now.
        self._max_nodes = 0

    # --- as operators and users

    def follow(self, zones: str, max_nodes: int, join_timeout_s: float = 180.0) -> None:
        """Buy that number of spot machines at most, in these zones in order of preference."""
        self._max_nodes = max(max_nodes, self._max_nodes)
        document = _POLICIES.format(zones=zones, max_nodes=max_nodes, join_timeout_s=join_timeout_s)
        self.client.apply_policy(document, based_on=self.client.policy().version)

    def trains(self, job: Job, workers: int, steps: int = 10) -> None:
        """Wait until that number of workers have done some steps together."""

        def size() -> int:
            return self.client.job(job.id).world_size

        self.until(lambda: size() == workers, f"{workers} workers train")
        after = self.client.job(job.id).step or 0
        self.until(
            lambda: size() == workers and (self.client.job(job.id).step or 0) >= after + steps,
            "they do steps",
        )

    def says(self, node_id: str) -> list[tuple[str, str]]:
        """Kind and message of a node's events."""
        return [(event.kind, event.message) for event in self.client.node_events(node_id)]

    # --- what there is

    def rows(self) -> list[NodeRow]:
        """All nodes that there ever were, oldest first."""
        return self._database.query(lambda connection: current_nodes(connection, "default", 0.0))

    def living(self, zone: str) -> list[NodeRow]:
        """Nodes of a zone that are not given up."""
        return [row for row in self.rows() if zone_and_capacity(row.offering)[0] == zone and _stays(row)]

    def have_ended(self, nodes: list[NodeRow]) -> bool:
        """The service has done with all of these nodes."""
        return {row.id for row in nodes} <= {row.id for row in self.rows() if row.ended_at is not None}

    def were_turned_away(self, nodes: list[NodeRow]) -> bool:
        """All of these nodes have joined the Ray cluster, and take no work any more.

        One to which Ray had given a worker before it was drained stays a draining member until its machine ends.
        """
        going = draining_nodes().keys()
        works = {n["Labels"].get(NODE_LABEL): n["Alive"] and n["NodeID"] not in going for n in ray.nodes()}
        return not any(works.get(row.id, True) for row in nodes)

    def workers_are_on(self, nodes: list[NodeRow]) -> bool:
        """The workers of the one job are on these nodes, one on each."""
        ((_, attempt),) = self._database.query(lambda c: live_attempts(c, "default"))
        return attempt.workers == {row.address: 1 for row in nodes}

    def processes(self, nodes: list[NodeRow]) -> list[psutil.Process]:
        """What still runs on machines of these nodes."""
        return [process for row in nodes for process in self._local.processes(row.id)]

    def resources(self) -> int:
        """Machines, interfaces and disks in the cloud's books."""
        cloud = self._server.cloud
        return len(cloud.machines) + len(cloud.interfaces) + len(cloud.disks)

    # --- the cloud

    def deletions_take_long(self) -> None:
        """Whatever is deleted from now on runs until `deletions_end`; a real cloud takes minutes."""
        self._server.cloud.delete_s = 3600.0

    def deletions_end(self) -> None:
        """What was deleted is gone."""
        self._server.cloud.delete_s = 0.0
        for operation in list(self._server.cloud.operations.values()):
            operation.due_at = 0.0

    # --- ticks

    def until(self, seen: Callable[[], object], what: str) -> None:
        """Tick until it is so; after each no limit may be passed."""
        deadline = time.monotonic() + PATIENCE_S
        pause = threading.Event()
        while not seen():
            assert time.monotonic() < deadline, f"not within {PATIENCE_S:g} s: {what}\n{self._story()}"
            assert self._controller.tick(time.time())
            self._check()
            pause.wait(0.25)

    def _check(self) -> None:
        assert sum(map(_stays, self.rows())) <= self._max_nodes, self._story()
        machines = [one for one in list(self._server.cloud.machines.values()) if one.state != DELETING]
        assert len(machines) <= self._max_nodes, "machines that were never asked to go"
        members = Counter(node["Labels"].get(NODE_LABEL) for node in ray.nodes() if node["Alive"])
        twice = [name for name, times in members.items() if name is not None and times > 1]
        assert not twice, "they are members twice"

    def _story(self) -> str:
        reported = [f"{row.id} {row.offering} {row.state}: {row.message}" for row in self.rows()]
        return "\n".join([*reported, *(f"{one.id} {one.state} {one.message}" for one in self.client.jobs())])


def _stays(row: NodeRow) -> bool:
    return row.ended_at is None and row.state not in LEAVING


class PlainMachines:
    """The machines of a cloud as plain nodes of the local cluster, named by their start-up data.

    They do not boot as real ones do: from the network of a zone no process reaches the metadata service and the key
    vault on this host's loopback.
    """

    def __init__(self, cloud: Cloud, home: Path) -> None:
        self._home = home
        self._nodes: dict[str, tuple[LocalProvider, str]] = {}
        self._executor = ThreadPoolExecutor(1)
        cloud.on_start.append(lambda machine: self._do(self._start, machine))
        cloud.on_end.append(lambda machine: self._do(self._end, machine))

    def _do(self, work: Callable[[EmulatedMachine], None], machine: EmulatedMachine) -> None:
        self._executor.submit(work, machine)

    def _start(self, machine: EmulatedMachine) -> None:
        (file,) = read(machine.custom_data).files
        node = parse(file.content)
        assert node.node is not None
        provider = LocalProvider(self._home, node.head)
        self._nodes[machine.name] = (provider, node.node)
        resources, labels = node.resources, node.labels
        provider.create(NodeRequest(node_id=node.node, pool=node.pool, resources=resources, labels=labels))

    def _end(self, machine: EmulatedMachine) -> None:
        self._forget(machine.name)

    def _forget(self, name: str) -> None:
        provider, node_id = self._nodes.pop(name)
        provider.kill(node_id)
        provider.delete(node_id)

    def close(self) -> None:
        """End every machine that still runs."""
        self._executor.shutdown(wait=True)
        for name in list(self._nodes):
            self._forget(name)


@contextmanager
def open_zoned_service(home: Path) -> Iterator[ZonedService]:
    """A service whose nodes are emulated machines; nothing of it is left afterwards."""
    with ExitStack() as stack:
        head = start_head(home)
        stack.callback(stop_head, home)
        wait_until_reachable(home, head)
        server = stack.enter_context(EmulatorServer(passes_every_s=0.25))
        stack.callback(PlainMachines(server.cloud, home).close)
        stack.enter_context(pytest.MonkeyPatch.context()).setenv(_TOKENS, server.url)
        # A job that is kept apart would not see the file by which a test ends it.
        settings = Settings(
            home=home,
            cloud="azure-emulated",
            port=0,
            lease_s=3600.0,
            warm_modules="torch",
            isolation="none",
        )
        write_azure_settings(settings.azure, emulated_azure_settings(server.url))
        database = Database(settings.database)
        stack.callback(database.close)
        migrate(database)
        client = stack.enter_context(_api(settings))
        connection.connect(home, head.ray_address)
        stack.callback(ray.shutdown)
        controller = Controller(database, settings, connect(settings, head.ray_address))
        stack.callback(controller.close)
        yield ZonedService(server, controller, database, client, home)


@contextmanager
def _api(settings: Settings) -> Iterator[Client]:
    words = [sys.executable, "-m", "service.api_process", "--home", str(settings.home), "--port", "0"]
    process = subprocess.Popen(words, env=process_environment(settings.home, REMORA_CLOUD=settings.cloud))
    address = settings.home / "api.url"
    try:
        wait_for(address.exists, "the API says where it is")
        with Client(address.read_text().strip()) as client:
            yield client
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
