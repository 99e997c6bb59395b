"""Reservations of resources for workers: one placement group for each of them, on a node that is known beforehand.

A placement group of several bundles that loses one is placed again by Ray 2.60 without any pause, as long as there is
no capacity for that bundle, which takes a core of the cluster's head.  And it takes the first machine that comes, for a
worker that may not be wanted any more.  A group of one bundle on a named node can do neither: when the node is gone, it
waits for nothing.  The code that starts a worker reserves its resources, and frees them when the worker is gone.
"""

from __future__ import annotations

import contextlib
import logging
import random
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import ray
from ray.experimental import internal_kv
from ray.util.placement_group import (
    PlacementGroup,
    get_placement_group,
    placement_group,
    remove_placement_group,
)

from trainers.ray_train.liveness import answering_nodes, draining_nodes

log = logging.getLogger(__name__)

#: Label by which Ray knows each node.
_NODE_ID_LABEL = "ray.io/node-id"
#: Where Ray's internal store keeps how many numbers the placement groups of an attempt have had.
_KV_NAMESPACE = b"remora"
_PREFIX = "reservations:"
#: Seconds between two looks at the nodes on which capacity is waited for.
_NODES_S = 0.5
_random = random.SystemRandom()


@dataclass(frozen=True)
class Reservation:
    """The resources of one worker on one node, which are there or were asked for."""

    ray_node_id: str
    group: PlacementGroup
    #: Part of its name; Ray refuses a name that a living placement group has.
    number: int


class Reservations:
    """What is reserved for one worker group; to Ray Train it is the handle of a placement group, and that group."""

    def __init__(self, name: str, resources: Mapping[str, float], selector: Mapping[str, str]) -> None:
        """`name` is that by which `free_reservations` finds it, `resources` are those of one worker.

        `selector` are labels of every node, as Ray writes them.
        """
        self._name = name
        self._resources = dict(resources)
        self._selector = dict(selector)
        #: Numbers up to which `free_reservations` looks.
        self._known = _read_count(name)
        #: In the order in which they were asked for.
        self.held: list[Reservation] = []

    def ask(self, ray_node_ids: Iterable[str]) -> list[Reservation]:
        """Ask for capacity for one worker on each of these nodes; returns at once.

        Raises RayError, with nothing asked for, when Ray does not answer.
        """
        nodes = list(ray_node_ids)
        asked: list[Reservation] = []
        try:
            for node, number in zip(nodes, self._take_numbers(len(nodes)), strict=True):
                group = placement_group(
                    [self._resources],
                    name=_group_name(self._name, number),
                    bundle_label_selector=[{**self._selector, _NODE_ID_LABEL: node}],
                )
                asked.append(Reservation(node, group, number))
                self.held.append(asked[-1])
        except Exception:
            self.free(asked)
            raise
        return asked

    def _take_numbers(self, count: int) -> list[int]:
        used = {one.number for one in self.held}
        numbers = [number for number in range(len(used) + count) if number not in used][:count]
        needed = max(numbers, default=-1) + 1
        if needed > self._known:
            # Before there are any, else they would not be found after the death of this process.
            _write_count(self._name, needed)
            self._known = needed
        return numbers

    def are_there(
        self, asked: Sequence[Reservation], timeout_s: float, patience_s: float | None = None
    ) -> bool:
        """Wait until all of these are there; else none of them is left, also when Ray does not answer.

        Two worker groups may wait for what the other one has: one that has a part gives up after `patience_s`, drawn at
        random by default so that the other one, which waits longer, gets it.
        """
        if patience_s is None:
            patience_s = _random.uniform(timeout_s / 3, timeout_s)
        try:
            is_there = _wait(asked, timeout_s, patience_s)
        except ray.exceptions.RayError as error:
            log.warning("it is not known whether there is capacity for workers: %s", error)
            is_there = False
        if not is_there:
            self.free(asked)
        return is_there

    def free(self, unneeded: Collection[Reservation]) -> None:
        """Give these back; workers in them end.  Fine when they are free already."""
        for one in [one for one in self.held if one in unneeded]:
            remove_placement_group(one.group)
            self.held.remove(one)

    # --- what Ray Train asks of the handle of a placement group

    @property
    def placement_group(self) -> Reservations:
        """What workers are created with."""
        return self

    def wait(self, timeout_seconds: float) -> bool:
        """True when all of it is there; it is for the caller to shut it down when it is not."""
        return self.are_there(list(self.held), timeout_seconds)

    def shutdown(self) -> None:
        """Give all of it back."""
        self.free(list(self.held))


def free_reservations(name: str) -> None:
    """Give back what was reserved under that name, by whatever process; fine when there is nothing.

    Costs a question for each worker that there was at once: Ray's own table has every group that there ever was.
    """
    for number in range(_read_count(name)):
        with contextlib.suppress(ValueError):
            remove_placement_group(get_placement_group(_group_name(name, number)))


def names_reserved() -> list[str]:
    """Every name under which anything was reserved and that was not forgotten since."""
    keys = internal_kv._internal_kv_list(_PREFIX, namespace=_KV_NAMESPACE)
    return [key.decode().removeprefix(_PREFIX) for key in keys]


def forget_reservations(name: str) -> None:
    """Give back what is reserved under that name, and forget the name; for one that nothing reserves under any more."""
    free_reservations(name)
    internal_kv._internal_kv_del(_key(name), namespace=_KV_NAMESPACE)


def _group_name(name: str, number: int) -> str:
    return f"{name}+{number}"


def _key(name: str) -> bytes:
    return f"{_PREFIX}{name}".encode()


def _read_count(name: str) -> int:
    value = internal_kv._internal_kv_get(_key(name), namespace=_KV_NAMESPACE)
    return int(value) if value else 0


def _write_count(name: str, count: int) -> None:
    internal_kv._internal_kv_put(_key(name), str(count).encode(), namespace=_KV_NAMESPACE)


def spread_out(
    capacity: Mapping[str, int], count: int, taken: Iterable[str] = (), preferred: Collection[str] = ()
) -> list[str]:
    """Ray node ids for `count` workers on as few nodes as possible, or for as many as there is capacity for (pure).

    `capacity` is how many workers fit on each node, those with which a node is `taken` included.  Nodes
    that are taken in part are filled first, then those that are `preferred` for these workers.
    """
    free = dict(capacity)
    occupied = [node for node in taken if node in free]
    for node in occupied:
        free[node] -= 1
    order = sorted(free, key=lambda node: (node not in occupied, node not in preferred, -free[node]))
    return [node for node in order for _ in range(free[node])][:count]


def capacity_on(
    free: Mapping[str, Mapping[str, float]], worker: Mapping[str, float], most: int
) -> dict[str, int]:
    """For how many workers, at most `most`, there is capacity on each node, by its free resources (pure)."""
    needed = {name: amount for name, amount in worker.items() if amount > 0}
    return {
        # Ray counts in ten-thousandths.
        node: max(
            0, min([most, *(int((has.get(name, 0.0) + 1e-5) // amount) for name, amount in needed.items())])
        )
        for node, has in free.items()
    }


def _wait(asked: Sequence[Reservation], timeout_s: float, patience_s: float) -> bool:
    began_at = time.monotonic()
    missing = {one.group.ready(): one.ray_node_id for one in asked}
    while missing:
        pause_s = min(_NODES_S, max(0.0, timeout_s - (time.monotonic() - began_at)))
        done, _ = ray.wait(list(missing), num_returns=len(missing), timeout=pause_s)
        ray.get(done)
        for reference in done:
            del missing[reference]
        waited_s = time.monotonic() - began_at
        has_part = len(missing) < len(asked)
        if missing and (waited_s >= timeout_s or (has_part and waited_s >= patience_s)):
            return False
        if missing and _takes_no_work(set(missing.values())):
            return False
    return True


def _takes_no_work(nodes: set[str]) -> set[str]:
    return nodes - answering_nodes(nodes) | nodes & draining_nodes().keys()
