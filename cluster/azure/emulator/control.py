"""The emulator's control API, for tests and rehearsals: it needs no token, and it listens on the loopback only."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, RootModel, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cluster.azure.emulator.clock import Clock
from cluster.azure.emulator.emulated_cloud import Cloud
from cluster.azure.emulator.faults import EmulatorFault
from cluster.azure.emulator.scale_sets import EmulatedScaleSets
from cluster.azure.emulator.tokens import Tokens

Document = TypeVar("Document", bound=BaseModel)


class CapacityLimit(BaseModel):
    """How many machines of one size, zone and capacity type there can be."""

    model_config = ConfigDict(extra="forbid")

    size: str
    #: Empty: without a zone.
    zone: str = ""
    capacity: str
    machines: int = Field(ge=0)


class Knobs(BaseModel):
    """Settings that hold until they are set again; those that are left out stay."""

    model_config = ConfigDict(extra="forbid")

    create_s: float | None = Field(default=None, ge=0)
    delete_s: float | None = Field(default=None, ge=0)
    shut_down_s: float | None = Field(default=None, ge=0)
    page_size: int | None = Field(default=None, ge=1)
    notice_s: float | None = Field(default=None, ge=0)
    announce_s: float | None = Field(default=None, ge=0)
    skew_s: float | None = None
    #: How many more reads are allowed, as answers state it; the emulator does not count them.
    reads_left: int | None = Field(default=None, ge=0)
    #: Limits of vCPUs by quota name.
    limits: dict[str, int] = Field(default_factory=dict)
    most_machines: list[CapacityLimit] = Field(default_factory=list)
    #: Features that the subscription is registered for from now on.
    features: list[str] = Field(default_factory=list)
    #: Every token that was given out becomes invalid.
    forget_tokens: bool = False


class MachineFailure(BaseModel):
    """The error that a machine shall have failed with."""

    model_config = ConfigDict(extra="forbid")

    code: str = "OSProvisioningTimedOut"
    message: str = "OS Provisioning did not finish in the allotted time."


class Tags(RootModel[dict[str, str]]):
    """The tags that replace all tags of a resource."""


class Control:
    """The routes that change one emulated cloud."""

    def __init__(self, cloud: Cloud, sets: EmulatedScaleSets, tokens: Tokens, clock: Clock) -> None:
        self._cloud = cloud
        self._sets = sets
        self._tokens = tokens
        self._clock = clock

    def routes(self) -> list[Route]:
        """All routes below /control."""
        return [
            Route("/control/state", self._state),
            Route("/control/books", self._books),
            Route("/control/faults", self._add_fault, methods=["POST"]),
            Route("/control/faults", self._clear_faults, methods=["DELETE"]),
            Route("/control/knobs", self._turn, methods=["POST"]),
            Route("/control/machines/{name}/notice", self._notice, methods=["POST"]),
            Route("/control/machines/{name}/evict", self._evict, methods=["POST"]),
            Route("/control/machines/{name}/fail", self._fail, methods=["POST"]),
            Route("/control/tags/{name}", self._replace_tags, methods=["POST"]),
        ]

    async def _state(self, _request: Request) -> Response:
        """Everything that exists and every fault with how often it fired."""
        now = self._clock()
        self._cloud.advance(now)
        used = dict(self._cloud.used_s)
        for machine in self._cloud.machines.values():
            used[machine.capacity] += now - machine.created_at
        return JSONResponse(
            {
                "machines": {
                    one.name: {
                        "node": one.body.get("tags", {}).get("remora:node"),
                        "set": one.instance_key[0] if one.instance_key is not None else None,
                        "state": one.state,
                        "size": one.size,
                        "zone": one.zone,
                        "capacity": one.capacity,
                        "evicts_at": self._cloud.evictions.get(one.name.lower()),
                    }
                    for one in self._cloud.machines.values()
                },
                "sets": {
                    one.name: {
                        "capacity": one.capacity,
                        "state": one.state,
                        "size": one.size,
                        "tags": one.body.get("tags", {}),
                    }
                    for one in self._sets.all.values()
                },
                "interfaces": sorted(self._cloud.interfaces),
                "disks": sorted(self._cloud.disks),
                "faults": [fault.model_dump() for fault in self._cloud.faults.all],
                "used_s": used,
            }
        )

    async def _books(self, _request: Request) -> Response:
        """What is billed for each machine up to now."""
        now = self._clock()
        self._cloud.advance(now)
        lines = [{**asdict(one), "cost": one.cost(now)} for one in self._cloud.books()]
        return JSONResponse({"at": now, "machines": lines})

    async def _add_fault(self, request: Request) -> Response:
        fault = _parsed(EmulatorFault, await request.json())
        if isinstance(fault, Response):
            return fault
        self._cloud.faults.all.append(fault)
        return JSONResponse(fault.model_dump(), status_code=201)

    async def _clear_faults(self, _request: Request) -> Response:
        self._cloud.faults.all.clear()
        return Response(status_code=204)

    async def _turn(self, request: Request) -> Response:
        knobs = _parsed(Knobs, await request.json())
        if isinstance(knobs, Response):
            return knobs
        for name in (
            "create_s",
            "delete_s",
            "shut_down_s",
            "page_size",
            "notice_s",
            "announce_s",
            "reads_left",
        ):
            if getattr(knobs, name) is not None:
                setattr(self._cloud, name, getattr(knobs, name))
        if knobs.skew_s is not None:
            self._clock.skew_s = knobs.skew_s
        if knobs.forget_tokens:
            self._tokens.forget()
        self._cloud.features.update(knobs.features)
        self._cloud.limits.update(knobs.limits)
        self._cloud.most_machines.update(
            {(one.size, one.zone, one.capacity): one.machines for one in knobs.most_machines}
        )
        return Response(status_code=204)

    async def _notice(self, request: Request) -> Response:
        """Evict a machine after its notice; answers when that is, seconds since 1970."""
        name = request.path_params["name"]
        if name.lower() not in self._cloud.machines:
            return _unknown(name)
        return JSONResponse({"evicts_at": self._cloud.notice(name, self._clock())}, status_code=202)

    async def _evict(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name.lower() not in self._cloud.machines:
            return _unknown(name)
        self._cloud.evict(name, self._clock())
        return Response(status_code=204)

    async def _fail(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name.lower() not in self._cloud.machines:
            return _unknown(name)
        failure = _parsed(MachineFailure, await request.json())
        if isinstance(failure, Response):
            return failure
        self._cloud.fail(name, failure.code, failure.message, self._clock())
        return Response(status_code=204)

    async def _replace_tags(self, request: Request) -> Response:
        """Give a machine with its parts, or a scale set, other tags, as a policy of the subscription may."""
        name, tags = request.path_params["name"], _parsed(Tags, await request.json())
        if isinstance(tags, Response):
            return tags
        machine, one = self._cloud.machines.get(name.lower()), self._sets.all.get(name.lower())
        if machine is None and one is None:
            return _unknown(name)
        for owner in (machine, one):
            if owner is not None:
                owner.body = {**owner.body, "tags": dict(tags.root)}
        for part in (*self._cloud.interfaces.values(), *self._cloud.disks.values()):
            if part["name"].lower().startswith(name.lower()):
                part["tags"] = dict(tags.root)
        return Response(status_code=204)


def _unknown(name: str) -> Response:
    return JSONResponse({"detail": f"there is no machine {name!r}"}, status_code=404)


def _parsed(kind: type[Document], document: Any) -> Document | Response:
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        return JSONResponse({"detail": str(error)}, status_code=422)
