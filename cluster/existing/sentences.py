"""What Remora needs of a cluster that it did not start, one sentence for each thing that is missing (pure)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

#: Nodes that one sentence names.
_NAMED = 3
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9_.-]+):([0-9]{1,5})")


@dataclass(frozen=True, kw_only=True)
class NodeFacts:
    """What a process of Ray on one node found there."""

    address: str
    #: Its Python, as `3.11.9`.
    python: str = ""
    #: The first of our imports that failed there: what it said; empty: none.
    lacks: str = ""
    #: Why it does not see in the storage what the service wrote there; empty: it does.
    storage: str = ""
    #: Why commands of jobs run there as the user of Ray's processes; empty: as users of their own.
    isolation: str = ""
    #: Why nothing is known of it; empty: it answered.
    silence: str = ""


def address_problem(given: str) -> str | None:
    """Why this is no address of a head, as a sentence; None when it may be one."""
    found = _ADDRESS.fullmatch(given)
    if found is not None and 0 < int(found.group(2)) < 65_536:
        return None
    if given.startswith("ray://"):
        return (
            "ray:// leads to Ray Client, through which no node can be asked: give the address of the head itself, as"
            " --ray-address HOST:6379"
        )
    return f"{given[:80]!a} is no address of a Ray head: write it as HOST:PORT, the port is usually 6379"


def version_problems(ours: Mapping[str, str], theirs: Mapping[str, Any]) -> list[str]:
    """Versions that differ, of the keys `ray_version` and `python_version` of Ray's own description of a cluster."""
    found = []
    ray, other = ours["ray_version"], str(theirs.get("ray_version", "of no known version"))[:40]
    if other != ray:
        found.append(
            f"the cluster runs Ray {other} and Remora Ray {ray}, which have to be equal: give the cluster an image with"
            f" ray=={ray}"
        )
    python, other = ours["python_version"], str(theirs.get("python_version", "of no known version"))[:40]
    if _minor(python) != _minor(other):
        found.append(
            f"the cluster runs Python {other} and Remora Python {python}, of which the first two numbers have to be"
            " equal: start Remora with that Python"
        )
    return found


def node_problems(nodes: Iterable[NodeFacts], storage: str, python: str) -> list[str]:
    """What keeps jobs from running on these nodes; `storage` is the service's, `python` is that of the service."""
    found = []
    seen = list(nodes)
    if not seen:
        found.append(
            "the cluster has no node with CPUs or GPUs: start one, or let its own autoscaler keep one running"
        )
    for why, where in _where(seen, "silence").items():
        found.append(f"{where} did not carry out a task of Remora's: {why}")
    others = {one.address: one.python for one in seen if one.python and _minor(one.python) != _minor(python)}
    if others:
        found.append(
            f"{_named(others)} runs Python {next(iter(others.values()))} and Remora Python {python}, of which the first"
            " two numbers have to be equal"
        )
    for why, where in _where(seen, "lacks").items():
        found.append(
            f"{where} cannot import what Remora brings ({why}): install remora[service] or that package in the image"
            " of its nodes"
        )
    for why, where in _where(seen, "storage").items():
        found.append(
            f"{where} does not see the storage {storage} ({why}): set REMORA_STORAGE_URL to a folder or a URL that all"
            " nodes and this machine reach"
        )
    return found


@dataclass(frozen=True)
class SortedOut:
    """Which nodes are used, of those that were looked at."""

    #: Why none can be used; empty: some can.
    problems: list[str]
    #: What an operator should know, that some nodes are not used among it.
    notes: list[str]
    #: Ids of the nodes that are not used.
    unfit: list[str]


def sorted_out(found: Mapping[str, NodeFacts], storage: str, python: str) -> SortedOut:
    """The cluster can be used as long as one node can; `found` are facts by Ray's ids of nodes."""
    unfit = [name for name, facts in found.items() if node_problems([facts], storage, python)]
    lacks = node_problems([found[name] for name in unfit], storage, python) if unfit or not found else []
    if len(unfit) == len(found):
        return SortedOut(lacks, [], unfit)
    notes = [f"{said}; it is not used until the next `remora up`" for said in lacks]
    return SortedOut(
        [], [*notes, *node_notes(facts for name, facts in found.items() if name not in unfit)], unfit
    )


def made_by_remora(addresses: Iterable[str]) -> str:
    """Why a cluster with nodes that a Remora has made is not used as one that exists already."""
    return (
        f"{_named(addresses)} was made by a Remora, whose cluster this is: give the address of another cluster, or"
        " submit jobs to that service"
    )


def head_notes(addresses: Iterable[str]) -> list[str]:
    """What to know where the head of the cluster has CPUs or GPUs, which jobs use as those of any node."""
    return [
        f"jobs run on the head {one}, too, beside what keeps the cluster's state: start it with --num-cpus=0 if they"
        " should not"
        for one in addresses
    ]


def node_notes(nodes: Iterable[NodeFacts]) -> list[str]:
    """What an operator should know and nothing has to be done about."""
    return [
        f"commands of jobs on {where} run as the user of Ray's processes: {why}"
        for why, where in _where(nodes, "isolation").items()
    ]


def _where(nodes: Iterable[NodeFacts], what: str) -> dict[str, str]:
    """The nodes that say the same, in words, by what they say; those that say nothing are left out."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for node in nodes:
        if said := getattr(node, what):
            found[said].append(node.address)
    return {said: _named(addresses) for said, addresses in found.items()}


def _named(addresses: Iterable[str]) -> str:
    named = sorted(addresses)
    more = "" if len(named) <= _NAMED else f" and {len(named) - _NAMED} more"
    return f"{'the node' if len(named) == 1 else 'each of the nodes'} {', '.join(named[:_NAMED])}{more}"


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]
