"""An actor that runs Ray Train's controller as a driver does, with an owner that only watches."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import ray

import trainers.ray_train as ours
from remora.spec.worker_sizes import WorkerSizes


@dataclasses.dataclass
class Watcher:
    """An owner that lets the first failure pass, and ends when it is asked to."""

    ends: bool = False
    members: list[ours.Member] = dataclasses.field(default_factory=list)
    identities: list[int] = dataclasses.field(default_factory=list)
    failures: list[tuple[set[int], set[int]]] = dataclasses.field(default_factory=list)
    said: list[str] = dataclasses.field(default_factory=list)

    def group_starts(self, members: list[ours.Member]) -> None:
        self.members = members
        self.identities = ray.get([member.call(_identity, member.rank) for member in members])

    def group_failed(self, members_lost: set[int], nodes_lost: set[int]) -> bool:
        self.failures.append((members_lost, nodes_lost))
        return len(self.failures) == 1

    def group_could_not_start(self, error: str) -> None:
        self.said.append(error)
        self.ends = True

    def absorbs(self, failed: set[int], dead: set[int], nodes_lost: set[int]) -> set[int]:
        return set()

    def grows_in_place(self) -> bool:
        return False

    def members_join(self, members: list[ours.Member]) -> None:
        self.said.append(f"{members} join although none may")

    def ended_slots(self) -> set[int]:
        return set()

    def wants_to_end(self) -> bool:
        return self.ends

    def may_grow(self) -> bool:
        return False

    def more_workers_fit(self, world_size: int) -> None:
        self.said.append(f"{world_size} fit although no group may grow")

    def sizes(self) -> WorkerSizes:
        return WorkerSizes(2, 2)

    def nominated_nodes(self) -> ours.NominatedNodes:
        return ours.NominatedNodes()

    def nodes_drain(self, deadlines: dict[str, float]) -> None:
        self.said.append(f"{deadlines} drain")


class Theatre:
    """An actor, as the driver is one: Ray Train's controller needs to run in an actor's process."""

    def play(self, train: Callable[[], None], ends: bool, folder: str) -> dict[str, Any]:
        owner = Watcher(ends=ends)
        error = ours.run_to_end(
            train, owner, name="att_contract", sizes=WorkerSizes(2, 2), resources={"CPU": 1.0},
            labels={}, storage_path=folder,
        )  # fmt: skip
        nodes = {member.ray_node_id for member in owner.members}
        return {
            "error": type(error).__name__,
            "failed": sorted(getattr(error, "worker_failures", {})),
            "identities": owner.identities,
            "failures": owner.failures,
            "said": owner.said,
            "nodes": nodes,
            "answering": ours.answering_nodes({*nodes, "00" * 28}),
            "draining": ours.draining_nodes(),
        }


def _identity(rank: int) -> int:
    return rank


def nothing() -> None:
    return


def fail() -> None:
    raise RuntimeError("as planned")
