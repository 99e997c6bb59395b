"""Deployments, resource groups, roles and deleted vaults of the emulated Resource Manager over HTTP."""

from __future__ import annotations

import json
import re
import uuid
from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cluster.azure.emulator.deployments.deployer import Deployer
from cluster.azure.emulator.deployments.kinds import (
    ASSIGNMENTS,
    DEFINITIONS,
    GROUPS,
    SECRETS,
    VAULTS,
    VERSIONS,
    Json,
)
from cluster.azure.emulator.deployments.resources import subscription_of
from cluster.azure.emulator.deployments.template import DEPLOYMENTS, Wanted
from cluster.azure.emulator.emulated_cloud import Refused
from cluster.azure.emulator.faults import FaultPoint
from cluster.azure.emulator.front_end import ArmFrontEnd, Endpoint
from cluster.azure.emulator.tokens import Tokens

#: Azure's limit of a request.
_MOST_BYTES = 4 * 2**20
_ROOT = "/subscriptions/{subscription}"
#: What of a group is deleted by itself.
_ALONE = re.compile(f"/providers/{ASSIGNMENTS}/|/virtualNetworkPeerings/|/virtualNetworkLinks/")
_DEPLOYMENT = f"{_ROOT}/providers/{DEPLOYMENTS}"
_SECRET = f"{_ROOT}/resourceGroups/{{owner}}/providers/{VAULTS}/{{vault}}/secrets/{{name}}"


class Deployments:
    """The routes of all subscriptions of the emulated tenant."""

    def __init__(
        self,
        front_end: ArmFrontEnd,
        deployer: Deployer,
        tokens: Tokens,
        tenant: str,
    ) -> None:
        self._front_end = front_end
        self._deployer = deployer
        self._tokens = tokens
        self._tenant = tenant
        #: Answers of `whatIf` that were not fetched yet.
        self._answers: dict[str, Json] = {}

    def routes(self) -> list[Route]:
        """All routes, for the end of the list: some take any resource."""
        groups = f"{_ROOT}/resourcegroups"
        table: list[tuple[str, str, Endpoint]] = [
            ("GET", _ROOT, self._subscription),
            ("POST", f"{_DEPLOYMENT}/{{name}}/validate", self._validate),
            ("POST", f"{_DEPLOYMENT}/{{name}}/whatIf", self._what_if),
            ("GET", f"{_ROOT}/operationresults/{{id}}", self._answer),
            ("PUT", f"{_DEPLOYMENT}/{{name}}", self._create),
            ("GET", f"{_DEPLOYMENT}/{{name}}", self._get_deployment),
            ("DELETE", f"{_DEPLOYMENT}/{{name}}", self._delete_deployment),
            ("POST", f"{_DEPLOYMENT}/{{name}}/cancel", self._cancel),
            ("GET", f"{_DEPLOYMENT}/{{name}}/operations", self._operations),
            ("GET", _DEPLOYMENT, self._list_deployments),
            ("GET", groups, self._list_groups),
            ("GET", f"{groups}/{{name}}", self._get_group),
            ("DELETE", f"{groups}/{{name}}", self._delete_group),
            ("GET", f"{groups}/{{name}}/resources", self._list_resources),
            ("GET", f"{_ROOT}/providers/{ASSIGNMENTS}", self._assignments),
            ("GET", f"{_ROOT}/providers/{DEFINITIONS}", self._definitions),
            ("GET", f"{_ROOT}/providers/Microsoft.KeyVault/deletedVaults", self._deleted_vaults),
            ("PUT", _SECRET, self._put_secret),
            ("GET", f"{_ROOT}/providers/{{namespace}}", self._get_provider),
            ("POST", f"{_ROOT}/providers/{{namespace}}/register", self._register),
            ("GET", f"{_ROOT}/{{rest:path}}", self._get),
            ("PATCH", f"{_ROOT}/{{rest:path}}", self._patch),
            ("DELETE", f"{_ROOT}/{{rest:path}}", self._delete),
        ]
        guarded = [
            Route(path, self._front_end.guarded(endpoint), methods=[method])
            for method, path, endpoint in table
        ]
        blobs = "/blobs/{name:path}"
        return [
            *guarded,
            Route(blobs, self._put_blob, methods=["PUT"]),
            Route(blobs, self._get_blob, methods=["GET"]),
        ]

    def _passed(self) -> float:
        now = self._front_end.clock()
        self._deployer.advance(now)
        return now

    async def _body(self, request: Request) -> Json:
        text = await request.body()
        if len(text) > _MOST_BYTES:
            raise Refused(413, "RequestContentTooLarge", "The request content is larger than 4 MB.")
        try:
            body: Json = json.loads(text)
        except ValueError as error:
            raise Refused(400, "InvalidRequestContent", "The request content is no JSON.") from error
        return body

    async def _subscription(self, request: Request) -> Response:
        id = request.path_params["subscription"]
        document = {
            "id": f"/subscriptions/{id}",
            "subscriptionId": id,
            "state": self._front_end.cloud.subscription_state,
        }
        return JSONResponse({**document, "tenantId": self._tenant, "displayName": "emulated"})

    # --- deployments

    async def _validate(self, request: Request) -> Response:
        self._passed()
        self._deployer.changes(request.path_params["subscription"], await self._body(request))
        return JSONResponse({"properties": {"provisioningState": "Succeeded"}})

    async def _what_if(self, request: Request) -> Response:
        self._passed()
        self._front_end.meet_fault(FaultPoint.WHAT_IF)
        subscription, body = request.path_params["subscription"], await self._body(request)
        id = uuid.uuid4().hex
        try:
            changes = self._deployer.changes(subscription, body)
            self._answers[id] = {"status": "Succeeded", "properties": {"changes": changes}}
        except Refused as refused:
            self._answers[id] = {"status": "Failed", "error": {"code": refused.code, "message": str(refused)}}
        root = f"{request.url.scheme}://{request.url.netloc}/subscriptions/{subscription}"
        location = f"{root}/operationresults/{id}?api-version=2024-03-01"
        return Response(status_code=202, headers={"Location": location, "Retry-After": "0"})

    async def _answer(self, request: Request) -> Response:
        answer = self._answers.pop(request.path_params["id"], None)
        if answer is None:
            raise Refused(404, "NotFound", "The operation was not found.")
        return JSONResponse(answer)

    async def _create(self, request: Request) -> Response:
        now = self._passed()
        body = await self._body(request)
        self._front_end.meet_fault(FaultPoint.DEPLOY)
        name = request.path_params["name"]
        deployment = self._deployer.begin(request.path_params["subscription"], name, body, now)
        return JSONResponse(deployment.document(), status_code=201)

    async def _get_deployment(self, request: Request) -> Response:
        self._passed()
        found = self._deployer.all.get(_id_of(request))
        if found is None:
            return await self._get(request)
        return JSONResponse(found.document())

    async def _delete_deployment(self, request: Request) -> Response:
        self._passed()
        found = self._deployer.all.get(_id_of(request))
        if found is not None and found.state == "Running":
            raise Refused(409, "DeploymentActive", "The deployment is still active.")
        self._deployer.all.pop(_id_of(request), None)
        self._deployer.resources.delete(request.url.path)
        return Response(status_code=204)

    async def _cancel(self, request: Request) -> Response:
        self._passed()
        self._deployer.cancel(_id_of(request))
        return Response(status_code=204)

    async def _operations(self, request: Request) -> Response:
        self._passed()
        found = self._deployer.all.get(_id_of(request))
        if found is None:
            raise Refused(404, "DeploymentNotFound", "The deployment could not be found.")
        return self._front_end.page(request, FaultPoint.LIST, found.operations)

    async def _list_deployments(self, request: Request) -> Response:
        self._passed()
        root = f"/subscriptions/{request.path_params['subscription']}/providers/"
        nested = self._deployer.resources.of_type(DEPLOYMENTS, root)
        own = [one.document() for one in self._deployer.all.values() if one.id.startswith(root)]
        return JSONResponse({"value": [*own, *nested]})

    # --- groups and what is in them

    def _all(self, request: Request, kind: str) -> list[Json]:
        """The resources of one type in the subscription."""
        self._passed()
        return self._deployer.resources.of_type(
            kind, f"/subscriptions/{request.path_params['subscription']}/"
        )

    async def _list_groups(self, request: Request) -> Response:
        return JSONResponse({"value": self._all(request, GROUPS)})

    def _group(self, request: Request) -> Json:
        self._passed()
        name = request.path_params["name"]
        found = self._deployer.resources.find(
            f"/subscriptions/{request.path_params['subscription']}/resourceGroups/{name}"
        )
        if found is None:
            raise Refused(404, "ResourceGroupNotFound", f"Resource group '{name}' could not be found.")
        return found

    async def _get_group(self, request: Request) -> Response:
        return JSONResponse(self._group(request))

    async def _delete_group(self, request: Request) -> Response:
        group = self._group(request)
        self._front_end.meet_fault(FaultPoint.DELETE_GROUP)
        self._deployer.resources.delete_group(group["id"], self._front_end.clock())
        return Response(status_code=202, headers={"Retry-After": "0"})

    async def _list_resources(self, request: Request) -> Response:
        group = self._group(request)
        inside = [one for one in self._deployer.resources.shown() if one["id"].startswith(f"{group['id']}/")]
        return self._front_end.page(request, FaultPoint.LIST, inside)

    async def _assignments(self, request: Request) -> Response:
        return self._front_end.page(request, FaultPoint.LIST, self._all(request, ASSIGNMENTS))

    async def _definitions(self, request: Request) -> Response:
        """All roles that may be assigned in the subscription, wherever they were made."""
        self._passed()
        root = f"/subscriptions/{request.path_params['subscription']}"
        found = [
            {**one, "id": f"{root}/providers/{DEFINITIONS}/{one['name']}"}
            for one in self._deployer.resources.of_type(DEFINITIONS)
            if root in one["properties"]["assignableScopes"]
        ]
        return JSONResponse({"value": found})

    async def _deleted_vaults(self, request: Request) -> Response:
        self._passed()
        found = [
            {
                "name": name,
                "properties": {
                    "vaultId": one["id"],
                    "location": one["location"],
                    "scheduledPurgeDate": datetime.fromtimestamp(purged_at, UTC).isoformat(),
                    "purgeProtectionEnabled": True,
                    "tags": one.get("tags", {}),
                },
            }
            for name, (one, purged_at) in self._deployer.resources.deleted_vaults.items()
            if subscription_of(one["id"]) == request.path_params["subscription"]
        ]
        return JSONResponse({"value": found})

    async def _put_secret(self, request: Request) -> Response:
        self._passed()
        body = {**await self._body(request), "name": request.path_params["name"]}
        self._front_end.meet_fault(FaultPoint.DEPLOY_RESOURCE, kind=SECRETS)
        self._deployer.resources.put(Wanted(id=request.url.path, type=SECRETS, body=body))
        return JSONResponse(self._deployer.resources.find(request.url.path))

    def _provider(self, request: Request) -> tuple[str, str]:
        self._passed()
        return request.path_params["subscription"], request.path_params["namespace"]

    async def _get_provider(self, request: Request) -> Response:
        asked = self._provider(request)
        state = "Registered" if asked in self._deployer.resources.registered else "NotRegistered"
        return JSONResponse({"namespace": asked[1], "registrationState": state})

    async def _register(self, request: Request) -> Response:
        asked = self._provider(request)
        self._deployer.resources.registered.add(asked)
        return JSONResponse({"namespace": asked[1], "registrationState": "Registering"})

    async def _get(self, request: Request) -> Response:
        self._passed()
        found = self._deployer.resources.find(request.url.path)
        if found is None:
            raise Refused(404, "ResourceNotFound", f"The Resource '{request.url.path}' was not found.")
        return JSONResponse(found)

    async def _patch(self, request: Request) -> Response:
        self._passed()
        known = self._deployer.resources.find(request.url.path)
        if known is None or known["type"] != VERSIONS:
            raise Refused(404, "ResourceNotFound", f"The Resource '{request.url.path}' was not found.")
        body = await self._body(request)
        return JSONResponse(self._deployer.resources.patch(request.url.path, body.get("properties", {})))

    async def _delete(self, request: Request) -> Response:
        self._passed()
        is_inside = re.search("/resourceGroups/", request.url.path, re.IGNORECASE)
        if is_inside and not _ALONE.search(request.url.path):
            raise Refused(405, "MethodNotAllowed", "The emulator deletes whole groups.")
        was_there = self._deployer.resources.delete(request.url.path)
        return Response(status_code=200 if was_there else 204)

    # --- blobs, as far as releases need them

    def _may(self, request: Request) -> bool:
        return self._tokens.allows(request.headers.get("Authorization", ""), "https://storage.azure.com")

    async def _put_blob(self, request: Request) -> Response:
        if not self._may(request) or request.headers.get("x-ms-blob-type") != "BlockBlob":
            return Response(status_code=403)
        self._deployer.blobs[request.path_params["name"]] = await request.body()
        return Response(status_code=201)

    async def _get_blob(self, request: Request) -> Response:
        if not self._may(request):
            return Response(status_code=403)
        found = self._deployer.blobs.get(request.path_params["name"])
        return Response(status_code=404) if found is None else Response(found)


def _id_of(request: Request) -> str:
    """The id of the deployment that a request names."""
    words = request.path_params
    return f"/subscriptions/{words['subscription']}/providers/{DEPLOYMENTS}/{words['name']}"
