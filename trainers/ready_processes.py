"""Prestarts worker processes on free nodes, with everything imported, so that a worker group need not start them.

Ray gives an actor a waiting process only if that never ran anything.  Its raylets start such processes when they are
asked (`PrestartWorkers`, an RPC of Ray's own that this module alone uses, held by
`tests/integration/trainers/test_ready.py`), and have them import the modules that `trainers/preloaded.py` names.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import grpc
import ray
from ray._private import state as ray_state
from ray._private.authentication.grpc_authentication_client_interceptor import (
    SyncAuthenticationMetadataClientInterceptor,
)
from ray.core.generated import common_pb2, node_manager_pb2, node_manager_pb2_grpc

log = logging.getLogger(__name__)

#: Processes that wait on one node, at most; each holds some 150 MB.
_MOST = 8
#: Seconds that a raylet keeps them in any case; then as many as it has CPUs.
_KEEP_S = 600
_TIMEOUT_S = 2.0


@dataclass(frozen=True)
class NodeUse:
    """How many workers fit on a node in all, and how many more fit now."""

    ray_node_id: str
    slots: int
    free: int


def plan_prestarts(
    used: Mapping[str, int], seen: Iterable[NodeUse], *, is_quiet: bool
) -> tuple[dict[str, int], dict[str, int]]:
    """The new value of `used`, and how many processes each free node shall start now (pure).

    `used` says how many processes were taken on a node since it last got some.  A new node has none.  Nothing is
    started but in quiet times.
    """
    remembered: dict[str, int] = {}
    wanted: dict[str, int] = {}
    for node in seen:
        taken = max(used.get(node.ray_node_id, node.slots), node.slots - node.free)
        if is_quiet and node.free == node.slots and taken:
            wanted[node.ray_node_id] = min(taken, _MOST)
            taken = 0
        remembered[node.ray_node_id] = taken
    return remembered, wanted


class ReadyProcesses:
    """Keeps processes ready on the nodes of the cluster that this process is connected to."""

    def __init__(self, *, are_started: bool = True) -> None:
        """`are_started` False: none is, as where workers need an environment that such a process would not have."""
        self._are_started = are_started
        self._used: dict[str, int] = {}
        #: Requests under way, with the channels that they need.
        self._asked: list[tuple[Any, Any]] = []

    def look(self, *, is_quiet: bool) -> int:
        """Look for free nodes and, in quiet times, ask their raylets to replace what was taken; does not wait.

        Returns how many workers the nodes could have, all together.
        """
        nodes = {node["NodeID"]: node for node in ray.nodes() if node["Alive"] and _slots(node["Resources"])}
        available = ray_state.available_resources_per_node()
        seen = [
            NodeUse(name, _slots(node["Resources"]), _slots(available.get(name, {})))
            for name, node in nodes.items()
        ]
        self._used, wanted = plan_prestarts(self._used, seen, is_quiet=is_quiet)
        self._asked = [(call, channel) for call, channel in self._asked if not call.done()]
        for name, count in wanted.items() if self._are_started else ():
            self._ask(f"{nodes[name]['NodeManagerAddress']}:{nodes[name]['NodeManagerPort']}", count)
        return sum(node.slots for node in seen)

    def _ask(self, address: str, count: int) -> None:
        channel = grpc.intercept_channel(
            grpc.insecure_channel(address), SyncAuthenticationMetadataClientInterceptor()
        )
        request = node_manager_pb2.PrestartWorkersRequest(
            language=common_pb2.Language.PYTHON,
            job_id=bytes.fromhex(ray.get_runtime_context().get_job_id()),
            num_workers=count,
            keep_alive_duration_secs=_KEEP_S,
        )
        with contextlib.suppress(grpc.RpcError):  # its next worker is started when it is needed
            stub = node_manager_pb2_grpc.NodeManagerServiceStub(channel)
            self._asked.append((stub.PrestartWorkers.future(request, timeout=_TIMEOUT_S), channel))


def _slots(resources: Mapping[str, float]) -> int:
    """Workers that fit, each taken to have one GPU, or one CPU where there are none."""
    return int(resources.get("GPU") or resources.get("CPU") or 0)
