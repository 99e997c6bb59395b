"""A provider in memory that keeps the promises of `cluster.provider.Provider`, with knobs for what can go wrong."""

from __future__ import annotations

import re
import time
from dataclasses import replace

from cluster.provider import InvalidRequest, NodeRequest, ProvidedNode, ProviderError


class FakeProvider:
    """Machines are rows of a dict; nothing happens unless a knob is turned."""

    def __init__(self) -> None:
        self.nodes: dict[str, ProvidedNode] = {}
        #: Every request that made a machine, in order.
        self.created: list[NodeRequest] = []
        #: Names given to `delete`, in order.
        self.deleted: list[str] = []
        self._next_create: list[ProviderError] = []
        self._next_list: list[ProviderError] = []

    def create(self, request: NodeRequest) -> None:
        """Make a machine, or raise what `fail_next_create` was given."""
        if self._next_create:
            raise self._next_create.pop(0)
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", request.node_id):
            raise InvalidRequest(f"{request.node_id!r} is not a node id")
        if any(not 0 <= amount < float("inf") for amount in request.resources.values()):
            raise InvalidRequest("resources are numbers, 0 or more")
        if request.node_id in self.nodes:
            return
        self.created.append(request)
        self.nodes[request.node_id] = ProvidedNode(
            node_id=request.node_id,
            pool=request.pool,
            is_running=True,
            address=f"10.0.0.{len(self.created)}",
            created_at=time.time(),
        )

    def list(self) -> list[ProvidedNode]:
        """Every machine, or raise what `fail_next_list` was given."""
        if self._next_list:
            raise self._next_list.pop(0)
        return list(self.nodes.values())

    def delete(self, node_id: str) -> None:
        """Forget a machine."""
        self.deleted.append(node_id)
        self.nodes.pop(node_id, None)

    def kill(self, node_id: str) -> None:
        """Knob: the machine dies and stays listed."""
        self.nodes[node_id] = replace(self.nodes[node_id], is_running=False, message="it was killed")

    def lose(self, node_id: str) -> None:
        """Knob: the machine disappears from the list, as when it was deleted by hand."""
        del self.nodes[node_id]

    def fail_next_create(self, error: ProviderError) -> None:
        """Knob: the next `create` raises this and makes nothing; several calls queue up."""
        self._next_create.append(error)

    def fail_next_list(self, error: ProviderError) -> None:
        """Knob: the next `list` raises this; several calls queue up."""
        self._next_list.append(error)
