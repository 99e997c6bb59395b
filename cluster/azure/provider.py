"""Nodes that are virtual machines of Azure, behind the synchronous interface `cluster.provider.Provider`.

Nodes of a fabric domain are instances of scale sets, see `cluster.azure.scale_sets`.  Any other node is one PUT: its
network interface and its disk come and go with the machine.  Nothing waits for an operation;
every look compares what was asked for with one list of the resource group, and asks about a machine by itself only
where the list lacks one that it should have or shows one that failed.
"""

from __future__ import annotations

import builtins
import logging
import math
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from azure.core.credentials_async import AsyncTokenCredential

from cluster.azure import quota
from cluster.azure.arm import Arm, SeenMachine
from cluster.azure.arm_requests import ArmRequests, gathered
from cluster.azure.body import (
    CLUSTER_TAG,
    OFFERING_TAG,
    POOL_TAG,
    created_at,
    machine_body,
    machine_name,
    node_of,
)
from cluster.azure.error_codes import CloudFailure
from cluster.azure.event_loop import EventLoopThread
from cluster.azure.machine_memory import Deletion, Group, Memory, RequestedMachine
from cluster.azure.orphans import orphans
from cluster.azure.scale_sets.nodes import ScaleSetNodes
from cluster.azure.settings import AzureSettings
from cluster.azure.wire import ArmError
from cluster.policies.offerings import Offering
from cluster.provider import (
    InvalidRequest,
    NodeRequest,
    ProvidedNode,
    ProviderError,
    QuotaExceeded,
    Unanswered,
    check_node_id,
)

log = logging.getLogger(__name__)

#: Seconds for which a deleted machine is not shown although Azure may still list it.
_GOING_S = 300.0
#: Seconds between two looks for what was left behind.
_SWEEP_EVERY_S = 300.0

Answer = TypeVar("Answer")


class AzureProvider:
    """`cluster.provider.Provider` whose machines are virtual machines of one resource group.

    Any thread may call it; `close` ends its connections.
    """

    def __init__(
        self,
        settings: AzureSettings,
        credential: AsyncTokenCredential,
        head: str,
        catalogue: Callable[[], Sequence[Offering]],
        clock: Callable[[], float] = time.time,
        quiet_s: float = 0.0,
    ) -> None:
        """Machines join the Ray head at `head` (`host:port`); `catalogue` lists what can be bought.

        A list by which every machine runs and nothing is under way is good for `quiet_s` seconds, unless something is
        asked for meanwhile: only what Azure does by itself, such as an eviction, is seen that much later.
        """
        self._settings = settings
        self._head = head
        self._clock = clock
        self._quiet_s = quiet_s
        self._memory = Memory()
        self._thread = EventLoopThread("azure")
        self._arm = self._thread.run(self._open(credential))
        self._arm_requests = ArmRequests(self._arm, self._memory, settings.region, catalogue, clock)
        self._sets = ScaleSetNodes(settings, self._arm, self._arm_requests, head, clock)
        self._credential = credential

    async def _open(self, credential: AsyncTokenCredential) -> Arm:
        return Arm(self._settings, credential, self._clock)

    def close(self) -> None:
        """Close all connections; machines live on."""
        self._thread.run(self._arm.close())
        self._thread.run(self._credential.close())
        self._thread.close()

    def create(self, request: NodeRequest) -> None:
        """Ask for a machine and return when Azure has accepted it; raises what Azure refused it with.

        What Azure refuses only later is the `refusal` of a listed node that does not run.
        """
        _check(request)
        offering = self._arm_requests.offering(request.offering)
        if offering is None:
            raise InvalidRequest(f"{request.offering!r} is not an offering of {self._settings.region}")
        if request.fabric is not None:
            self._thread.run(self._change(self._sets.create(request, offering)))
        else:
            self._thread.run(self._change(self._create(request, offering)))

    def list(self) -> list[ProvidedNode]:
        """Every machine that has the name of one of this cluster's, in order of creation; tags do not matter.

        Raises when any page of the list fails.
        A machine that the list lacks although it was there, or was just asked for, is asked about by itself.
        """
        return list(self._thread.run(self._list()))

    def delete(self, node_id: str) -> None:
        """Ask Azure to delete the machine with all its parts; it is not listed any more from now on.

        Should the deletion fail, the machine is listed again.
        """
        self._thread.run(self._change(self._delete(node_id)))

    def simulate_eviction(self, node_id: str) -> None:
        """Let Azure preempt a spot node within minutes, with its usual notice: a rehearsal.

        The controller's own role does not allow it; give it for the time of the rehearsal.  Raises InvalidRequest
        for a node that is not there or not spot, and ProviderError as everything else does.
        """
        self._thread.run(self._change(self._simulate_eviction(node_id)))

    def is_allowance_low(self) -> bool:
        """Azure reported lately that it allows only few more requests; sends no request."""
        return self._arm.allowance.is_low()

    def quota_left(self) -> dict[str, int]:
        """Units of each quota that are left, by its name in lower case; empty when Azure does not say."""
        return self._thread.run(self._quota_left())

    def quota_known(self) -> dict[str, int]:
        """The same as far as it is known, without a request; empty after a refusal until it is read again."""
        reading = self._memory.quotas
        return reading.left() if reading is not None else {}

    def quota_limits(self) -> dict[str, int]:
        """Units of each quota in all, by its name in lower case, as far as they are known; sends no request."""
        reading = self._memory.quotas
        return reading.limits() if reading is not None else {}

    def sweep(self) -> tuple[str, ...]:
        """Delete network interfaces and disks whose machine is gone for some minutes; returns their names.

        Raises ProviderError when it is not sure what there is.
        """
        return self._thread.run(self._sweep())

    def skus(self) -> builtins.list[dict[str, Any]]:
        """Resource SKUs of the region in wire form, for `cluster.azure.region_catalogue`; raises ProviderError."""
        return self._thread.run(self._answered(Group.SKUS, self._arm.skus(self._settings.region)))

    def evictions(self) -> builtins.list[dict[str, Any]]:
        """Rows of the Resource Graph, for `cluster.azure.region_catalogue`; raises ProviderError."""
        return self._thread.run(self._answered(Group.GRAPH, self._arm.evictions(self._settings.region)))

    def scores(self, sizes: Sequence[str]) -> builtins.list[dict[str, Any]]:
        """Placement scores of spot machines, for `cluster.azure.region_catalogue`; raises ProviderError."""
        return self._thread.run(self._answered(Group.SCORES, self._arm.scores(self._settings.region, sizes)))

    async def _answered(self, group: Group, request: Coroutine[Any, Any, Answer]) -> Answer:
        try:
            return await self._arm_requests.send(group, request)
        except ArmError as error:
            raise self._arm_requests.error(error.failure, None) from error

    async def _create(self, request: NodeRequest, offering: Offering) -> None:
        name = machine_name(self._settings.cluster, request.node_id)
        now = self._clock()
        memory = self._memory
        if name in memory.nodes and name not in memory.deleted:
            return
        # One whose answer was lost is counted already.
        before = memory.requested.get(name)
        if before is None:
            await self._arm_requests.check_quota(offering)
        body = machine_body(self._settings, request, offering, self._head, now)
        requested = RequestedMachine(
            request, offering, now, counted_in=before.counted_in if before is not None else None
        )
        try:
            requested.operation = await self._arm_requests.send(Group.CREATE, self._arm.put(name, body))
        except ArmError as error:
            if error.failure.status == 412:
                # It exists: asked for before, by this process or another one.
                memory.requested.setdefault(name, requested)
                return
            refused = self._arm_requests.error(error.failure, offering)
            if isinstance(refused, Unanswered):
                # It may have been taken: the next look asks, and until the quotas are read again it counts.
                memory.requested[name] = requested
                if before is None:
                    requested.counted_in = self._arm_requests.one_more(offering)
            elif isinstance(refused, QuotaExceeded):
                self._arm_requests.forget_quota()
            raise refused from error
        memory.requested[name] = requested
        if before is None:
            requested.counted_in = self._arm_requests.one_more(offering)

    async def _change(self, work: Coroutine[Any, Any, None]) -> None:
        """Do what makes every list of before, and of meanwhile, an old one."""
        self._memory.changes += 1
        self._memory.quiet = None
        try:
            await work
        finally:
            self._memory.changes += 1
            self._memory.quiet = None

    async def _list(self) -> tuple[ProvidedNode, ...]:
        began, changes, quiet = self._clock(), self._memory.changes, self._memory.quiet
        if quiet is not None and 0.0 <= began - quiet[0] < self._quiet_s:
            return quiet[1]
        self._memory.quiet = None
        every, is_still = await self._look()
        if is_still and self._sets.is_still and changes == self._memory.changes:
            self._memory.quiet = (began, every)
        return every

    async def _look(self) -> tuple[tuple[ProvidedNode, ...], bool]:
        """What there is, and whether no single machine is expected to change."""
        try:
            listed = await self._arm_requests.send(Group.MACHINES, self._arm.machines())
            ours = {one.name: one for one in listed if self._node_id(one) is not None}
            self._note_strangers([one for one in listed if one.name not in ours])
            now = self._clock()
            self._forget(now)
            missing = [
                name
                for name in {**self._memory.nodes, **self._memory.requested}
                if name not in ours and name not in self._memory.deleted
            ]
            found = await gathered(
                [self._arm_requests.send(Group.MACHINES, self._arm.machine(name)) for name in missing]
            )
            ours |= {one.name: one for one in found if one is not None}
        except ArmError as error:
            raise self._arm_requests.error(error.failure, None) from error
        shown = {name: one for name, one in ours.items() if not self._is_going(one)}
        self._memory.vm_ids = {name: one.vm_id for name, one in ours.items()}
        await self._learn_failures([one for one in shown.values() if one.state in ("Failed", "Canceled")])
        # Names that Azure writes in another case are still ours.
        self._memory.nodes = {name: self._node(one) for name, one in shown.items()}
        for name, requested in self._memory.requested.items():
            if name not in ours:
                # Otherwise its quota would count as used when it is requested again.
                self._arm_requests.one_less(requested.offering, requested.counted_in)
        self._memory.requested = {
            n: requested for n, requested in self._memory.requested.items() if n in shown
        }
        self._memory.refusals = {n: one for n, one in self._memory.refusals.items() if n in shown}
        joined = await self._sets.look()
        await self._sweep_when_due(now)
        every = [*self._memory.nodes.values(), *joined]
        is_still = all(one.state == "Succeeded" and not self._is_going(one) for one in ours.values())
        return tuple(sorted(every, key=lambda node: (node.created_at, node.node_id))), is_still

    async def _delete(self, node_id: str) -> None:
        if await self._sets.delete(node_id):
            return
        name = machine_name(self._settings.cluster, node_id)
        try:
            await self._arm_requests.send(Group.DELETE, self._arm.delete(name))
        except ArmError as error:
            raise self._arm_requests.error(error.failure, None) from error
        self._memory.deleted[name] = Deletion(self._clock(), self._memory.vm_ids.get(name, ""))
        self._memory.requested.pop(name, None)
        self._memory.nodes.pop(name, None)

    async def _simulate_eviction(self, node_id: str) -> None:
        name = machine_name(self._settings.cluster, node_id)
        instance = self._sets.instance_key_of(node_id)
        try:
            if instance is not None:
                await self._arm_requests.send(Group.EVICT, self._arm.sets.simulate_eviction(*instance))
            else:
                await self._arm_requests.send(Group.EVICT, self._arm.simulate_eviction(name))
        except ArmError as error:
            if error.failure.status in (400, 404, 409):
                said = f"Azure does not simulate an eviction of {node_id}: {error.failure.message}"
                raise InvalidRequest(said) from error
            raise self._arm_requests.error(error.failure, None) from error

    def _forget(self, now: float) -> None:
        self._memory.deleted = {n: one for n, one in self._memory.deleted.items() if now - one.at < _GOING_S}

    def _is_going(self, machine: SeenMachine) -> bool:
        """It was asked to go, and did not fail to.

        Not so one that another process had made by the same name since, because it stood still before it asked.
        """
        deletion = self._memory.deleted.get(machine.name)
        is_another = deletion is not None and deletion.vm_id and machine.vm_id not in ("", deletion.vm_id)
        return deletion is not None and machine.state != "Failed" and not is_another

    async def _learn_failures(self, failed: Sequence[SeenMachine]) -> None:
        """Find out why machines failed; what cannot be found out now is asked for at the next look."""
        unknown = [one for one in failed if one.name not in self._memory.refusals]
        found = await gathered([self._reason_of(one) for one in unknown])
        for machine, failure in zip(unknown, found, strict=True):
            if failure is not None:
                refusal = self._arm_requests.error(
                    failure, self._arm_requests.offering(machine.tags.get(OFFERING_TAG))
                )
                self._memory.refusals[machine.name] = refusal
                if isinstance(refusal, QuotaExceeded):
                    self._arm_requests.forget_quota()

    async def _reason_of(self, machine: SeenMachine) -> CloudFailure | None:
        requested = self._memory.requested.get(machine.name)
        asked = (
            [self._arm.operation_failure(requested.operation)]
            if requested is not None and requested.operation
            else []
        )
        return await self._arm_requests.first_failure(
            machine.name, [*asked, self._arm.machine_failure(machine.name)]
        )

    def _node_id(self, machine: SeenMachine) -> str | None:
        """The node that a machine is; None: it is not this cluster's."""
        known, requested = self._memory.nodes.get(machine.name), self._memory.requested.get(machine.name)
        if known is not None:
            return known.node_id
        if requested is not None:
            return requested.request.node_id
        return node_of(self._settings.cluster, machine.name, machine.tags)

    def _note_strangers(self, others: Sequence[SeenMachine]) -> None:
        """Say once of each machine that it bears this cluster's tag and is left alone."""
        tagged = {one.name for one in others if one.tags.get(CLUSTER_TAG) == self._settings.cluster}
        for name in sorted(tagged - self._memory.strangers):
            log.warning(
                "the machine %s has this cluster's tag and a name that Remora does not give: it is left alone;"
                " delete it, or take the tag %s from it",
                name,
                CLUSTER_TAG,
            )
        self._memory.strangers = tagged

    def _node(self, machine: SeenMachine) -> ProvidedNode:
        before = self._memory.nodes.get(machine.name)
        has_failed = machine.state in ("Failed", "Canceled")
        refusal = self._memory.refusals.get(machine.name)
        message = "Azure is deleting it" if machine.state == "Deleting" else None
        if has_failed:
            message = str(refusal or "Azure could not make it")
        return ProvidedNode(
            node_id=self._node_id(machine) or machine.name,
            # Tags that were replaced take nothing away that was known.
            pool=machine.tags.get(POOL_TAG) or (before.pool if before is not None else ""),
            is_running=not has_failed,
            # Only the machine itself knows: the body has none, and Ray reports it when the node joins.
            address=None,
            created_at=created_at(machine.tags) or (before.created_at if before is not None else 0.0),
            message=message,
            refusal=refusal if has_failed else None,
        )

    async def _quota_left(self) -> dict[str, int]:
        # The planner requests no machine while the quota seems used up, and so would never learn of more.
        reading = await self._arm_requests.reading(quota.READ_AGAIN_S)
        return reading.left() if reading is not None else {}

    async def _sweep_when_due(self, now: float) -> None:
        if now - self._memory.swept_at >= _SWEEP_EVERY_S:
            try:
                await self._sweep()
            except ProviderError as error:
                log.warning("what machines left behind cannot be looked for, it is tried again: %s", error)

    async def _sweep(self) -> tuple[str, ...]:
        now = self._clock()
        self._memory.swept_at = now
        try:
            resources = await self._arm_requests.send(Group.PARTS, self._arm.interfaces())
            resources += await self._arm_requests.send(Group.PARTS, self._arm.disks())
            # After the parts: a machine that is made meanwhile is in the list by then.
            machines = await self._arm_requests.send(Group.MACHINES, self._arm.machines())
            made = {one.name for one in machines if one.state in ("Succeeded", "Failed", "Canceled")}
            being_made = {*(one.name for one in machines), *self._memory.requested} - made
            left, self._memory.alone = orphans(
                self._settings.cluster, resources, being_made, self._memory.alone, now
            )
            for one in left:
                log.warning("%s was left behind by a machine and is deleted", one.name)
                await self._arm_requests.send(Group.DELETE_PART, self._arm.delete_resource(one))
        except ArmError as error:
            raise self._arm_requests.error(error.failure, None) from error
        return tuple(one.name for one in left)


def _check(request: NodeRequest) -> None:
    check_node_id(request.node_id)
    for name, amount in request.resources.items():
        if not math.isfinite(amount) or amount < 0:
            raise InvalidRequest(f"{amount} of the resource {name!r} is impossible; give a number, 0 or more")
