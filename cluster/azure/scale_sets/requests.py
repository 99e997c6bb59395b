"""Reads and changes scale sets, corrected by what this process knows and Azure may not show yet."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from cluster.azure.arm import Arm
from cluster.azure.arm_requests import ArmRequests, gathered
from cluster.azure.body import is_set_name
from cluster.azure.memory import Group
from cluster.azure.scale_sets.domain import WAITS_TAG, Decision, SeenInstance, SeenSet, Waiting, waiting_tags
from cluster.azure.scale_sets.memory import SetMemory, claim_tags
from cluster.azure.wire import ArmError


class SetRequests:
    """Requests about the sets of one cluster; each raises ArmError."""

    def __init__(
        self, cluster: str, arm: Arm, arm_requests: ArmRequests, memory: SetMemory, clock: Callable[[], float]
    ) -> None:
        self._cluster = cluster
        self._arm = arm
        self._arm_requests = arm_requests
        self._memory = memory
        self._clock = clock

    async def read(
        self, name: str, listed: SeenSet | None = None
    ) -> tuple[SeenSet, list[SeenInstance]] | None:
        """A set and its instances, as this process knows them to be; None when there is no such set.

        A set that was just listed is not asked about again, unless its version is not known.
        """
        seen = listed
        if seen is None or seen.etag is None:
            seen = await self._arm_requests.send(Group.SETS, self._arm.sets.get(name))
        if seen is None:
            return None
        seen = replace(seen, name=name)
        self._memory.forget_replaced(seen)
        instances = await self._arm_requests.send(Group.SETS, self._arm.sets.instances(name))
        # A list may lack instances that exist: those that were there before are read one by one.
        missing = self._memory.expected(seen) - {one.id for one in instances}
        lost = [
            self._arm_requests.send(Group.SETS, self._arm.sets.instance(name, number))
            for number in sorted(missing)
        ]
        instances += [one for one in await gathered(lost) if one is not None]
        return seen, [self._memory.known(seen, one) for one in instances]

    async def claim(self, seen: SeenSet, instance: SeenInstance, node: Waiting) -> None:
        """Write into an instance's tags which node it is."""
        own = {name: value for name, value in seen.tags.items() if not name.startswith(WAITS_TAG)}
        # First: the instance stays this node's even if the answer is lost.
        self._memory.claim(seen.name, instance, node)
        await self._arm_requests.send(
            Group.CHANGE_SET, self._arm.sets.claim(seen.name, instance, {**own, **claim_tags(node)})
        )

    async def write(self, seen: SeenSet, decision: Decision) -> None:
        """Write the decision into a set's document, if it changes the document."""
        if not decision.is_news:
            return
        tags = waiting_tags(seen.tags, decision.named)
        await self.keep_operation(seen.name, self._arm.sets.update(seen, decision.capacity, tags))

    async def keep_operation(self, name: str, request: Coroutine[Any, Any, str | None]) -> None:
        """Send a change of a set, and remember the address of its operation."""
        operation = await self._arm_requests.send(Group.CHANGE_SET, request)
        if operation is not None:
            self._memory.operations[name] = operation

    async def end(self, name: str, numbers: Sequence[str]) -> None:
        """Begin to delete instances of a set; fine when they are gone."""
        try:
            await self._arm_requests.send(Group.DELETE_SET, self._arm.sets.delete_instances(name, numbers))
        except ArmError as error:
            if error.failure.status != 400:
                raise
            # Azure refuses all when one is gone.
            if len(numbers) > 1:
                for one in numbers:
                    await self.end(name, [one])
            elif (
                await self._arm_requests.send(Group.SETS, self._arm.sets.instance(name, numbers[0]))
                is not None
            ):
                raise
        for one in numbers:
            self._memory.going[(name, one)] = self._clock()

    def is_ours(self, seen: SeenSet) -> bool:
        """It is of this cluster, by its name: its tags may have been replaced."""
        return is_set_name(self._cluster, seen.name)
