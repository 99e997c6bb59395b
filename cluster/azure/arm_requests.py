"""Sends requests to Azure: keeps the pauses that it asks for, and turns refusals into errors of `cluster.provider`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

from cluster.azure import quota
from cluster.azure.arm import Arm
from cluster.azure.error_codes import CloudFailure, Reason, judge, to_error
from cluster.azure.machine_memory import Group, Memory
from cluster.azure.wire import ArmError
from cluster.policies.offerings import CapacityType, Offering
from cluster.provider import ProviderError

log = logging.getLogger(__name__)

#: Requests about single machines that are on their way at once.
_AT_ONCE = 16

Answer = TypeVar("Answer")


class ArmRequests:
    """Sends all requests of a provider to Azure, and counts its machines against the quotas; for one event loop."""

    def __init__(
        self,
        arm: Arm,
        memory: Memory,
        region: str,
        catalogue: Callable[[], Sequence[Offering]],
        clock: Callable[[], float],
    ) -> None:
        self._arm = arm
        self._memory = memory
        self._region = region
        self._catalogue = catalogue
        self._clock = clock
        #: Of nodes whose requests gather or have no answer yet.
        self._on_its_way: list[Offering] = []

    async def send(self, group: Group, request: Coroutine[Any, Any, Answer]) -> Answer:
        """Send a request unless Azure said not to send any of its group before some time.  Raises ArmError."""
        wait_s = self._memory.not_before.get(group, -math.inf) - self._clock()
        if wait_s > 0:
            request.close()
            said = "Azure asked for a pause"
            raise ArmError(
                CloudFailure(code="TooManyRequests", message=said, status=429, retry_after_s=wait_s)
            )
        try:
            return await request
        except ArmError as error:
            verdict = judge(error.failure)
            # An answer of 5xx may ask for a pause too; without one, only a 429 means that there is to be one.
            if verdict.reason is Reason.THROTTLED or (
                verdict.reason is Reason.UNANSWERED and error.failure.retry_after_s is not None
            ):
                self._memory.not_before[group] = self._clock() + verdict.memory_s
            raise

    async def first_failure(
        self,
        what: str,
        questions: Sequence[Coroutine[Any, Any, CloudFailure | None]],
        otherwise: CloudFailure | None = None,
    ) -> CloudFailure | None:
        """The first answer that says why something failed, `otherwise` when none does; None: not known now."""
        found: CloudFailure | None = None
        is_sure = True
        for question in questions:
            if found is not None:
                question.close()
                continue
            try:
                found = await self.send(Group.REASONS, question)
            except ArmError as error:
                # What does not exist any more will not say it either.
                is_sure = is_sure and error.failure.status == 404
                log.info("why %s failed is not known yet: %s", what, error)
        return found or (otherwise if is_sure else None)

    def error(self, failure: CloudFailure, offering: Offering | None) -> ProviderError:
        """The provider error for a failure of a request for this offering, or for none."""
        return to_error(failure, self._clock(), offering, self._catalogue())

    def offering(self, wanted: str | None) -> Offering | None:
        """The offering of this id, None when it is not sold."""
        return next((one for one in self._catalogue() if one.id == wanted), None)

    async def check_quota(self, offering: Offering) -> None:
        """Raise QuotaExceeded when a quota certainly has no capacity."""
        reading = await self.reading(quota.READ_EVERY_S)
        if reading is not None and self._full(reading, offering) is not None:
            reading = await self.reading(quota.READ_AGAIN_S)
        if reading is None or self._clock() - reading.read_at >= quota.READ_AGAIN_S:
            # It cannot be read now: what has ended since is still counted, and Azure itself refuses what is too much.
            return
        full = self._full(reading, offering)
        if full is not None:
            failure = CloudFailure(code="QuotaExceeded", message=_as_azure_says(offering, full), status=409)
            raise self.error(failure, offering)

    async def reading(self, good_for_s: float) -> quota.Reading | None:
        """The quotas, read again when they are older than this; an older reading while Azure does not answer."""
        now = self._clock()
        if now - self._memory.quotas_asked_at >= good_for_s:
            try:
                usages = await self.send(Group.USAGES, self._arm.usages(self._region))
                self._memory.quotas = quota.Reading(read_at=now, usages=usages)
            except ArmError as error:
                # Not knowing is no reason to stop.
                log.warning("quotas of %s cannot be read: %s", self._region, error)
            # Not before: others that read at the same time need the answer too.
            self._memory.quotas_asked_at = now
        return self._memory.quotas

    def _full(self, reading: quota.Reading, offering: Offering) -> str | None:
        for one in self._on_its_way:
            reading = reading.with_one_more(one)
        return quota.full_quota(reading, offering)

    @contextlib.contextmanager
    def on_its_way(self, offering: Offering) -> Iterator[None]:
        """One machine more is asked for: it counts meanwhile, and from then on unless that went wrong."""
        self._on_its_way.append(offering)
        try:
            yield
            self.one_more(offering)
        finally:
            self._on_its_way.remove(offering)

    def one_more(self, offering: Offering) -> float | None:
        """One more machine was asked for since the quotas were read; when they were, None: they are not known."""
        reading = self._memory.quotas
        if reading is None:
            return None
        self._memory.quotas = reading.with_one_more(offering)
        return reading.read_at

    def one_less(self, offering: Offering, counted_in: float | None) -> None:
        """A machine was not made after all, which was counted in the quotas that were read at that time."""
        reading = self._memory.quotas
        if reading is not None and reading.read_at == counted_in:
            self._memory.quotas = reading.with_one_less(offering)

    def forget_quota(self) -> None:
        """What is known of the quotas is wrong."""
        self._memory.quotas = None
        self._memory.quotas_asked_at = -math.inf


def _as_azure_says(offering: Offering, full: str) -> str:
    """The sentence with the word by which the table of errors knows what kind of quota it is."""
    if f"{quota.REGION_QUOTA!r}" in full:
        return f"Total Regional Cores: {full}"
    return full if offering.capacity is CapacityType.SPOT else f"Family Cores: {full}"


async def gathered(work: Sequence[Coroutine[Any, Any, Answer]]) -> list[Answer]:
    """The answers of all, in order, some at a time; raises the first error after all have ended."""
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(request: Coroutine[Any, Any, Answer]) -> Answer:
        async with gate:
            return await request

    answers = await asyncio.gather(*(one(request) for request in work), return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return [answer for answer in answers if not isinstance(answer, BaseException)]
