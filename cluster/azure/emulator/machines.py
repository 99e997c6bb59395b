"""Emulated machines that run: each is a node of the local cluster, started from what its start-up data says.

It does what cloud-init and the image of a real one do: it writes the files of the document, and the node's service
joins the Ray head that `/etc/remora/node.json` names, with the agent beside it.  An instance of a scale set, whose
file names no node, first waits for the tag that does.
"""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml

from cluster.agent.metadata import MetadataService
from cluster.agent.naming import node_id_by_tag
from cluster.azure.body import NODE_FILE, NODE_SERVICE
from cluster.azure.emulator.state import Cloud, Machine
from cluster.local.provider import LocalProvider
from cluster.provider import NodeRequest, ProviderError

log = logging.getLogger(__name__)


class StartUpFailed(Exception):
    """The start-up data of a machine cannot be run; the message is one sentence."""


class LocalMachines:
    """Gives the machines of an emulated cloud processes of this host."""

    def __init__(self, cloud: Cloud, home: Path, metadata_url: Callable[[str], str] | None = None) -> None:
        """`home` is that of the cluster they join.

        `metadata_url` tells where the machine of a name finds its metadata service; without it they run no agent.
        """
        self._home = home
        self._metadata_url = metadata_url
        self._running: dict[str, tuple[LocalProvider, str]] = {}
        #: Machines that do not know yet which node they are, and what ends their wait.
        self._unnamed: dict[str, threading.Event] = {}
        self._lock = threading.Lock()
        # One thread: what happens to a machine happens in the order in which it was asked for.
        self._hands = ThreadPoolExecutor(1, thread_name_prefix="emulated-machines")
        cloud.on_start.append(lambda machine: self._do(self.start, machine))
        cloud.on_end.append(lambda machine: self._do(self.end, machine))

    def start(self, machine: Machine) -> None:
        """Boot: read the start-up data and join, once it is known which node it is."""
        node = read_node_file(machine.custom_data)
        if node["node"]:
            self._join(machine, node)
        elif self._metadata_url is None:
            raise StartUpFailed("no metadata service tells it which node it is")
        else:
            stopping = threading.Event()
            with self._lock:
                self._unnamed[machine.name] = stopping
            wait = (machine, node, self._metadata_url(machine.name), stopping)
            threading.Thread(target=self._join_when_named, args=wait, daemon=True).start()

    def _join_when_named(
        self, machine: Machine, node: dict[str, Any], url: str, stopping: threading.Event
    ) -> None:
        metadata = MetadataService(url)
        try:
            name = node_id_by_tag(metadata, stopping)
        finally:
            metadata.close()
        if name:
            self._do(lambda it: self._join_unless_ended(it, {**node, "node": name}, stopping), machine)

    def _join_unless_ended(self, machine: Machine, node: dict[str, Any], stopping: threading.Event) -> None:
        with self._lock:
            self._unnamed.pop(machine.name, None)
        # What ends a machine runs on this thread, too.
        if not stopping.is_set():
            self._join(machine, node)

    def _join(self, machine: Machine, node: dict[str, Any]) -> None:
        request = NodeRequest(
            node_id=node["node"],
            pool=node["pool"],
            resources=node["resources"],
            labels=node["labels"],
        )
        provider = LocalProvider(self._home, node["head"])
        with self._lock:
            self._running[machine.name] = (provider, node["node"])
        provider.create(request)
        if self._metadata_url is not None:
            provider.start_process(
                request.node_id, "agent", agent_command(node, self._metadata_url(machine.name))
            )

    def end(self, machine: Machine) -> None:
        """Take the power away."""
        with self._lock:
            running = self._running.pop(machine.name, None)
            stopping = self._unnamed.pop(machine.name, None)
        if stopping is not None:
            stopping.set()
        if running is not None:
            provider, node_id = running
            provider.kill(node_id)
            provider.delete(node_id)

    def close(self) -> None:
        """End every machine that still runs."""
        with self._lock:
            unnamed = list(self._unnamed.values())
        for stopping in unnamed:
            stopping.set()
        self._hands.shutdown(wait=True)
        with self._lock:
            left = list(self._running.values())
            self._running.clear()
        for provider, node_id in left:
            provider.kill(node_id)
            provider.delete(node_id)

    def _do(self, work: Any, machine: Machine) -> None:
        def told() -> None:
            try:
                work(machine)
            except (StartUpFailed, ProviderError) as error:
                # As on a real one: it runs and never joins.
                log.warning("machine %s: %s", machine.name, error)

        # Whoever learns its name while everything ends does not join any more.
        with contextlib.suppress(RuntimeError):
            self._hands.submit(told)


def agent_command(node: dict[str, Any], metadata_url: str) -> list[str]:
    """What the image of a machine starts beside Ray; `node` is its file."""
    return [
        *(sys.executable, "-P", "-m", "cluster.agent"),
        *("--head", node["head"], "--node-id", node["node"], "--metadata-url", metadata_url),
    ]


def read_node_file(custom_data: str) -> dict[str, Any]:
    """The node's file out of start-up data as Azure hands it over, base64 of a cloud-init document.

    Raises StartUpFailed when it is not such a document, lacks the file, or does not start the node's service.
    """
    try:
        text = base64.b64decode(custom_data, validate=True).decode()
        document = yaml.safe_load(text)
        files = {one["path"]: one["content"] for one in document["write_files"]}
        commands = document["runcmd"]
        node: dict[str, Any] = json.loads(files[NODE_FILE])
        missing = {"node", "pool", "head", "resources", "labels"} - node.keys()
    except (ValueError, KeyError, TypeError, yaml.YAMLError) as error:
        raise StartUpFailed(f"its start-up data cannot be read: {error!r}") from error
    if not text.startswith("#cloud-config\n"):
        raise StartUpFailed("its start-up data is not a cloud-init document")
    if not any(NODE_SERVICE in command for command in commands):
        raise StartUpFailed(f"its start-up data does not start {NODE_SERVICE}")
    if missing:
        raise StartUpFailed(f"{NODE_FILE} lacks {', '.join(sorted(missing))}")
    return node
