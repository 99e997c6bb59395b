"""Fabric domains within a plan: how many nodes each has, and in which one a pool's next node is launched (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from hashlib import sha256

from cluster.lazy_property import lazy
from cluster.policies.offerings import Offering
from cluster.scheduling.fitting import FABRIC_NODES
from cluster.scheduling.view import NodeView

#: Characters of a pool's name in the name of a domain, which becomes a label of Ray nodes: 63 characters at most.
POOL_CHARACTERS = 24


class Domains:
    """Counts the nodes of every domain, with what the plan launches into it."""

    def __init__(self, nodes: Iterable[NodeView]) -> None:
        self._there = nodes

    @lazy
    def _nodes(self) -> Counter[str]:
        # Nodes that leave count until they are gone.
        return Counter(node.fabric for node in self._there if node.fabric is not None and node.is_paid)

    def nodes_left(self, name: str) -> int:
        """Nodes that may still be launched into the domain."""
        return max(0, FABRIC_NODES - self._nodes[name])

    def add(self, name: str) -> None:
        """One more node is launched into it."""
        self._nodes[name] += 1

    def add_own(self, pool: str, offering: Offering) -> str | None:
        """The domain of a node that a pool keeps for any job; None for machines without InfiniBand.

        A job that needs InfiniBand finds such nodes together: they are in the first domain of the pool and the offering
        that is not full.
        """
        if not offering.has_fabric:
            return None
        digits = sha256(f"{pool} {offering.id}".encode()).hexdigest()[:8]
        first = name = f"{pool[:POOL_CHARACTERS]}-own-{digits}"
        number = 1
        while not self.nodes_left(name):
            number += 1
            name = f"{first}-{number}"
        self.add(name)
        return name
