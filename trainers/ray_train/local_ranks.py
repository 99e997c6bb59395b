"""The local rank of a worker, which is its own for its life, and the GPUs that it sees because of it (pure).

A script chooses its device by LOCAL_RANK once, when it starts, and has its model there.  So a worker that joins gets
the lowest number that no living worker of its node has, and no other worker's number changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: The GPUs that Ray gave to a worker, as CUDA_VISIBLE_DEVICES names them.
Gpus = Sequence[int | str]


@dataclass(frozen=True)
class LocalWorker:
    """A worker that lives."""

    #: Ray's name of its node.
    node: str
    local_rank: int
    gpus: Gpus = ()


@dataclass(frozen=True)
class LocalPlace:
    """What a worker that joins gets."""

    local_rank: int
    #: Workers of the node that live, with those that join.
    local_world_size: int
    #: CUDA_VISIBLE_DEVICES; empty without GPUs.
    visible_gpus: str


def places_of_joiners(
    present: Sequence[LocalWorker], joining: Sequence[tuple[str, Gpus]]
) -> list[LocalPlace]:
    """The places of workers that join, given the node and the GPUs of each."""
    nodes: dict[str, dict[int, Gpus]] = {}
    for worker in present:
        nodes.setdefault(worker.node, {})[worker.local_rank] = worker.gpus
    numbers = []
    for node, gpus in joining:
        of_node = nodes.setdefault(node, {})
        numbers.append(next(number for number in range(len(of_node) + 1) if number not in of_node))
        of_node[numbers[-1]] = gpus
    return [
        LocalPlace(number, len(nodes[node]), _visible(number, nodes[node]))
        for number, (node, _) in zip(numbers, joining, strict=True)
    ]


def _visible(local_rank: int, gpus: Mapping[int, Gpus]) -> str:
    """The GPUs in the order of local ranks, up to the first number that no worker has.

    Ray may give a worker any GPU that is free, and its local rank picks one among those that it sees.  Where workers
    share GPUs, one sees only what it was given.
    """
    seen: list[str] = []
    for number in range(len(gpus)):
        if number not in gpus:
            break
        seen += map(str, gpus[number])
    return ",".join(seen if len(set(seen)) == len(seen) else map(str, gpus[local_rank]))
