"""What exists in the emulated subscription, and how it changes with time.

Nothing runs by itself: every call passes the time, and what was due until then happens.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cluster.azure.catalogue import BY_NAME, Size
from cluster.azure.emulator.books import BilledMachine, billed_price
from cluster.azure.emulator.faults import Effect, EmulatorFault, EmulatorFaults, FaultPoint

Json = dict[str, Any]
Key = tuple[str, str, str]

SUCCEEDED, FAILED, CREATING, DELETING = "Succeeded", "Failed", "Creating", "Deleting"


class Refused(Exception):
    """An error as ARM tells it."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        retry_after: float | None = None,
        body: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.retry_after = retry_after
        self.body = body

    @classmethod
    def by(cls, fault: EmulatorFault) -> Refused:
        """The error that a knob asks for."""
        return cls(fault.status, fault.code, fault.message, fault.retry_after, fault.body)


@dataclass
class Operation:
    """A long-running operation on one machine, or on a scale set."""

    id: str
    machine: str
    kind: str
    due_at: float
    started_at: float
    #: What it will end with; None: success.
    error: tuple[str, str] | None = None
    evicts: bool = False
    status: str = "InProgress"
    ended_at: float | None = None
    #: What its end does, where that is not about one machine alone.
    done: Callable[[float], None] | None = None


@dataclass
class EmulatedMachine:
    """A virtual machine with what hangs on it."""

    name: str
    #: What was put, as ARM echoes it: without the start-up data.
    body: Json
    custom_data: str
    created_at: float
    vcpus: int
    family: str
    vm_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    state: str = CREATING
    error: tuple[str, str] | None = None
    #: Since when it is being deleted, which is not billed.
    freed_at: float | None = None
    #: A fault leaves its network interface and disk behind.
    leaks: bool = False
    #: The scale set that it is an instance of, and its number there.
    instance_key: tuple[str, str] | None = None
    #: Azure may not end it by itself when the capacity of its set is lowered.
    is_protected: bool = False
    #: Version of its document.
    version: int = 1

    @property
    def size(self) -> str:
        """E.g. `Standard_D4s_v5`."""
        return str(self.body["properties"]["hardwareProfile"]["vmSize"])

    @property
    def zone(self) -> str:
        """Empty when none was asked for."""
        return str((self.body.get("zones") or [""])[0])

    @property
    def capacity(self) -> str:
        """`spot` or `on-demand`."""
        return "spot" if self.body["properties"].get("priority") == "Spot" else "on-demand"

    @property
    def quotas(self) -> dict[str, str]:
        """The quotas that it uses, and Azure's word for each in an error."""
        if self.capacity == "spot":
            return {"lowPriorityCores": "LowPriorityCores"}
        return {"cores": "Total Regional Cores", self.family: f"{self.family} Cores"}

    @property
    def key(self) -> Key:
        """Size, zone and capacity type."""
        return (self.size, self.zone, self.capacity)


class Cloud:
    """One subscription with one resource group; times are seconds since 1970."""

    def __init__(self, sizes: Mapping[str, Size] = BY_NAME) -> None:
        """`sizes` are those that it sells, by name."""
        self.sizes = sizes
        self.faults = EmulatorFaults()
        self.machines: dict[str, EmulatedMachine] = {}
        self.interfaces: dict[str, Json] = {}
        self.disks: dict[str, Json] = {}
        self.operations: dict[str, Operation] = {}
        #: How many machines may exist of a size in a zone with a capacity type; what is not named is not limited.
        self.most_machines: dict[Key, int] = {}
        #: Limits of vCPUs by quota name; what is not named is not limited.
        self.limits: dict[str, int] = {}
        #: Features that the subscription is registered for, as `Microsoft.Compute/UseStandardSecurityType`.
        self.features: set[str] = set()
        #: The actions of a role that requests are held to; None: everything is allowed.
        self.allowed: frozenset[str] | None = None
        #: The actions that requests needed so far.
        self.actions: set[str] = set()
        #: Azure's word for whether the subscription can be used.
        self.subscription_state = "Enabled"
        #: Ids of subscriptions that the login does not see.
        self.unseen: set[str] = set()
        #: Seconds from the request to the end of its operation.
        self.create_s = 0.0
        self.delete_s = 0.0
        #: Seconds more of a deletion that is not forced: the machine's system shuts down first.
        self.shut_down_s = 0.0
        self.page_size = 50
        #: How many more reads an answer says that there may be; None: it says nothing of it.
        self.reads_left: int | None = None
        #: Names of machines that exist and that lists lack, as happens to the real one's caches.
        self.unlisted: set[str] = set()
        #: Seconds between the notice of an eviction and the eviction.
        self.notice_s = 30.0
        #: Seconds between the request for a simulated eviction and its notice; the real one takes minutes.
        self.announce_s = 0.0
        #: Machines whose eviction was requested, by name in lower case, with the time of the notice.
        self.requested_evictions: dict[str, float] = {}
        #: Machines that will be evicted, by name in lower case, and when.
        self.evictions: dict[str, float] = {}
        #: Machine-seconds of those that are gone, by capacity type.
        self.used_s: dict[str, float] = {"spot": 0.0, "on-demand": 0.0}
        #: What it bills for those that are gone.
        self.billed: list[BilledMachine] = []
        #: Each is called with a machine that began to run, and with one that is gone.
        self.on_start: list[Callable[[EmulatedMachine], None]] = []
        self.on_end: list[Callable[[EmulatedMachine], None]] = []
        #: Each is called with a machine that will be evicted, and when, for the emulated metadata service.
        self.on_notice: list[Callable[[EmulatedMachine, float], None]] = []

    def create(
        self, name: str, body: Json, now: float, vcpus: int, family: str
    ) -> tuple[EmulatedMachine, Operation]:
        """Accept a machine.  Raises Refused, and ConnectionAbortedError when a fault takes the answer away."""
        properties = dict(body["properties"])
        system = dict(properties["osProfile"])
        custom_data = system.pop("customData", "")
        properties["osProfile"] = system
        machine = EmulatedMachine(name, {**body, "properties": properties}, custom_data, now, vcpus, family)
        fault = self.faults.take(FaultPoint.CREATE, size=machine.size, zone=machine.zone)
        if fault is not None and fault.effect is Effect.REFUSE:
            raise Refused.by(fault)
        self.check_quota(machine)
        error = self.crowded(machine)
        self.machines[name.lower()] = machine
        self._attach(machine)
        operation = self.operation(machine.name, "create", now, self.create_s)
        operation.error = error
        later = self.faults.take(FaultPoint.CREATE_LATER, size=machine.size, zone=machine.zone)
        if later is not None:
            operation.evicts = later.effect is Effect.EVICT
            operation.error = None if operation.evicts else (later.code, later.message)
        if fault is not None:
            raise Refused.by(fault) if fault.effect is Effect.DONE_BUT_REFUSE else ConnectionAbortedError
        return machine, operation

    def delete(self, name: str, now: float, is_forced: bool) -> Operation | None:
        """Begin to delete a machine; None when there is none.  Raises Refused."""
        fault = self.faults.take(FaultPoint.DELETE)
        if fault is not None and fault.effect is Effect.REFUSE:
            raise Refused.by(fault)
        machine = self.machines.get(name.lower())
        if machine is None:
            return None
        for other in self.operations.values():
            if other.machine == machine.name and other.status == "InProgress":
                other.status, other.ended_at = "Canceled", now
                other.error = (
                    "OperationPreempted",
                    "Operation execution has been preempted by a more recent operation.",
                )
        machine.state, machine.freed_at = DELETING, now
        machine.leaks = machine.leaks or (fault is not None and fault.effect is Effect.LEAK)
        operation = self.operation(machine.name, "delete", now, self.delete_takes_s(is_forced))
        later = self.faults.take(FaultPoint.DELETE_LATER)
        operation.error = (later.code, later.message) if later is not None else None
        if fault is not None and fault.effect is Effect.DONE_BUT_REFUSE:
            raise Refused.by(fault)
        if fault is not None and fault.effect is Effect.LOSE_ANSWER:
            raise ConnectionAbortedError
        return operation

    def delete_takes_s(self, is_forced: bool) -> float:
        """Seconds from the request to the end of a deletion."""
        return self.delete_s + (0.0 if is_forced else self.shut_down_s)

    def advance(self, now: float) -> None:
        """Let everything happen that was due until now."""
        for operation in list(self.operations.values()):
            if operation.status == "InProgress" and operation.due_at <= now:
                self._finish(operation, now)
        for name, at in list(self.requested_evictions.items()):
            if at <= now:
                del self.requested_evictions[name]
                # By the time at which it was due: there may have been no request meanwhile.
                self.notice(name, at)
        for name, at in list(self.evictions.items()):
            if at <= now:
                del self.evictions[name]
                if name in self.machines:
                    self.evict(name, at)

    def simulate_eviction(self, name: str, now: float) -> None:
        """Give a machine its notice `announce_s` from now; an earlier request for it keeps its time."""
        if self.announce_s <= 0:
            self.notice(name, now)
        elif name.lower() not in self.evictions:
            self.requested_evictions.setdefault(name.lower(), now + self.announce_s)

    def notice(self, name: str, now: float) -> float:
        """Announce that a machine will be evicted `notice_s` from now; returns when, also if it was before."""
        machine = self.machines[name.lower()]
        announced = self.evictions.get(name.lower())
        if announced is not None:
            return announced
        at = self.evictions[name.lower()] = now + self.notice_s
        for tell in self.on_notice:
            tell(machine, at)
        return at

    def let_go(self, name: str, now: float) -> None:
        """A machine that will be evicted does not need the rest of its notice; any other stays."""
        if name.lower() in self.evictions:
            self.evictions[name.lower()] = now

    def evict(self, name: str, now: float) -> None:
        """The cloud takes a machine back at once, with the eviction policy Delete."""
        machine = self.machines[name.lower()]
        machine.leaks = machine.leaks or self.faults.take(FaultPoint.DELETE) is not None
        self.remove(machine, now)

    def fail(self, name: str, code: str, message: str, now: float) -> None:
        """Let a machine be one that failed, as if its operation had."""
        machine = self.machines[name.lower()]
        machine.state, machine.error = FAILED, (code, message)
        for operation in self.operations.values():
            if operation.machine == machine.name and operation.kind == "create":
                operation.status, operation.error, operation.ended_at = FAILED, machine.error, now

    def usages(self) -> dict[str, tuple[int, int]]:
        """Used vCPUs and limit by quota name."""
        return {name: (self._used(name), limit) for name, limit in self.limits.items()}

    def _used(self, quota: str) -> int:
        return sum(one.vcpus for one in self.machines.values() if quota in one.quotas)

    def check_quota(self, machine: EmulatedMachine, number: int = 1) -> None:
        """Raise Refused when a quota does not allow `number` more machines like this one."""
        for name, word in machine.quotas.items():
            limit, used, more = self.limits.get(name), self._used(name), number * machine.vcpus
            if limit is not None and used + more > limit:
                raise Refused(
                    409,
                    "OperationNotAllowed",
                    f"Operation could not be completed as it results in exceeding approved {word} quota. Additional "
                    f"details - Deployment Model: Resource Manager, Location: {machine.body['location']}, Current "
                    f"Limit: {limit}, Current Usage: {used}, Additional Required: {more}, (Minimum) New "
                    f"Limit Required: {used + more}.",
                )

    def score(self, size: str, zone: str, count: int) -> str:
        """Azure's word for the chance of this many spot machines there."""
        key = (size, zone, "spot")
        limit = self.most_machines.get(key)
        held = sum(1 for other in self.machines.values() if other.key == key and other.state != FAILED)
        if limit is None or limit - held >= count:
            return "High"
        return "Medium" if limit > held else "Low"

    def crowded(self, machine: EmulatedMachine) -> tuple[str, str] | None:
        """Why there is no capacity for one more: reported only after the request was accepted, as Azure does."""
        limit = self.most_machines.get(machine.key)
        held = sum(
            1 for other in self.machines.values() if other.key == machine.key and other.state != FAILED
        )
        if limit is None or held < limit:
            return None
        if machine.capacity == "spot":
            # The same size may be there on demand, so Azure names every constraint of the request.
            code = (
                "OverconstrainedZonalAllocationRequest"
                if machine.zone
                else "OverconstrainedAllocationRequest"
            )
            return code, (
                "Allocation failed. VM(s) with the following constraints cannot be allocated, because the condition is"
                " too restrictive. Please remove some constraints and try again. Constraints applied are: VM Size, Low"
                " Priority VM" + (", Availability Zone" if machine.zone else "")
            )
        said = "Allocation failed. We do not have sufficient capacity for the requested VM size in this "
        return (
            ("ZonalAllocationFailed", said + "zone.")
            if machine.zone
            else ("AllocationFailed", said + "region.")
        )

    def operation(self, name: str, kind: str, now: float, takes_s: float) -> Operation:
        """Begin an operation on a machine or a set of this name."""
        operation = Operation(str(uuid.uuid4()), name, kind, now + takes_s, now)
        self.operations[operation.id] = operation
        return operation

    def _attach(self, machine: EmulatedMachine) -> None:
        for inline in machine.body["properties"]["networkProfile"]["networkInterfaceConfigurations"]:
            # The real name has a suffix: the requested name must not be relied on.
            name = f"{inline['name']}-{machine.vm_id[:8]}"
            owned = {"virtualMachine": {"id": machine.name}}
            self.interfaces[name] = {"name": name, "tags": inline.get("tags", {}), "properties": owned}
        disk = machine.body["properties"]["storageProfile"]["osDisk"]
        if "diffDiskSettings" not in disk:
            name = disk.get("name") or f"{machine.name}_OsDisk_1_{machine.vm_id.replace('-', '')}"
            self.disks[name] = {"name": name, "tags": machine.body.get("tags", {}), "managedBy": machine.name}

    def _finish(self, operation: Operation, now: float) -> None:
        operation.ended_at = now
        operation.status = FAILED if operation.error else SUCCEEDED
        if operation.done is not None:
            operation.done(now)
            return
        machine = self.machines.get(operation.machine.lower())
        if machine is None:
            return
        if operation.kind == "delete":
            if operation.error:
                machine.state, machine.error, machine.freed_at = FAILED, operation.error, None
            else:
                self.remove(machine, now)
        elif operation.evicts:
            self.remove(machine, now)
        elif operation.error:
            machine.state, machine.error = FAILED, operation.error
        else:
            machine.state = SUCCEEDED
            for start in self.on_start:
                start(machine)

    def remove(self, machine: EmulatedMachine, now: float) -> None:
        """The machine is gone, and what hangs on it goes the way that its body says."""
        self.machines.pop(machine.name.lower(), None)
        # The next one of this name has got no notice.
        self.evictions.pop(machine.name.lower(), None)
        self.requested_evictions.pop(machine.name.lower(), None)
        self.used_s[machine.capacity] += now - machine.created_at
        self.billed.append(self._billed(machine, now if machine.freed_at is None else machine.freed_at))
        if machine.instance_key is None:
            self._detach(machine)
        for end in self.on_end:
            end(machine)

    def books(self) -> list[BilledMachine]:
        """What it bills for all machines that there were and are, those that are gone first."""
        return [
            *self.billed,
            *(self._billed(machine, machine.freed_at) for machine in self.machines.values()),
        ]

    def _billed(self, machine: EmulatedMachine, ended_at: float | None) -> BilledMachine:
        return BilledMachine(
            name=machine.name,
            node=str(machine.body.get("tags", {}).get("remora:node", "")),
            size=machine.size,
            zone=machine.zone,
            capacity=machine.capacity,
            began_at=machine.created_at,
            ended_at=ended_at,
            price_per_hour=billed_price(self.sizes, machine.size, machine.capacity),
        )

    def _detach(self, machine: EmulatedMachine) -> None:
        properties = machine.body["properties"]
        configurations = properties["networkProfile"]["networkInterfaceConfigurations"]
        cascades = all(one["properties"].get("deleteOption") == "Delete" for one in configurations)
        for name, interface in list(self.interfaces.items()):
            if interface["properties"].get("virtualMachine", {}).get("id") == machine.name:
                interface["properties"].pop("virtualMachine")
                if cascades and not machine.leaks:
                    del self.interfaces[name]
        cascades = properties["storageProfile"]["osDisk"].get("deleteOption") == "Delete"
        for name, disk in list(self.disks.items()):
            if disk.get("managedBy") == machine.name:
                disk.pop("managedBy")
                if cascades and not machine.leaks:
                    del self.disks[name]
