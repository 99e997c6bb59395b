"""Azure Image Builder over HTTP."""

from __future__ import annotations

import json

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cluster.azure.emulator.emulated_cloud import Refused
from cluster.azure.emulator.faults import FaultPoint
from cluster.azure.emulator.front_end import ArmFrontEnd, Endpoint
from cluster.azure.emulator.image_builder import TEMPLATES, ImageBuilder

_ROOT = "/subscriptions/{subscription}"
# Not `group`: images are in that of the service, and the front end knows that of the nodes.
_TEMPLATE = f"{_ROOT}/resourceGroups/{{owner}}/providers/{TEMPLATES}/{{name}}"
_GALLERY = f"{_ROOT}/resourceGroups/{{owner}}/providers/Microsoft.Compute/galleries/{{gallery}}"
_VERSIONS = f"{_GALLERY}/images/{{name}}/versions"


def routes(front_end: ArmFrontEnd, images: ImageBuilder) -> list[Route]:
    """All routes, before those that take any resource."""
    served = _Served(front_end, images)
    table: list[tuple[str, str, Endpoint]] = [
        ("PUT", _TEMPLATE, served.put),
        ("GET", _TEMPLATE, served.get),
        ("DELETE", _TEMPLATE, served.delete),
        ("POST", f"{_TEMPLATE}/run", served.run),
        ("POST", f"{_TEMPLATE}/cancel", served.cancel),
        ("GET", _VERSIONS, served.versions),
    ]
    return [Route(path, front_end.guarded(endpoint), methods=[method]) for method, path, endpoint in table]


class _Served:
    def __init__(self, front_end: ArmFrontEnd, images: ImageBuilder) -> None:
        self._front_end = front_end
        self._images = images

    async def put(self, request: Request) -> Response:
        self._front_end.meet_fault(FaultPoint.IMAGE_TEMPLATE)
        try:
            body = json.loads(await request.body())
        except ValueError as error:
            raise Refused(400, "InvalidRequestContent", "The request content is no JSON.") from error
        document = self._images.put(request.url.path, body)
        return JSONResponse(document, status_code=201)

    async def get(self, request: Request) -> Response:
        found = self._images.find(request.url.path, self._front_end.clock())
        return JSONResponse(found)

    async def delete(self, request: Request) -> Response:
        was_there = self._images.delete(request.url.path, self._front_end.clock())
        return Response(status_code=202 if was_there else 204)

    async def run(self, request: Request) -> Response:
        self._images.run(request.url.path.rpartition("/")[0], self._front_end.clock())
        return Response(status_code=202)

    async def cancel(self, request: Request) -> Response:
        self._images.cancel(request.url.path.rpartition("/")[0], self._front_end.clock())
        return Response(status_code=202)

    async def versions(self, request: Request) -> Response:
        return self._front_end.page(request, FaultPoint.LIST, self._images.versions(request.url.path))
