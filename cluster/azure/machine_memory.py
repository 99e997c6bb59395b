"""What one process knows of Azure's machines beyond what a list shows; when it is lost, the next list restores it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum

from cluster.azure import quota
from cluster.policies.offerings import Offering
from cluster.provider import NodeRequest, ProvidedNode, ProviderError


class Group(StrEnum):
    """Requests that Azure counts together, as far as it is known: a pause that it asks for holds for one group."""

    #: Lists of machines, and questions about one.
    MACHINES = "machines"
    #: The same of scale sets and their instances.
    SETS = "sets"
    #: Why something failed: operations, and what machines and sets say of themselves.
    REASONS = "reasons"
    #: Lists of network interfaces and disks.
    PARTS = "parts"
    USAGES = "usages"
    SKUS = "skus"
    #: Of the Resource Graph.
    GRAPH = "graph"
    SCORES = "scores"
    CREATE = "create"
    DELETE = "delete"
    #: Writing the document of a scale set, or of an instance.
    CHANGE_SET = "change-set"
    #: Ending instances, or a set.
    DELETE_SET = "delete-set"
    DELETE_PART = "delete-part"
    EVICT = "evict"


@dataclass
class RequestedMachine:
    """A machine that was asked for, as long as it is expected to be listed."""

    request: NodeRequest
    offering: Offering
    created_at: float
    #: Where its operation can be asked about; None when the answer was lost or another process asked.
    operation: str | None = None
    #: When the quotas were read that it was added to; None: it is in none that is known.
    counted_in: float | None = None


@dataclass(frozen=True)
class Deletion:
    """A machine was asked to go."""

    at: float
    #: Azure's own id of it; empty when it was never seen.
    vm_id: str = ""


@dataclass
class Memory:
    """All of it; times are seconds since 1970."""

    #: By machine name.
    requested: dict[str, RequestedMachine] = field(default_factory=dict)
    #: Nodes seen in the last look, by machine name.
    nodes: dict[str, ProvidedNode] = field(default_factory=dict)
    #: Azure's own ids of the machines seen in the last look, by machine name.
    vm_ids: dict[str, str] = field(default_factory=dict)
    #: Machines that were asked to go, by name.
    deleted: dict[str, Deletion] = field(default_factory=dict)
    #: What machines failed with.
    refusals: dict[str, ProviderError] = field(default_factory=dict)
    #: Before these times Azure is not asked for requests of a group.
    not_before: dict[Group, float] = field(default_factory=dict)
    #: Interfaces and disks without a machine, and since when.
    alone: dict[str, float] = field(default_factory=dict)
    swept_at: float = -math.inf
    #: Machines of others that bear this cluster's tag, by the last look.
    strangers: set[str] = field(default_factory=set)
    #: The last reading; None: none yet, or it turned out to be wrong.
    quotas: quota.Reading | None = None
    #: When they were last requested, with an answer or not.
    quotas_asked_at: float = -math.inf
    #: How many requests that change something have begun or ended.
    changes: int = 0
    #: The last list, and when it was asked for; None while something is expected to change.
    quiet: tuple[float, tuple[ProvidedNode, ...]] | None = None
