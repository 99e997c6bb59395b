"""Processes of a controller: each has its own access to the cloud, and may die or stop at any call.

What a process must never ask for is noted at the moment when it asks: no book shows it afterwards.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import sqlalchemy as sa

from cluster.azure.emulator.faults import EmulatorFault, FaultPoint
from cluster.azure.provider import AzureProvider
from cluster.provider import NodeRequest, ProvidedNode, ProviderError, Throttled
from cluster.ray.members import MemberNode
from service.store import nodes
from service.store.database import Database
from tests.contracts.cluster.azure_rig import AzureRig
from tests.contracts.service.storm_cloud import machines_of, node_of
from tests.contracts.service.storm_members import Ray
from tests.service_fakes import FakeLauncher
from trainers.plan import AttemptPlan, BuildAhead, DriverGone, Record

T = TypeVar("T")

#: Words of a refusal that was the cloud's or the provider's own, and no knob's: a quota has no capacity.
_QUOTA_IS_USED = ("Current Limit:", "are used and")


@dataclass
class Witness:
    """What processes asked for, and what it was answered with."""

    #: What nodes were refused with at once, as a process learned that lived on.
    refused: dict[str, str] = field(default_factory=dict)
    #: Machines that were asked for before the rows of their nodes were written.
    without_row: list[str] = field(default_factory=list)
    #: Machines that were asked for by a process that had seen them.
    asked_twice: list[str] = field(default_factory=list)
    #: Nodes that were requested while the quotas were not known, so that there may be too many of them.
    blindly: set[str] = field(default_factory=set)
    #: Refusals of all others for want of quota.
    asked_too_much: list[str] = field(default_factory=list)
    #: Requests during the pause that the cloud asked for.
    too_early: list[FaultPoint] = field(default_factory=list)

    def check(self) -> None:
        """Nothing of this happens at any moment."""
        assert not self.without_row, "a machine is asked for whose node has no row"
        assert not self.asked_twice, "a machine is asked for that was seen before"
        assert not self.asked_too_much, "more of a quota is asked for than is known to be left"
        assert not self.too_early, "the cloud is asked during the pause that it asked for"


class Death(BaseException):
    """The process of a controller is gone in the middle of what it did; nothing catches this."""


class Life:
    """Counts what one process asks of others, and ends it at one of these calls."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: It dies at the so-manyth call from now: before it, or after it without having heard the answer.
        self.left: int | None = None
        self.dies_after = False
        #: It dies at the next call for a machine.
        self.dies_buying = False
        self.is_over = False
        #: That was at a call for a machine.
        self.died_buying = False
        #: It has read the quotas, and no other controller has acted since; one that has not may ask for too much.
        self.knows_quotas = False
        #: Nodes whose machines stood, and were listed, when it last asked for the list.
        self.seen: frozenset[str] = frozenset()
        #: What nodes were refused with during this tick.
        self.refused: dict[str, str] = {}
        #: During this tick it could not see what there is, or not end a machine.
        self.is_hindered = False
        #: What happens at that call instead, while this process stands still; it goes on afterwards.
        self.meanwhile: Callable[[], None] | None = None

    def call(self, work: Callable[[], T], *, buys: bool = False) -> T:
        """One call, which `buys` a machine or does not; raises Death at the end of this life, and ever after."""
        with self._lock:
            if self.is_over:
                raise Death
            if self.left is not None:
                self.left -= 1
            is_last = self.left == 0 or (buys and self.dies_buying)
            meanwhile = self.meanwhile if is_last else None
            if meanwhile is not None:
                self.left, is_last = None, False
            self.is_over, self.died_buying = is_last, is_last and buys
        if meanwhile is not None:
            meanwhile()
        if is_last and not self.dies_after:
            raise Death
        try:
            return work()
        finally:
            if is_last:
                # Whatever it was answered, it has not heard it.
                raise Death

    @contextlib.contextmanager
    def hindered(self) -> Iterator[None]:
        """Note that the cloud did not do what was asked, and go on with its error."""
        try:
            yield
        except ProviderError:
            self.is_hindered = True
            raise


class MortalDatabase:
    """The database as one process has it."""

    def __init__(self, database: Database, life: Life) -> None:
        self._database = database
        self._life = life

    def transact(self, work: Callable[[sa.Connection], T]) -> T:
        return self._life.call(lambda: self._database.transact(work))

    def query(self, work: Callable[[sa.Connection], T]) -> T:
        return self._database.query(work)


class MortalLauncher:
    """The drivers as one process has them."""

    def __init__(self, launcher: FakeLauncher, life: Life) -> None:
        self._launcher = launcher
        self._life = life

    def start(self, plan: AttemptPlan, secrets: Sequence[bytes] = ()) -> bool | DriverGone:
        return self._life.call(lambda: self._launcher.start(plan, secrets))

    def prepare(self, token: int) -> None:
        self._launcher.prepare(token)

    def attempts(self) -> list[str]:
        return []

    def build_ahead(self, wanted: Sequence[BuildAhead]) -> None:
        self._launcher.build_ahead(wanted)

    def poll(self, attempt_ids: list[str], after: dict[str, int]) -> dict[str, list[Record] | DriverGone]:
        return self._life.call(lambda: self._launcher.poll(attempt_ids, after))

    def keep(self, attempt_id: str, nodes: Mapping[str, str], token: int) -> bool:
        return self._life.call(lambda: self._launcher.keep(attempt_id, nodes, token))

    def stop(self, attempt_id: str, reason: Any) -> None:
        self._life.call(lambda: self._launcher.stop(attempt_id, reason))

    def kill(self, attempt_id: str) -> bool:
        return self._life.call(lambda: self._launcher.kill(attempt_id))

    def stored_end(
        self, attempt_id: str, *, job_id: str, storage_url: str, after: int
    ) -> Sequence[Record] | None:
        return self._life.call(
            lambda: self._launcher.stored_end(attempt_id, job_id=job_id, storage_url=storage_url, after=after)
        )

    def close(self, attempt_id: str, *, job_id: str, storage_url: str) -> bool:
        return self._life.call(
            lambda: self._launcher.close(attempt_id, job_id=job_id, storage_url=storage_url)
        )


class ProcessAccess:
    """Provider, membership and drains as one process has them."""

    def __init__(
        self, rig: AzureRig, database: Database, azure: AzureProvider, ray: Ray, life: Life, witness: Witness
    ) -> None:
        self._rig = rig
        self._database = database
        self._azure = azure
        self._ray = ray
        self._life = life
        self._witness = witness

    def create(self, request: NodeRequest) -> None:
        name = request.node_id
        if self._database.query(lambda connection: nodes.get_node(connection, name)) is None:
            self._witness.without_row.append(name)
        if name in self._life.seen:
            self._witness.asked_twice.append(name)
        try:
            self._life.call(lambda: self._azure.create(request), buys=True)
        except ProviderError as error:
            is_known = self._life.knows_quotas and name not in self._witness.blindly
            if is_known and any(words in str(error) for words in _QUOTA_IS_USED):
                self._witness.asked_too_much.append(str(error))
            if not isinstance(error, Throttled):
                self._life.refused[name] = str(error)
            raise

    def list(self) -> list[ProvidedNode]:
        listed = [one for one in machines_of(self._rig) if one.name not in self._rig.cloud.unlisted]
        with self._life.hindered():
            found = self._life.call(self._azure.list)
        self._life.seen = frozenset(map(node_of, listed))
        return found

    def delete(self, node_id: str) -> None:
        with self._life.hindered():
            self._life.call(lambda: self._azure.delete(node_id))

    def observe(self) -> Mapping[str, MemberNode]:
        return self._life.call(self._ray.observe)

    def drain(self, node_id: str, reason: str, deadline_at: float) -> None:
        assert reason
        self._life.call(lambda: self._ray.drain(node_id, deadline_at))


def watch_pauses(rig: AzureRig, living: Callable[[], Life], witness: Witness) -> None:
    """Look for a process that has to wait and asks for a machine, or for the list, before its time."""
    take, reported = rig.cloud.faults.take, dict[FaultPoint, tuple[Life, float, float]]()

    def watch(at: FaultPoint, **facts: Any) -> EmulatorFault | None:
        now = rig.clock()
        if at in reported:
            life, since, until = reported[at]
            # Requests of one moment are on their way together.
            if life is living() and since < now < until:
                witness.too_early.append(at)
        fault = take(at, **facts)
        if fault is not None and fault.status == 429 and at in (FaultPoint.CREATE, FaultPoint.LIST):
            reported[at] = (living(), now, now + (fault.retry_after or 60.0))
        return fault

    rig.cloud.faults.take = watch  # type: ignore[method-assign]
