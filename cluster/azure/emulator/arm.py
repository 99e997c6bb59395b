"""The emulated Azure Resource Manager over HTTP: machines, operations, usages, sizes, interfaces and disks.

It checks what the real one checks and clients get wrong (a token, an api-version, a body that could make a machine)
and answers in the real one's words, headers and statuses.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from cluster.azure.catalogue import BY_NAME
from cluster.azure.emulator.clock import Clock
from cluster.azure.emulator.faults import Effect, Place
from cluster.azure.emulator.state import SUCCEEDED, Cloud, Json, Machine, Operation, Refused
from cluster.azure.emulator.tokens import Tokens

_CUSTOM_DATA_BYTES = 65_535
_MACHINES = "/subscriptions/{subscription}/resourceGroups/{group}/providers/Microsoft.Compute/virtualMachines"
_COMPUTE = "/subscriptions/{subscription}/providers/Microsoft.Compute"
_GROUP = "/subscriptions/{subscription}/resourceGroups/{group}/providers"

#: Sizes and places of one request for scores.
_SCORED_SIZES, _SCORED_PLACES = 5, 8
_ZONES = ("1", "2", "3")

Endpoint = Callable[[Request], Awaitable[Response]]


def routes(cloud: Cloud, tokens: Tokens, clock: Clock, group: str, region: str) -> list[Route]:
    """The routes of one subscription with one resource group in one region."""
    arm = _Arm(cloud, tokens, clock, group, region)
    table: list[tuple[str, str, Endpoint]] = [
        ("PUT", f"{_MACHINES}/{{name}}", arm.put_machine),
        ("GET", f"{_MACHINES}/{{name}}", arm.get_machine),
        ("DELETE", f"{_MACHINES}/{{name}}", arm.delete_machine),
        ("GET", _MACHINES, arm.list_machines),
        ("GET", f"{_MACHINES}/{{name}}/instanceView", arm.instance_view),
        ("POST", f"{_MACHINES}/{{name}}/simulateEviction", arm.simulate_eviction),
        ("GET", f"{_COMPUTE}/locations/{{region}}/operations/{{id}}", arm.operation),
        ("GET", f"{_COMPUTE}/locations/{{region}}/usages", arm.usages),
        ("GET", f"{_COMPUTE}/skus", arm.skus),
        ("POST", f"{_COMPUTE}/locations/{{region}}/placementScores/spot/generate", arm.scores),
        ("POST", "/providers/Microsoft.ResourceGraph/resources", arm.resource_graph),
        ("GET", f"{_GROUP}/Microsoft.Network/networkInterfaces", arm.list_interfaces),
        ("DELETE", f"{_GROUP}/Microsoft.Network/networkInterfaces/{{name}}", arm.delete_interface),
        ("GET", f"{_GROUP}/Microsoft.Compute/disks", arm.list_disks),
        ("DELETE", f"{_GROUP}/Microsoft.Compute/disks/{{name}}", arm.delete_disk),
    ]
    return [Route(path, arm.guarded(endpoint), methods=[method]) for method, path, endpoint in table]


class _Arm:
    def __init__(self, cloud: Cloud, tokens: Tokens, clock: Clock, group: str, region: str) -> None:
        self._cloud = cloud
        self._tokens = tokens
        self._clock = clock
        self._group = group
        self._region = region

    def guarded(self, endpoint: Endpoint) -> Endpoint:
        """The endpoint behind what every request goes through; errors become ARM's documents."""

        async def answer(request: Request) -> Response:
            try:
                self._check(request)
                self._cloud.advance(self._clock())
                return await endpoint(request)
            except Refused as refused:
                return error_response(refused)
            except ConnectionAbortedError:
                return _LostAnswer()

        return answer

    def _check(self, request: Request) -> None:
        if not self._tokens.allows(request.headers.get("Authorization", "")):
            raise Refused(401, "InvalidAuthenticationToken", "The access token is missing or invalid.")
        if "api-version" not in request.query_params and "/operations/" not in request.url.path:
            raise Refused(400, "MissingApiVersionParameter", "The api-version query parameter is required.")
        group = request.path_params.get("group", self._group)
        if group.lower() != self._group.lower():
            raise Refused(404, "ResourceGroupNotFound", f"Resource group '{group}' could not be found.")

    async def put_machine(self, request: Request) -> Response:
        name, body, now = request.path_params["name"], await request.json(), self._clock()
        existing = self._cloud.machines.get(name.lower())
        if existing is not None:
            return self._put_again(request, existing, body)
        size = self._checked(body)
        machine, operation = self._cloud.create(name, body, now, size.vcpus, size.family)
        headers = self._operation_headers(request, operation)
        return JSONResponse(self._machine(request, machine), status_code=201, headers=headers)

    def _put_again(self, request: Request, existing: Machine, body: Json) -> Response:
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
        if name not in BY_NAME:
            raise Refused(400, "InvalidParameter", f"The value {name} provided for the VM size is not valid.")
        return BY_NAME[name]

    async def get_machine(self, request: Request) -> Response:
        self._fault(Place.GET)
        return JSONResponse(self._machine(request, self._found(request)))

    async def delete_machine(self, request: Request) -> Response:
        operation = self._cloud.delete(request.path_params["name"], self._clock())
        if operation is None:
            return Response(status_code=204)
        headers = self._operation_headers(request, operation)
        return Response(status_code=202, headers={**headers, "Location": headers["Azure-AsyncOperation"]})

    async def list_machines(self, request: Request) -> Response:
        page = int(request.query_params.get("$skiptoken", "1"))
        self._fault(Place.LIST, page=page)
        size = self._cloud.page_size
        listed = [one for one in self._cloud.machines.values() if one.name not in self._cloud.unlisted]
        machines = sorted(listed, key=lambda one: one.name)
        answer: Json = {
            "value": [self._machine(request, one) for one in machines[(page - 1) * size : page * size]]
        }
        if len(machines) > page * size:
            answer["nextLink"] = str(request.url.include_query_params(**{"$skiptoken": str(page + 1)}))
        return JSONResponse(answer)

    async def instance_view(self, request: Request) -> Response:
        self._fault(Place.GET)
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
        self._cloud.notice(machine.name, self._clock())
        return Response(status_code=204)

    async def operation(self, request: Request) -> Response:
        self._fault(Place.POLL)
        operation = self._cloud.operations.get(request.path_params["id"])
        if operation is None:
            raise Refused(404, "NotFound", "The operation was not found.")
        answer: Json = {
            "name": operation.id,
            "status": operation.status,
            "startTime": _iso(operation.started_at),
        }
        if operation.ended_at is not None:
            answer["endTime"] = _iso(operation.ended_at)
        if operation.error is not None and operation.status != "InProgress":
            answer["error"] = {"code": operation.error[0], "message": operation.error[1]}
        return JSONResponse(answer)

    async def usages(self, _request: Request) -> Response:
        self._fault(Place.USAGES)
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
        self._fault(Place.SKUS)
        return JSONResponse({"value": [self._sku(name) for name in BY_NAME]})

    async def resource_graph(self, _request: Request) -> Response:
        self._fault(Place.EVICTIONS)
        rows = [{"skuName": name.lower(), "evictionRate": "5-10"} for name in BY_NAME]
        return JSONResponse({"totalRecords": len(rows), "count": len(rows), "data": rows})

    async def scores(self, request: Request) -> Response:
        self._fault(Place.SCORES)
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
        return JSONResponse(
            {"value": [self._resource(request, one) for one in self._cloud.interfaces.values()]}
        )

    async def list_disks(self, request: Request) -> Response:
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

    def _fault(self, place: Place, **facts: Any) -> None:
        fault = self._cloud.faults.take(place, **facts)
        if fault is not None:
            raise ConnectionAbortedError if fault.effect is Effect.LOSE_ANSWER else Refused.by(fault)

    def _found(self, request: Request) -> Machine:
        name = request.path_params["name"]
        machine = self._cloud.machines.get(name.lower())
        if machine is None:
            raise Refused(404, "ResourceNotFound", f"The Resource 'virtualMachines/{name}' was not found.")
        return machine

    def _machine(self, request: Request, machine: Machine) -> Json:
        subscription = request.path_params["subscription"]
        properties = {
            **machine.body["properties"],
            "provisioningState": machine.state,
            "vmId": machine.vm_id,
            "timeCreated": _iso(machine.created_at),
        }
        path = _MACHINES.format(subscription=subscription, group=self._group)
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

    def _operation_headers(self, request: Request, operation: Operation) -> dict[str, str]:
        path = _COMPUTE.format(subscription=request.path_params["subscription"])
        root = f"{request.url.scheme}://{request.url.netloc}"
        url = f"{root}{path}/locations/{self._region}/operations/{operation.id}?p=1&api-version=2026-04-01"
        return {"Azure-AsyncOperation": url}

    def _sku(self, name: str) -> Json:
        size = BY_NAME[name]
        capabilities = {
            "vCPUs": str(size.vcpus),
            "GPUs": str(size.gpus),
            "MemoryGB": str(size.memory_gib),
            "LowPriorityCapable": "True",
            "RdmaEnabled": str(size.has_fabric),
            "EphemeralOSDiskSupported": str(bool(size.disk_placement)),
            "SupportedEphemeralOSDiskPlacements": size.disk_placement,
        }
        return {
            "resourceType": "virtualMachines",
            "name": name,
            "family": size.family or f"standard{name}Family",
            "locations": [self._region],
            "locationInfo": [{"location": self._region, "zones": ["1", "2", "3"]}],
            "capabilities": [{"name": key, "value": value} for key, value in capabilities.items()],
            "restrictions": [],
        }


class _LostAnswer(Response):
    """An answer that begins and never ends: the server closes the connection."""

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"10")]})


def error_response(refused: Refused) -> Response:
    """ARM's document of an error."""
    headers = {} if refused.retry_after is None else {"Retry-After": f"{refused.retry_after:g}"}
    if refused.status == 401:
        headers["WWW-Authenticate"] = (
            'Bearer authorization_uri="https://login.windows.net/", error="invalid_token"'
        )
    body = {"error": {"code": refused.code, "message": str(refused)}}
    return JSONResponse(body, status_code=refused.status, headers=headers)


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()
