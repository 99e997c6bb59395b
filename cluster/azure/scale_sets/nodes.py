"""Nodes of fabric domains: instances of Uniform scale sets, the only machines of Azure that InfiniBand joins.

A set's own document says which nodes wait for an instance and how many instances there shall be, changed together in
one request that fails when another process changed it meanwhile.  Every look compares that with the instances: one that
belongs to no node becomes the node that has waited longest, by a tag, which the machine reads before it joins Ray.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cluster.azure.arm import Arm
from cluster.azure.arm_requests import ArmRequests, gathered
from cluster.azure.body import (
    FABRIC_TAG,
    MODEL_TAG,
    POOL_TAG,
    created_at,
    set_body,
    set_name,
)
from cluster.azure.error_codes import CloudFailure
from cluster.azure.fabric_domain import (
    MOST_NODES,
    Decision,
    SeenInstance,
    SeenSet,
    Waiting,
    decide,
    read_waiting,
    waiting_tags,
)
from cluster.azure.machine_memory import Group
from cluster.azure.scale_sets.batching import RequestBatcher
from cluster.azure.scale_sets.set_memory import InstanceKey, SetMemory
from cluster.azure.scale_sets.set_requests import SetFailures, SetRequests
from cluster.azure.settings import AzureSettings
from cluster.azure.wire import ArmError
from cluster.policies.offerings import Offering
from cluster.provider import InvalidRequest, NodeRequest, ProvidedNode, ProviderError, QuotaExceeded
from remora.process_log import about

log = logging.getLogger(__name__)

#: How often a document is read again because another process changed it.
_TRIES = 3
#: Seconds for which a set without nodes is kept: a job that grows again soon comes back to it.
EMPTY_S = 600.0


@dataclass(frozen=True)
class _RequestedNode:
    """One node that is asked for."""

    request: NodeRequest
    offering: Offering
    #: Rounded to the millisecond, as tags are short.
    since: float

    @property
    def waits(self) -> Waiting:
        """As the set's document names it."""
        return Waiting(node_id=self.request.node_id, since=self.since)


class ScaleSetNodes:
    """The part of a provider that knows fabric domains; to be used on one event loop."""

    def __init__(
        self,
        settings: AzureSettings,
        arm: Arm,
        arm_requests: ArmRequests,
        head: str,
        clock: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._arm = arm
        self._arm_requests = arm_requests
        self._head = head
        self._clock = clock
        self._memory = SetMemory()
        self._requests = SetRequests(settings.cluster, arm, arm_requests, self._memory, clock)
        self._failures = SetFailures(arm, arm_requests, self._memory)
        # One look or change at a time: each decides by what it has just read.
        self._lock = asyncio.Lock()
        #: By the last look every instance belongs to a node and runs, and no node waits for one.
        self.is_still = False
        self._joining: RequestBatcher[_RequestedNode, None] = RequestBatcher(self._lock, self._join)
        self._leaving: RequestBatcher[str, bool] = RequestBatcher(self._lock, self._delete)

    def instance_key_of(self, node_id: str) -> InstanceKey | None:
        """Set and number of a node's instance, None while it has none and for other nodes."""
        return self._memory.instance_keys.get(node_id)

    async def create(self, request: NodeRequest, offering: Offering) -> None:
        """Ask for a node of a fabric domain; returns when Azure has accepted it.  Raises ProviderError.

        Requests for one domain that come together are one request to Azure.
        """
        if not offering.has_fabric:
            raise InvalidRequest(f"InfiniBand does not join machines of {offering.size}; choose another size")
        if request.node_id in self._memory.instance_keys or request.node_id in self._memory.waits:
            return
        name = set_name(self._settings.cluster, request.fabric or "", offering.id)
        await self._arm_requests.check_quota(offering)
        try:
            with self._arm_requests.on_its_way(offering):
                await self._joining.submit(name, _RequestedNode(request, offering, round(self._clock(), 3)))
        except ArmError as error:
            refused = self._arm_requests.error(error.failure, offering)
            if isinstance(refused, QuotaExceeded):
                self._arm_requests.forget_quota()
            raise refused from error

    async def look(self) -> list[ProvidedNode]:
        """Every node of a fabric domain, those that wait for a machine too; and do what is due.

        Raises ProviderError when any list fails, with nothing done.
        """
        async with self._lock:
            return await self._look()

    async def delete(self, node_id: str) -> bool:
        """End a node's machine, or wait for one no longer; False when the node is in no fabric domain.

        Raises ProviderError.  Nodes of one set that are deleted together are two requests to Azure.
        """
        if self._memory.has_looked and not self._lock.locked() and self._set_of(node_id) is None:
            # In no set: the deletion of a single machine need not wait for others.
            return self._memory.refused.pop(node_id, None) is not None
        try:
            return await self._leaving.submit("", node_id)
        except ArmError as error:
            raise self._arm_requests.error(error.failure, None) from error

    # --- joining

    async def _join(self, name: str, requested: Sequence[_RequestedNode]) -> list[Exception | None]:
        """Ask for nodes of one set; those that no domain is large enough for are refused."""
        for _ in range(_TRIES):
            found = await self._requests.read(name)
            try:
                if found is None:
                    taken = await self._make(name, requested)
                else:
                    taken = await self._raise(*found, requested)
            except ArmError as error:
                if error.failure.status == 412:
                    continue
                raise
            # From now on a look that lacks it asks about it by itself.
            self._memory.sets.setdefault(name, set())
            for node_id in taken:
                self._memory.waits[node_id] = name
            return [None if one.request.node_id in taken else _too_many(one) for one in requested]
        raise ArmError(_busy(f"the scale set {name} is being changed by another client"))

    async def _make(self, name: str, requested: Sequence[_RequestedNode]) -> set[str]:
        """Make a set; which nodes it has taken."""
        first = requested[0].request
        for other in await self._arm_requests.send(Group.SETS, self._arm.sets.all()):
            is_same = self._requests.is_ours(other) and other.tags.get(FABRIC_TAG) == first.fabric
            if is_same and other.name.lower() != name and (other.capacity or read_waiting(other.tags)):
                # Two sets are not joined: machines of another offering have to be gone before.
                raise ArmError(_busy(f"the fabric domain {first.fabric} still has machines in {other.name}"))
        joining = [one.waits for one in requested[:MOST_NODES]]
        # Numbers begin at 0 again: what is known of a former set of this name is wrong.
        self._memory.forget_set(name)
        body = set_body(self._settings, first, requested[0].offering, self._head, waiting_tags({}, joining))
        await self._requests.keep_operation(name, self._arm.sets.put(name, body, len(joining)))
        return {one.node_id for one in joining}

    async def _raise(
        self, seen: SeenSet, instances: Sequence[SeenInstance], requested: Sequence[_RequestedNode]
    ) -> set[str]:
        """Add nodes to a set; which ones it has taken."""
        if seen.state == "Deleting":
            raise ArmError(_busy(f"the scale set {seen.name} is being deleted"))
        joining = [one.waits for one in requested]
        gone = self._memory.not_waiting(seen, instances)
        decision = decide(seen, instances, joining=joining, leaving=gone)
        if decision.nodes > MOST_NODES:
            beyond = {one.node_id for one in decision.waiting[MOST_NODES - decision.nodes :]}
            joining = [one for one in joining if one.node_id not in beyond]
            decision = decide(seen, instances, joining=joining, leaving=gone)
        taken = {one.node_id for one in joining}
        await self._refuse_now(seen, decision)
        body = set_body(self._settings, requested[0].request, requested[0].offering, self._head, {})
        if seen.tags.get(MODEL_TAG) == body["tags"][MODEL_TAG]:
            await self._requests.write(seen, decision)
            return taken
        # Head, image or another setting has changed since: machines that are made from now on are of the new kind.
        tags = {**waiting_tags(seen.tags, decision.named), **body["tags"]}
        change = self._arm.sets.put(seen.name, {**body, "tags": tags}, decision.capacity, seen)
        await self._requests.keep_operation(seen.name, change)
        return taken

    # --- looking

    async def _look(self) -> list[ProvidedNode]:
        memory = self._memory
        try:
            listed = await self._arm_requests.send(Group.SETS, self._arm.sets.all())
            ours = {one.name.lower(): one for one in listed if self._requests.is_ours(one)}
            names = sorted(ours.keys() | memory.sets.keys())
            read = await gathered([self._requests.read(name, ours.get(name)) for name in names])
        except ArmError as error:
            raise self._arm_requests.error(error.failure, None) from error
        found = [one for one in read if one is not None]
        memory.begin_look(found, self._clock())
        nodes: list[ProvidedNode] = []
        for seen, instances in found:
            nodes += await self._settle(seen, instances)
        memory.has_looked = True
        self.is_still = not memory.refused and all(_is_still(*one) for one in found)
        return [*nodes, *memory.refused.values()]

    async def _settle(self, seen: SeenSet, instances: Sequence[SeenInstance]) -> list[ProvidedNode]:
        """Do what is due for a set; its nodes."""
        memory = self._memory
        decision = decide(seen, instances, leaving=self._memory.not_waiting(seen, instances))
        why = await self._failures.of_set(seen, decision) if decision.refused else None
        if decision.refused and why is None:
            # That some are missing is known; why, is asked for at the next look.
            decision = replace(decision, refused=(), waiting=(*decision.waiting, *decision.refused))
        else:
            self._refuse(seen, decision, why)
            await self._act(seen, instances, decision)
        for one in read_waiting(seen.tags):
            memory.waits[one.node_id] = seen.name
        nodes = [_waiting_node(seen, one) for one in decision.waiting]
        for instance in instances:
            if instance.node_id is not None and memory.is_shown(seen.name, instance):
                memory.instance_keys[instance.node_id] = (seen.name, instance.id)
                nodes.append(await self._node(seen, instance))
        return nodes

    async def _act(self, seen: SeenSet, instances: Sequence[SeenInstance], decision: Decision) -> None:
        """What does not work now is done at the next look, by what is there then."""
        # First: after a claim whose answer is lost, and after a crash, the document says which machine it was.
        if await self._try("written", self._requests.write(seen, decision)):
            # Some at a time: a hundred of them, one after the other, would take minutes.
            claims = [self._requests.claim(seen, instance, node) for instance, node in decision.claims]
            await gathered([self._try("tagged with its node", claim) for claim in claims])
        if decision.surplus:
            log.info("%s has %d machines that no node waits for", seen.name, len(decision.surplus))
            numbers = [one.id for one in decision.surplus]
            await self._try("reduced", self._requests.end(seen.name, numbers))
        await self._delete_when_empty(seen, bool(instances or decision.waiting))

    async def _delete_when_empty(self, seen: SeenSet, is_used: bool) -> None:
        since = self._memory.empty_since
        if is_used or seen.state == "Deleting":
            since.pop(seen.name, None)
        elif self._clock() - since.setdefault(seen.name, self._clock()) >= EMPTY_S:
            log.info("the scale set %s has had no node for a while and is deleted", seen.name)
            await self._try(
                "deleted", self._arm_requests.send(Group.DELETE_SET, self._arm.sets.delete(seen.name))
            )

    async def _try(self, what: str, work: Coroutine[Any, Any, object]) -> bool:
        try:
            await work
        except ArmError as error:
            log.info("a scale set cannot be %s now, it is tried again: %s", what, error)
            return False
        return True

    # --- acting

    def _set_of(self, node_id: str) -> str | None:
        key = self._memory.instance_keys.get(node_id)
        return self._memory.waits.get(node_id, key[0] if key is not None else None)

    async def _delete(self, _: str, node_ids: Sequence[str]) -> list[bool | Exception]:
        """End nodes, those of each set together; whether each is in a fabric domain, or why it cannot be ended."""
        if not self._memory.has_looked:
            await self._look()
        by_set: dict[str, set[str]] = {}
        for node_id in node_ids:
            name = self._set_of(node_id)
            if name is not None:
                by_set.setdefault(name, set()).add(node_id)
        ended = [self._delete_from(name, mine) for name, mine in by_set.items()]
        outcomes = await asyncio.gather(*ended, return_exceptions=True)
        answers: dict[str, bool | Exception] = {one: one in self._memory.refused for one in node_ids}
        for mine, outcome in zip(by_set.values(), outcomes, strict=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, Exception):
                raise outcome
            answers |= dict.fromkeys(mine, outcome or True)
        for node_id, answer in answers.items():
            if answer is True:
                # Not before: the document may still name it, and the set has another state by the next look.
                self._memory.refused.pop(node_id, None)
        return [answers[node_id] for node_id in node_ids]

    async def _delete_from(self, name: str, node_ids: Collection[str]) -> None:
        memory = self._memory
        instance_keys = {one: memory.instance_keys[one] for one in node_ids if one in memory.instance_keys}
        waiting = {one for one in node_ids if one in memory.waits}
        if waiting:
            # First: a name that waits longer than its machine lives would be given another one.
            instance_keys |= await self._leave(name, waiting)
        for where in {where for where, _ in instance_keys.values()}:
            await self._requests.end(
                where, sorted({number for at, number in instance_keys.values() if at == where})
            )
        for node_id in node_ids:
            memory.instance_keys.pop(node_id, None)

    async def _leave(self, name: str, node_ids: Collection[str]) -> dict[str, InstanceKey]:
        """Take names of nodes out of the set's document; where the instances are that they have got meanwhile."""
        for _ in range(_TRIES):
            found = await self._requests.read(name)
            instances = found[1] if found is not None else []
            try:
                if found is not None and any(one.node_id in node_ids for one in read_waiting(found[0].tags)):
                    gone = {*node_ids, *self._memory.not_waiting(found[0], instances)}
                    decision = decide(*found, leaving=gone)
                    await self._refuse_now(found[0], decision)
                    await self._requests.write(found[0], decision)
            except ArmError as error:
                if error.failure.status == 412:
                    continue
                raise
            for node_id in node_ids:
                self._memory.waits.pop(node_id, None)
            return {
                one.node_id: (name, one.id) for one in instances if one.node_id and one.node_id in node_ids
            }
        raise ArmError(_busy(f"the scale set {name} is being changed by another client"))

    # --- failures

    async def _refuse_now(self, seen: SeenSet, decision: Decision) -> None:
        if decision.refused:
            self._refuse(seen, decision, await self._failures.of_set(seen, decision))

    def _refuse(self, seen: SeenSet, decision: Decision, why: ProviderError | None) -> None:
        """Remember which nodes Azure had no machine for."""
        for one in decision.refused:
            log.info(
                "%s has no machine for %s: %s", seen.name, one.node_id, why, extra=about(node=one.node_id)
            )
            node = _waiting_node(seen, one)
            message = str(why or "Azure could not make it")
            self._memory.refused[one.node_id] = replace(node, is_running=False, message=message, refusal=why)

    async def _node(self, seen: SeenSet, instance: SeenInstance) -> ProvidedNode:
        why = await self._failures.of_instance(seen, instance) if instance.has_failed else None
        message = "Azure is deleting it" if instance.is_leaving else None
        return ProvidedNode(
            node_id=instance.node_id or "",
            pool=seen.tags.get(POOL_TAG, ""),
            is_running=not instance.has_failed,
            address=None,
            created_at=created_at(instance.tags),
            message=str(why or "Azure could not make it") if instance.has_failed else message,
            refusal=why,
        )


def _waiting_node(seen: SeenSet, node: Waiting) -> ProvidedNode:
    return ProvidedNode(
        node_id=node.node_id,
        pool=seen.tags.get(POOL_TAG, ""),
        is_running=True,
        address=None,
        created_at=node.since,
    )


def _is_still(seen: SeenSet, instances: Sequence[SeenInstance]) -> bool:
    runs = all(one.state == "Succeeded" and one.node_id is not None and one.is_tagged for one in instances)
    return seen.state == "Succeeded" and runs and not read_waiting(seen.tags)


def _too_many(requested: _RequestedNode) -> InvalidRequest:
    said = f"the fabric domain {requested.request.fabric} has no capacity for one more node, {MOST_NODES} is the most"
    return InvalidRequest(said)


def _busy(message: str) -> CloudFailure:
    return CloudFailure(code="Conflict", message=message, status=409)
