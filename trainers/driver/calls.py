"""What the driver asks of the processes of workers, over Ray, without ever waiting long for one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import ray

from remora.free_ports import free_port
from remora.script import channel
from trainers import ray_train
from trainers.supervisor import worker_process
from trainers.supervisor.assignment import Assignment

#: Seconds that one worker gets to take an instruction.
_INSTRUCT_S = 5.0
#: Seconds that all workers together get to take their assignments.
_PREPARE_S = 30.0


class Calls(Protocol):
    """What can be asked of workers."""

    async def instruct(self, member: ray_train.Member, message: channel.Message) -> bool:
        """Hand an instruction to a supervisor; False when it does not take it: it is dead, frozen, or has ended."""

    async def free_port(self, member: ray_train.Member) -> int | None:
        """A free TCP port of the worker's node; None when the worker does not answer."""

    async def find_dead(self, members: list[ray_train.Member]) -> set[int]:
        """Slots of those whose process is dead or whose node does not answer."""


class RayCalls:
    """The same over Ray."""

    async def instruct(self, member: ray_train.Member, message: channel.Message) -> bool:
        """See `Calls`."""
        try:
            taken: bool = await asyncio.wait_for(member.call(worker_process.instruct, message), _INSTRUCT_S)
        except (ray.exceptions.RayError, TimeoutError):
            return False
        return taken

    async def free_port(self, member: ray_train.Member) -> int | None:
        """See `Calls`."""
        try:
            port: int = await asyncio.wait_for(member.call(free_port), _INSTRUCT_S)
        except (ray.exceptions.RayError, TimeoutError):
            return None
        return port

    async def find_dead(self, members: list[ray_train.Member]) -> set[int]:
        """See `Calls`."""
        dead, nodes_lost = await asyncio.to_thread(ray_train.find_dead, members, set())
        return dead | nodes_lost


def end_this_actor() -> None:
    """End the process of the actor that calls this."""
    ray.kill(ray.get_runtime_context().current_actor, no_restart=True)


def prepare(
    members: list[ray_train.Member], assignments: Mapping[int, Assignment], secrets: Sequence[bytes] = ()
) -> None:
    """Give every member the assignment of its slot, and the chunks of the values of the job's secrets.

    Blocks, for the controller's thread.  Raises RayError.
    """
    given: list[Any] = [
        member.call(worker_process.prepare, assignments[member.slot], *secrets) for member in members
    ]
    ray.get(given, timeout=_PREPARE_S)


def master_port(members: list[ray_train.Member]) -> tuple[str, int]:
    """Address and free port of rank 0, the rendezvous endpoint of a new worker group; blocks.  Raises RayError."""
    master = next(member for member in members if member.rank == 0)
    return master.address, ray.get(master.call(free_port), timeout=_PREPARE_S)


def free_ports(members: list[ray_train.Member]) -> tuple[str, ...]:
    """A free `address:port` for every member, in the order of ranks; blocks.  Raises RayError."""
    ordered = sorted(members, key=lambda member: member.rank)
    found: tuple[str, ...] = ()
    # Workers of one node may be given the same port, for each draws it by chance.
    while len(set(found)) < len(ordered):
        drawn: list[Any] = [member.call(free_port) for member in ordered]
        ports = ray.get(drawn, timeout=_PREPARE_S)
        found = tuple(f"{one.address}:{port}" for one, port in zip(ordered, ports, strict=True))
    return found
