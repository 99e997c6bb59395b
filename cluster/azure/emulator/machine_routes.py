"""The emulated Azure Resource Manager over HTTP: machines, operations, usages, sizes, interfaces and disks.

It checks what the real one checks and clients get wrong (a token, an api-version, a body that could make a machine)
and answers in the real one's words, headers and statuses.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cluster.azure.emulator.emulated_cloud import SUCCEEDED, EmulatedMachine, Json, Refused
from cluster.azure.emulator.faults import FaultPoint
from cluster.azure.emulator.front_end import COMPUTE, ArmFrontEnd, Endpoint, is_forced, iso
from cluster.azure.emulator.machine_checks import check_disk, check_security

_CUSTOM_DATA_BYTES = 65_535
_MACHINES = "/subscriptions/{subscription}/resourceGroups/{group}/providers/Microsoft.Compute/virtualMachines"
_GROUP = "/subscriptions/{subscription}/resourceGroups/{group}/providers"

#: Sizes and places of one request for scores.
_SCORED_SIZES, _SCORED_PLACES = 5, 8
_ZONES = ("1", "2", "3")


def routes(front_end: ArmFrontEnd) -> list[Route]:
    """The routes of one subscription with one resource group in one region."""
    arm = _Arm(front_end)
    table: list[tuple[str, str, Endpoint]] = [
        ("PUT", f"{_MACHINES}/{{name}}", arm.put_machine),
        ("GET", f"{_MACHINES}/{{name}}", arm.get_machine),
        ("DELETE", f"{_MACHINES}/{{name}}", arm.delete_machine),
        ("GET", _MACHINES, arm.list_machines),
        ("GET", f"{_MACHINES}/{{name}}/instanceView", arm.instance_view),
        ("POST", f"{_MACHINES}/{{name}}/simulateEviction", arm.simulate_eviction),
        ("GET", f"{COMPUTE}/locations/{{region}}/operations/{{id}}", arm.operation),
        ("GET", f"{COMPUTE}/locations/{{region}}/usages", arm.usages),
        ("GET", f"{COMPUTE}/skus", arm.skus),
        ("POST", f"{COMPUTE}/locations/{{region}}/placementScores/spot/generate", arm.scores),
        ("POST", "/providers/Microsoft.ResourceGraph/resources", arm.resource_graph),
        ("GET", f"{_GROUP}/Microsoft.Network/networkInterfaces", arm.list_interfaces),
        ("DELETE", f"{_GROUP}/Microsoft.Network/networkInterfaces/{{name}}", arm.delete_interface),
        ("GET", f"{_GROUP}/Microsoft.Compute/disks", arm.list_disks),
        ("DELETE", f"{_GROUP}/Microsoft.Compute/disks/{{name}}", arm.delete_disk),
    ]
    return [Route(path, front_end.guarded(endpoint), methods=[method]) for method, path, endpoint in table]


class _Arm:
    def __init__(self, front_end: ArmFrontEnd) -> None:
        self._front_end = front_end
        self._cloud = front_end.cloud
        self._clock = front_end.clock
        self._region = front_end.region

    async def put_machine(self, request: Request) -> Response:
        name, body, now = request.path_params["name"], await request.json(), self._clock()
        existing = self._cloud.machines.get(name.lower())
        if existing is not None:
            return self._put_again(request, existing, body)
        size = self._checked(body)
        machine, operation = self._cloud.create(name, body, now, size.vcpus, size.family)
        headers = self._front_end.operation_headers(request, operation)
        return JSONResponse(self._machine(request, machine), status_code=201, headers=headers)

    def _put_again(self, request: Request, existing: EmulatedMachine, body: Json) -> Response:
        if request.headers.get("If-None-Match") == "*":
            raise Refused(412, "PreconditionFailed", "The resource exists and If-None-Match is '*'.")
        if body.get("zones", []) != existing.body.get("zones", []):
            raise Refused(409, "PropertyChangeNotAllowed", "Changing property 'zones' is not allowed.")
        return JSONResponse(self._machine(request, existing))

    def _checked(self, body: Json) -> Any:
        """The machine's size.  Raises Refused for a body that the real one would not take."""
        try:
            properties = body["properties"]
            name = properties["hardwareProfile"]["vmSize"]
            network = properties["networkProfile"]
            data = base64.b64decode(properties["osProfile"].get("customData", ""), validate=True)
        except (KeyError, TypeError, binascii.Error) as error:
            raise Refused(
                400, "InvalidParameter", f"Required parameter {error} is missing or wrong."
            ) from error
        if body.get("location", "").lower() != self._region:
            raise Refused(
                400, "InvalidParameter", f"There is no virtual network in {body.get('location')!r}."
            )
        if "networkInterfaceConfigurations" in network and "networkApiVersion" not in network:
            raise Refused(
                400, "InvalidParameter", "Required parameter 'networkApiVersion' is missing (null)."
            )
        if len(data) > _CUSTOM_DATA_BYTES:
            raise Refused(400, "InvalidParameter", "Custom data exceeds the maximum length.")
        if name not in self._cloud.sizes:
            raise Refused(400, "InvalidParameter", f"The value {name} provided for the VM size is not valid.")
        check_disk(self._cloud.sizes[name], properties)
        check_security(self._cloud, properties)
        return self._cloud.sizes[name]

    async def get_machine(self, request: Request) -> Response:
        self._front_end.meet_fault(FaultPoint.GET)
        return JSONResponse(self._machine(request, self._found(request)))

    async def delete_machine(self, request: Request) -> Response:
        operation = self._cloud.delete(request.path_params["name"], self._clock(), is_forced(request))
        if operation is None:
            return Response(status_code=204)
        return self._front_end.accepted(request, operation)

    async def list_machines(self, request: Request) -> Response:
        # Instances of scale sets are no machines of the group.
        listed = [
            one
            for one in self._cloud.machines.values()
            if one.name not in self._cloud.unlisted and one.instance_key is None
        ]
        documents = [self._machine(request, one) for one in sorted(listed, key=lambda one: one.name)]
        return self._front_end.page(request, FaultPoint.LIST, documents)

    async def instance_view(self, request: Request) -> Response:
        self._front_end.meet_fault(FaultPoint.GET)
        machine = self._found(request)
        statuses: list[Json] = [{"code": f"ProvisioningState/{machine.state.lower()}", "level": "Info"}]
        if machine.error is not None:
            code, message = machine.error
            statuses = [{"code": f"ProvisioningState/failed/{code}", "level": "Error", "message": message}]
        elif machine.state == SUCCEEDED:
            statuses.append({"code": "PowerState/running", "level": "Info"})
        return JSONResponse({"statuses": statuses})

    async def simulate_eviction(self, request: Request) -> Response:
        machine = self._found(request)
        if machine.capacity != "spot":
            raise Refused(409, "OperationNotAllowed", "Eviction can be simulated on spot machines only.")
        self._cloud.simulate_eviction(machine.name, self._clock())
        return Response(status_code=204)

    async def operation(self, request: Request) -> Response:
        self._front_end.meet_fault(FaultPoint.POLL)
        operation = self._cloud.operations.get(request.path_params["id"])
        if operation is None:
            raise Refused(404, "NotFound", "The operation was not found.")
        answer: Json = {
            "name": operation.id,
            "status": operation.status,
            "startTime": iso(operation.started_at),
        }
        if operation.ended_at is not None:
            answer["endTime"] = iso(operation.ended_at)
        if operation.error is not None and operation.status != "InProgress":
            answer["error"] = {"code": operation.error[0], "message": operation.error[1]}
        return JSONResponse(answer)

    async def usages(self, _request: Request) -> Response:
        self._front_end.meet_fault(FaultPoint.USAGES)
        value = [
            {
                "unit": "Count",
                "currentValue": used,
                "limit": limit,
                "name": {"value": name, "localizedValue": name},
            }
            for name, (used, limit) in self._cloud.usages().items()
        ]
        return JSONResponse({"value": value})

    async def skus(self, _request: Request) -> Response:
        self._front_end.meet_fault(FaultPoint.SKUS)
        return JSONResponse({"value": [self._sku(name) for name in self._cloud.sizes]})

    async def resource_graph(self, _request: Request) -> Response:
        self._front_end.meet_fault(FaultPoint.EVICTIONS)
        rows = [{"skuName": name.lower(), "evictionRate": "5-10"} for name in self._cloud.sizes]
        return JSONResponse({"totalRecords": len(rows), "count": len(rows), "data": rows})

    async def scores(self, request: Request) -> Response:
        self._front_end.meet_fault(FaultPoint.SCORES)
        asked = await request.json()
        if len(asked["desiredSizes"]) > _SCORED_SIZES or len(asked["desiredLocations"]) > _SCORED_PLACES:
            raise Refused(400, "BadRequest", "Too many sizes or locations are asked for.")
        rows = [
            {
                "sku": one["sku"],
                "region": region,
                "availabilityZone": zone,
                "score": self._cloud.score(one["sku"], zone, asked["desiredCount"]),
                "isQuotaAvailable": True,
            }
            for region in asked["desiredLocations"]
            for one in asked["desiredSizes"]
            for zone in _ZONES
        ]
        return JSONResponse({**asked, "placementScores": rows})

    async def list_interfaces(self, request: Request) -> Response:
        self._front_end.meet_fault(FaultPoint.PARTS)
        return JSONResponse(
            {"value": [self._resource(request, one) for one in self._cloud.interfaces.values()]}
        )

    async def list_disks(self, request: Request) -> Response:
        self._front_end.meet_fault(FaultPoint.PARTS)
        return JSONResponse({"value": [self._resource(request, one) for one in self._cloud.disks.values()]})

    async def delete_interface(self, request: Request) -> Response:
        interface = self._cloud.interfaces.get(request.path_params["name"])
        if interface is not None and "virtualMachine" in interface["properties"]:
            raise Refused(400, "NicInUse", "The network interface is used by an existing resource.")
        self._cloud.interfaces.pop(request.path_params["name"], None)
        return Response(status_code=202 if interface is not None else 204)

    async def delete_disk(self, request: Request) -> Response:
        disk = self._cloud.disks.get(request.path_params["name"])
        if disk is not None and "managedBy" in disk:
            raise Refused(409, "OperationNotAllowed", "The disk is attached to a machine.")
        self._cloud.disks.pop(request.path_params["name"], None)
        return Response(status_code=202 if disk is not None else 204)

    def _found(self, request: Request) -> EmulatedMachine:
        name = request.path_params["name"]
        machine = self._cloud.machines.get(name.lower())
        if machine is None or machine.instance_key is not None:
            raise Refused(404, "ResourceNotFound", f"The Resource 'virtualMachines/{name}' was not found.")
        return machine

    def _machine(self, request: Request, machine: EmulatedMachine) -> Json:
        subscription = request.path_params["subscription"]
        properties = {
            **machine.body["properties"],
            "provisioningState": machine.state,
            "vmId": machine.vm_id,
            "timeCreated": iso(machine.created_at),
        }
        path = _MACHINES.format(subscription=subscription, group=self._front_end.group)
        return {
            **machine.body,
            "id": f"{path}/{machine.name}",
            "name": machine.name,
            "type": "Microsoft.Compute/virtualMachines",
            "properties": properties,
        }

    def _resource(self, request: Request, resource: Json) -> Json:
        # ARM's ids of the same resource differ in case between services.
        return {**resource, "id": f"{request.url.path}/{resource['name']}"}

    def _sku(self, name: str) -> Json:
        size = self._cloud.sizes[name]
        placements = dict(size.placements)
        capabilities = {
            "vCPUs": str(size.vcpus),
            "GPUs": str(size.gpus),
            "MemoryGB": str(size.memory_gib),
            "LowPriorityCapable": str(size.has_spot),
            "RdmaEnabled": str(size.has_fabric),
            "EphemeralOSDiskSupported": str(bool(size.placements)),
            "SupportedEphemeralOSDiskPlacements": ",".join(placement for placement, _ in size.placements),
            "MaxResourceVolumeMB": str(1024 * placements.get("ResourceDisk", 0)),
            "CachedDiskBytes": str(1024**3 * placements.get("CacheDisk", 0)),
        }
        return {
            "resourceType": "virtualMachines",
            "name": name,
            "family": size.family or f"standard{name}Family",
            "locations": [self._region],
            "locationInfo": [{"location": self._region, "zones": sorted(size.zones)}],
            "capabilities": [{"name": key, "value": value} for key, value in capabilities.items()],
            "restrictions": [],
        }
