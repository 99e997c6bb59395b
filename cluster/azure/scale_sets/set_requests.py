"""Reads and changes scale sets, corrected by what Azure may not show yet; finds out why one or an instance failed."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from cluster.azure.arm import Arm
from cluster.azure.arm_requests import ArmRequests, gathered
from cluster.azure.body import OFFERING_TAG, is_set_name
from cluster.azure.error_codes import CloudFailure
from cluster.azure.fabric_domain import WAITS_TAG, Decision, SeenInstance, SeenSet, Waiting, waiting_tags
from cluster.azure.machine_memory import Group
from cluster.azure.scale_sets.set_memory import SetMemory, claim_tags
from cluster.azure.wire import ArmError
from cluster.provider import ProviderError, QuotaExceeded


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


_SILENT = CloudFailure(code="ProvisioningFailed", message="Azure does not say why", status=200)


class SetFailures:
    """Asks Azure for reasons; for one event loop."""

    def __init__(self, arm: Arm, arm_requests: ArmRequests, memory: SetMemory) -> None:
        self._arm = arm
        self._arm_requests = arm_requests
        self._memory = memory

    async def of_set(self, seen: SeenSet, decision: Decision) -> ProviderError | None:
        """Why nodes of a set get no machine, None when that cannot be found out now."""
        operation = self._memory.operations.get(seen.name)
        questions: list[Coroutine[Any, Any, CloudFailure | None]] = []
        if seen.has_failed:
            questions += [self._arm.operation_failure(operation)] if operation is not None else []
            questions += [self._arm.sets.failure(seen.name)]
        questions += [
            self._arm.sets.instance_failure(seen.name, one.id) for one in decision.surplus if one.has_failed
        ]
        failure = await self._arm_requests.first_failure(seen.name, questions, _SILENT)
        return self._judged(seen, failure) if failure is not None else None

    async def of_instance(self, seen: SeenSet, instance: SeenInstance) -> ProviderError | None:
        """Why an instance that failed did so, None when that cannot be found out now."""
        key = (seen.name, instance.id)
        if key not in self._memory.failures:
            questions = [self._arm.sets.instance_failure(*key)]
            failure = await self._arm_requests.first_failure(
                instance.node_id or seen.name, questions, _SILENT
            )
            if failure is None:
                return None
            self._memory.failures[key] = self._judged(seen, failure)
        return self._memory.failures[key]

    def _judged(self, seen: SeenSet, failure: CloudFailure) -> ProviderError:
        offering = self._arm_requests.offering(seen.tags.get(OFFERING_TAG))
        error = self._arm_requests.error(failure, offering)
        if isinstance(error, QuotaExceeded):
            self._arm_requests.forget_quota()
        return error
