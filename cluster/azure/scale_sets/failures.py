"""Why a scale set or one of its instances failed: out of the operation while it is known, else out of what they say."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from cluster.azure.arm import Arm
from cluster.azure.arm_requests import ArmRequests
from cluster.azure.body import OFFERING_TAG
from cluster.azure.errors import CloudFailure
from cluster.azure.scale_sets.domain import Decision, SeenInstance, SeenSet
from cluster.azure.scale_sets.memory import SetMemory
from cluster.provider import ProviderError, QuotaExceeded

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
