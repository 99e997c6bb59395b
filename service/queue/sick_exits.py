"""Whether the end of an attempt on GPUs is the fault of a node that is found to be sick at about that time (pure).

A GPU that fails shows itself to the script first, in one of many errors, and to the node's agent at its next look.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cluster.scheduling.health import DRAIN_S
from remora.states import EndReason

#: Seconds between the end of a command and the report that its node is sick, whichever comes first; the agent looks
#: every 30 s (`cluster/node/agent/agent.py`), and the service asks for what it saw.
JOINED_S = 60.0
#: Seconds for which a node that is known to be sick may still have workers: its drain, and a look.
LEAVES_S = DRAIN_S + JOINED_S

#: Ends that a GPU may be the cause of.
_REASONS = (EndReason.EXIT_CODE, EndReason.SIGNAL, EndReason.HANG)
#: What an error that a GPU may be the cause of speaks of.
_SPEAKS_OF_DEVICES = re.compile(r"\b(cuda|nccl|nvml|gpu|accelerator)", re.IGNORECASE)
#: What no GPU is sick for.
_OUT_OF_MEMORY = re.compile(r"out of memory", re.IGNORECASE)


@dataclass(frozen=True)
class GpuEnd:
    """An attempt whose workers had GPUs is over."""

    reason: EndReason
    message: str
    #: Seconds since 1970.
    at: float
    #: Addresses of the nodes of its workers.
    nodes: frozenset[str]


def sick_node(end: GpuEnd, sick_since: Mapping[str, float]) -> str | None:
    """The address of the node whose fault the end is, given since when nodes are known to be sick; None: none's."""
    if end.reason not in _REASONS:
        return None
    after = {one: sick_since[one] - end.at for one in sorted(end.nodes & sick_since.keys())}
    near = {one: abs(by) for one, by in after.items() if -LEAVES_S <= by <= JOINED_S}
    return min(near, key=near.__getitem__, default=None)


def is_held(end: GpuEnd, now: float) -> bool:
    """True while a report may still come that makes the end a node's fault; errors of Python itself are not held."""
    speaks = end.reason is not EndReason.EXIT_CODE or _SPEAKS_OF_DEVICES.search(end.message) is not None
    may_be = end.reason in _REASONS and speaks and _OUT_OF_MEMORY.search(end.message) is None
    return may_be and 0.0 <= now - end.at < JOINED_S


def nodes_of(present: Iterable[str], reported: Iterable[Mapping[str, object]]) -> frozenset[str]:
    """Nodes of an attempt: those that are stored, and those of reports that are not stored yet."""
    return frozenset(present).union(*reported)
