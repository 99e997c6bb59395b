"""Uniform scale sets of the emulated Azure Resource Manager over HTTP."""

from __future__ import annotations

import base64
import binascii

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cluster.azure.emulator.emulated_cloud import SUCCEEDED, EmulatedMachine, Json, Refused
from cluster.azure.emulator.faults import FaultPoint
from cluster.azure.emulator.front_end import ArmFrontEnd, Endpoint, is_forced
from cluster.azure.emulator.machine_checks import check_disk, check_security
from cluster.azure.emulator.scale_sets import MOST_INSTANCES, EmulatedScaleSets, ScaleSet, number_of

_SETS = (
    "/subscriptions/{subscription}/resourceGroups/{group}/providers/Microsoft.Compute/virtualMachineScaleSets"
)
_SET = f"{_SETS}/{{name}}"
_INSTANCE = f"{_SET}/virtualMachines/{{number}}"


def routes(front_end: ArmFrontEnd, sets: EmulatedScaleSets) -> list[Route]:
    """The routes of the scale sets of one resource group."""
    arm = _ArmSets(front_end, sets)
    table: list[tuple[str, str, Endpoint]] = [
        ("GET", _SETS, arm.list_sets),
        ("PUT", _SET, arm.put),
        ("PATCH", _SET, arm.update),
        ("GET", _SET, arm.get),
        ("DELETE", _SET, arm.delete),
        ("POST", f"{_SET}/delete", arm.delete_instances),
        ("GET", f"{_SET}/instanceView", arm.view),
        ("GET", f"{_SET}/virtualMachines", arm.list_instances),
        ("GET", _INSTANCE, arm.get_instance),
        ("PUT", _INSTANCE, arm.claim),
        ("GET", f"{_INSTANCE}/instanceView", arm.instance_view),
        ("POST", f"{_INSTANCE}/simulateEviction", arm.simulate_eviction),
    ]
    return [Route(path, front_end.guarded(endpoint), methods=[method]) for method, path, endpoint in table]


class _ArmSets:
    def __init__(self, front_end: ArmFrontEnd, sets: EmulatedScaleSets) -> None:
        self._front_end = front_end
        self._sets = sets

    async def list_sets(self, request: Request) -> Response:
        documents = [self._document(one) for _, one in sorted(self._sets.all.items())]
        return self._front_end.page(request, FaultPoint.LIST_SETS, documents)

    async def put(self, request: Request) -> Response:
        name, body = request.path_params["name"], await request.json()
        if name.lower() in self._sets.all:
            if request.headers.get("If-None-Match") == "*":
                raise Refused(412, "PreconditionFailed", "The resource exists and If-None-Match is '*'.")
            return await self.update(request)
        self._check(body)
        one, operation = self._sets.put(name, body, self._front_end.clock())
        headers = self._front_end.operation_headers(request, operation)
        return JSONResponse(self._document(one), status_code=201, headers=headers)

    async def update(self, request: Request) -> Response:
        one, change = self._sets.get(request.path_params["name"]), await request.json()
        _check_version(request, one.version)
        if request.method == "PUT":
            self._check(change)
        operation = self._sets.update(one, change, self._front_end.clock())
        headers = self._front_end.operation_headers(request, operation)
        return JSONResponse(self._document(one), headers=headers)

    async def get(self, request: Request) -> Response:
        self._front_end.meet_fault(FaultPoint.GET)
        return JSONResponse(self._document(self._sets.get(request.path_params["name"])))

    async def delete(self, request: Request) -> Response:
        if request.path_params["name"].lower() not in self._sets.all:
            return Response(status_code=204)
        one = self._sets.get(request.path_params["name"])
        return self._front_end.accepted(request, self._sets.delete(one, self._front_end.clock()))

    async def delete_instances(self, request: Request) -> Response:
        one = self._sets.get(request.path_params["name"])
        numbers = [str(number) for number in (await request.json())["instanceIds"]]
        operation = self._sets.delete_instances(one, numbers, self._front_end.clock(), is_forced(request))
        return self._front_end.accepted(request, operation)

    async def view(self, request: Request) -> Response:
        self._front_end.meet_fault(FaultPoint.VIEW)
        one = self._sets.get(request.path_params["name"])
        return JSONResponse({"statuses": _statuses(one.state, one.error)})

    async def list_instances(self, request: Request) -> Response:
        one = self._sets.get(request.path_params["name"])
        unlisted = self._front_end.cloud.unlisted
        documents = [
            _instance(machine) for machine in self._sets.instances(one) if machine.name not in unlisted
        ]
        return self._front_end.page(request, FaultPoint.LIST_INSTANCES, documents)

    async def get_instance(self, request: Request) -> Response:
        self._front_end.meet_fault(FaultPoint.GET)
        return JSONResponse(_instance(self._asked(request)))

    async def claim(self, request: Request) -> Response:
        machine = self._asked(request)
        _check_version(request, machine.version)
        self._sets.claim(machine, await request.json())
        return JSONResponse(_instance(machine))

    async def instance_view(self, request: Request) -> Response:
        self._front_end.meet_fault(FaultPoint.VIEW)
        machine = self._asked(request)
        return JSONResponse({"statuses": _statuses(machine.state, machine.error)})

    async def simulate_eviction(self, request: Request) -> Response:
        machine = self._asked(request)
        if machine.capacity != "spot":
            raise Refused(409, "OperationNotAllowed", "Eviction can be simulated on spot machines only.")
        self._front_end.cloud.simulate_eviction(machine.name, self._front_end.clock())
        return Response(status_code=204)

    def _asked(self, request: Request) -> EmulatedMachine:
        return self._sets.instance(request.path_params["name"], request.path_params["number"])

    def _check(self, body: Json) -> None:
        """Raise Refused for a body that the real one would not take, or whose machines would not be joined."""
        try:
            properties, sku = body["properties"], body["sku"]
            profile = properties["virtualMachineProfile"]
            base64.b64decode(profile["osProfile"].get("customData", ""), validate=True)
            prefix = profile["osProfile"]["computerNamePrefix"]
            size = self._front_end.cloud.sizes[sku["name"]]
            is_uniform = properties["orchestrationMode"] == "Uniform" and bool(properties["upgradePolicy"])
        except (KeyError, TypeError, binascii.Error) as error:
            said = f"Required parameter {error} is missing or wrong."
            raise Refused(400, "InvalidParameter", said) from error
        check_disk(size, profile)
        check_security(self._front_end.cloud, profile)
        is_one_group = properties.get("singlePlacementGroup") is True
        if body.get("location", "").lower() != self._front_end.region or not is_uniform or len(prefix) > 58:
            raise Refused(
                400, "InvalidParameter", "Location, orchestration mode or name prefix is not valid."
            )
        if size.has_fabric and not is_one_group:
            said = f"{size.name} is joined by InfiniBand only when singlePlacementGroup is true."
            raise Refused(400, "InvalidParameter", said)
        if is_one_group and int(sku.get("capacity") or 0) > MOST_INSTANCES:
            raise Refused(
                400, "InvalidParameter", f"A placement group has at most {MOST_INSTANCES} instances."
            )

    def _document(self, one: ScaleSet) -> Json:
        return {
            **one.body,
            "name": one.name,
            "type": "Microsoft.Compute/virtualMachineScaleSets",
            "sku": {**one.body["sku"], "capacity": one.capacity},
            "etag": f'"{one.version}"',
            "properties": {
                **one.body["properties"],
                "provisioningState": one.state,
                "uniqueId": one.unique_id,
            },
        }


def _instance(machine: EmulatedMachine) -> Json:
    policy = {"protectFromScaleIn": machine.is_protected}
    return {
        **machine.body,
        "name": machine.name,
        "instanceId": number_of(machine),
        "etag": f'"{machine.version}"',
        "properties": {
            **machine.body["properties"],
            "provisioningState": machine.state,
            "protectionPolicy": policy,
            "vmId": machine.vm_id,
        },
    }


def _check_version(request: Request, version: int) -> None:
    wanted = request.headers.get("If-Match")
    if wanted not in (None, "*", f'"{version}"'):
        raise Refused(
            412, "ConditionNotMet", "The condition specified using HTTP conditional header(s) is not met."
        )


def _statuses(state: str, error: tuple[str, str] | None) -> list[Json]:
    if error is not None:
        code, message = error
        return [{"code": f"ProvisioningState/failed/{code}", "level": "Error", "message": message}]
    statuses: list[Json] = [{"code": f"ProvisioningState/{state.lower()}", "level": "Info"}]
    return [*statuses, {"code": "PowerState/running", "level": "Info"}] if state == SUCCEEDED else statuses
