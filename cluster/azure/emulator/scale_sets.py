"""Uniform scale sets of the emulated subscription: documents with a capacity, and the machines that come of it."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cluster.azure.emulator.emulated_cloud import (
    CREATING,
    DELETING,
    FAILED,
    SUCCEEDED,
    Cloud,
    EmulatedMachine,
    Json,
    Operation,
    Refused,
)
from cluster.azure.emulator.faults import Effect, EmulatorFault, FaultPoint

UPDATING = "Updating"
#: Instances of one placement group.
MOST_INSTANCES = 100


@dataclass
class ScaleSet:
    """One set; its instances are machines of the cloud whose `instance_key` names it."""

    name: str
    body: Json
    custom_data: str
    capacity: int = 0
    state: str = CREATING
    error: tuple[str, str] | None = None
    #: Version of its document.
    version: int = 1
    #: Number of the next instance; numbers are never used again.
    next_number: int = 0
    #: Azure's own id of it, which no other set has, also none of the same name.
    unique_id: str = field(default_factory=lambda: str(uuid.uuid4()))

    @property
    def size(self) -> str:
        """E.g. `Standard_ND96asr_v4`."""
        return str(self.body["sku"]["name"])


class EmulatedScaleSets:
    """All sets of one cloud."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self.all: dict[str, ScaleSet] = {}
        cloud.on_end.append(self._ended)

    def get(self, name: str) -> ScaleSet:
        """One set.  Raises Refused when there is none."""
        found = self.all.get(name.lower())
        if found is None:
            said = f"The Resource 'Microsoft.Compute/virtualMachineScaleSets/{name}' was not found."
            raise Refused(404, "ResourceNotFound", said)
        return found

    def instances(self, one: ScaleSet) -> list[EmulatedMachine]:
        """Its instances by number."""
        mine = [machine for machine in self._cloud.machines.values() if _is_of(machine, one)]
        return sorted(mine, key=lambda machine: int(number_of(machine)))

    def instance(self, name: str, number: str) -> EmulatedMachine:
        """One instance.  Raises Refused when there is none."""
        for machine in self.instances(self.get(name)):
            if number_of(machine) == number:
                return machine
        raise Refused(404, "NotFound", f"The entity was not found: instance {number} of {name}.")

    def put(self, name: str, body: Json, now: float) -> tuple[ScaleSet, Operation]:
        """Make a set.  Raises Refused, and ConnectionAbortedError when a fault takes the answer away."""
        body, custom_data = _without_secret(body)
        one = ScaleSet(name, body, custom_data, int(body["sku"].get("capacity") or 0))
        fault = self._refused(FaultPoint.UPDATE_SET)
        operation, lost = self._grow(one, now)
        self.all[name.lower()] = one
        _answer(fault or lost)
        return one, operation

    def update(self, one: ScaleSet, change: Json, now: float) -> Operation:
        """Change tags and capacity of a set, and what its next instances are made of where the change says that.

        Raises as `put` does, with nothing changed when it is refused.
        """
        capacity = int((change.get("sku") or {}).get("capacity", one.capacity))
        if capacity > MOST_INSTANCES:
            raise Refused(
                400, "InvalidParameter", f"A placement group has at most {MOST_INSTANCES} instances."
            )
        fault = self._refused(FaultPoint.UPDATE_SET)
        before = one.capacity, one.body, one.custom_data
        one.capacity = capacity
        if "properties" in change:
            one.body, one.custom_data = _without_secret(change)
        try:
            operation, lost = self._grow(one, now)
        except Refused:
            one.capacity, one.body, one.custom_data = before
            raise
        one.version += 1
        one.body = {**one.body, "tags": change.get("tags", one.body.get("tags", {}))}
        _answer(fault or lost)
        return operation

    def claim(self, machine: EmulatedMachine, body: Json) -> None:
        """Change tags and protection of an instance.  Raises as `put` does."""
        fault = self._refused(FaultPoint.CLAIM)
        policy = (body.get("properties") or {}).get("protectionPolicy") or {}
        machine.is_protected = bool(policy.get("protectFromScaleIn", machine.is_protected))
        machine.body = {**machine.body, "tags": body.get("tags", {})}
        machine.version += 1
        _answer(fault)

    def delete_instances(
        self, one: ScaleSet, numbers: Sequence[str], now: float, is_forced: bool
    ) -> Operation:
        """Begin to delete instances; the capacity is lower at once, until that fails.  Raises as `put` does."""
        fault = self._refused(FaultPoint.DELETE)
        there = {number_of(machine): machine for machine in self.instances(one)}
        for number in numbers:
            if number not in there:
                said = f"The provided instanceId {number} is not an active Virtual Machine Scale Set VM instanceId."
                raise Refused(400, "InvalidParameter", said)
        leaving = [there[number] for number in numbers if there[number].state != DELETING]
        for machine in leaving:
            machine.state, machine.freed_at = DELETING, now
        one.capacity = max(0, one.capacity - len(leaving))
        one.version += 1
        operation = self._cloud.operation(
            one.name, "delete-instances", now, self._cloud.delete_takes_s(is_forced)
        )
        later = self._cloud.faults.take(FaultPoint.DELETE_LATER)
        operation.error = (later.code, later.message) if later is not None else None

        def done(at: float) -> None:
            there = [machine for machine in leaving if machine.name.lower() in self._cloud.machines]
            if operation.error is None:
                for machine in there:
                    self._cloud.remove(machine, at)
                return
            # They stay, and count again.
            one.capacity += len(there)
            one.version += 1
            for machine in there:
                machine.state, machine.error, machine.freed_at = FAILED, operation.error, None

        operation.done = done
        _answer(fault)
        return operation

    def delete(self, one: ScaleSet, now: float) -> Operation:
        """Begin to delete a set with all its instances.  Raises as `put` does."""
        fault = self._refused(FaultPoint.DELETE)
        one.state = DELETING
        operation = self._cloud.operation(one.name, "delete-set", now, self._cloud.delete_s)

        def done(at: float) -> None:
            for machine in self.instances(one):
                machine.state = DELETING
                self._cloud.remove(machine, at)
            self.all.pop(one.name.lower(), None)

        operation.done = done
        _answer(fault)
        return operation

    def _grow(self, one: ScaleSet, now: float) -> tuple[Operation, EmulatorFault | None]:
        """Bring the set to its capacity, as far as there are machines; a missing one fails the operation.

        The operation, and a fault that takes its answer away.  Raises Refused.
        """
        there = [machine for machine in self.instances(one) if machine.state != DELETING]
        number = one.capacity - len(there)
        fault = self._checked(one, number)
        for other in self._cloud.operations.values():
            if (other.machine, other.kind, other.status) == (one.name, "scale", "InProgress"):
                other.status, other.ended_at = "Canceled", now
                other.error = ("OperationPreempted", "Preempted by a more recent operation.")
        operation = self._cloud.operation(one.name, "scale", now, self._cloud.create_s)
        one.state = UPDATING if one.state != CREATING else CREATING
        later = None
        if number > 0:
            later = self._cloud.faults.take(FaultPoint.CREATE_LATER, size=one.size, zone=_zone(one))
        is_evicted = later is not None and later.effect is Effect.EVICT
        if later is not None and not is_evicted:
            operation.error = (later.code, later.message)
        else:
            operation.error = self._add(one, number, now)
        self._shrink(there, -number, now)
        operation.done = lambda at: self._grown(one, operation, is_evicted, at)
        return operation, fault

    def _checked(self, one: ScaleSet, number: int) -> EmulatorFault | None:
        if number <= 0:
            return None
        fault = self._refused(FaultPoint.CREATE, size=one.size, zone=_zone(one))
        self._cloud.check_quota(self._machine(one, 0.0), number)
        return fault

    def _add(self, one: ScaleSet, number: int, now: float) -> tuple[str, str] | None:
        for _ in range(number):
            machine = self._machine(one, now)
            error = self._cloud.crowded(machine)
            if error is not None:
                return error
            one.next_number += 1
            self._cloud.machines[machine.name.lower()] = machine
        return None

    def _shrink(self, there: Sequence[EmulatedMachine], number: int, now: float) -> None:
        """Azure chooses by itself: those with the highest numbers that are not protected."""
        for machine in [one for one in reversed(there) if not one.is_protected][: max(0, number)]:
            machine.state = DELETING
            self._cloud.remove(machine, now)

    def _grown(self, one: ScaleSet, operation: Operation, is_evicted: bool, now: float) -> None:
        one.state, one.error = (FAILED if operation.error else SUCCEEDED), operation.error
        for machine in self.instances(one):
            if machine.state != CREATING:
                continue
            if is_evicted:
                is_evicted = False
                self._cloud.remove(machine, now)
                continue
            machine.state = SUCCEEDED
            for start in self._cloud.on_start:
                start(machine)

    def _machine(self, one: ScaleSet, now: float) -> EmulatedMachine:
        size, number = self._cloud.sizes[one.size], str(one.next_number)
        properties = {
            **one.body["properties"]["virtualMachineProfile"],
            "hardwareProfile": {"vmSize": size.name},
        }
        body = {
            "location": one.body["location"],
            "zones": one.body.get("zones", []),
            # Of the set as it is now; later changes of the set's tags are not the instances'.
            "tags": dict(one.body.get("tags", {})),
            "properties": properties,
        }
        family = size.family or f"standard{size.name}Family"
        name = f"{one.name}_{number}"
        return EmulatedMachine(
            name, body, one.custom_data, now, size.vcpus, family, instance_key=(one.name, number)
        )

    def _ended(self, machine: EmulatedMachine) -> None:
        """An instance that Azure took back by itself lowers the capacity."""
        one = self.all.get(machine.instance_key[0].lower()) if machine.instance_key is not None else None
        if one is not None and machine.state != DELETING:
            one.capacity = max(0, one.capacity - 1)
            one.version += 1

    def _refused(self, point: FaultPoint, **facts: Any) -> EmulatorFault | None:
        fault = self._cloud.faults.take(point, **facts)
        if fault is not None and fault.effect is Effect.REFUSE:
            raise Refused.by(fault)
        return fault


def number_of(machine: EmulatedMachine) -> str:
    """Its number within its set."""
    return machine.instance_key[1] if machine.instance_key is not None else ""


def _is_of(machine: EmulatedMachine, one: ScaleSet) -> bool:
    return machine.instance_key is not None and machine.instance_key[0] == one.name


def _zone(one: ScaleSet) -> str:
    return str((one.body.get("zones") or [""])[0])


def _answer(fault: EmulatorFault | None) -> None:
    """It is done: what the client hears of it."""
    if fault is not None:
        raise Refused.by(fault) if fault.effect is Effect.DONE_BUT_REFUSE else ConnectionAbortedError


def _without_secret(body: Json) -> tuple[Json, str]:
    """The body as ARM echoes it, and the start-up data."""
    profile: dict[str, Any] = dict(body["properties"]["virtualMachineProfile"])
    system = dict(profile["osProfile"])
    custom_data = system.pop("customData", "")
    properties = {**body["properties"], "virtualMachineProfile": {**profile, "osProfile": system}}
    return {**body, "properties": properties}, custom_data
