"""Scheduled Events as Azure's Instance Metadata Service speaks them, for emulated machines.

A real machine finds the service at a link-local address of its own.  Here one application answers for all machines:
`/machines/NAME/...` for each, and `/...` while there is only one.  Requests below /control announce events.
"""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

VERSIONS = ("2017-08-01", "2019-08-01", "2020-07-01")
_INSTANCE_VERSIONS = ("2021-02-01", "2025-04-07")
#: Requests within a second that one machine may make.
REQUESTS_PER_S = 5


class Announcement(BaseModel):
    """An event that shall be announced to a machine."""

    model_config = ConfigDict(extra="forbid")

    type: str = "Preempt"
    #: Seconds until it begins.
    notice_s: float = Field(default=30.0, ge=0)
    duration_s: int = -1
    description: str = ""
    source: str = "Platform"


@dataclass
class Event:
    """One announced event."""

    id: str
    machine: str
    asked: Announcement
    #: When it begins by itself, seconds since 1970.
    not_before: float
    is_started: bool = False
    is_acknowledged: bool = False


@dataclass
class _Machine:
    """What the service remembers of one machine."""

    incarnation: int = 1
    is_enabled: bool = False
    requests: deque[float] = field(default_factory=deque)


class MetadataServer:
    """The service for all machines of one emulated cloud; any thread may use it."""

    def __init__(
        self,
        started: Callable[[str, str], None] | None = None,
        clock: Callable[[], float] = time.time,
        compute: Callable[[str], dict[str, Any]] | None = None,
    ) -> None:
        """`started(machine, event_id)` is called when an event begins because the machine acknowledged it.

        `compute` tells what a machine is value about itself; without it that is its name alone.
        """
        self._started = started
        self._compute = compute or (lambda name: {"name": name})
        self._clock = clock
        self._lock = threading.RLock()
        self._machines: dict[str, _Machine] = {}
        self._events: dict[str, Event] = {}
        #: Seconds that the first question of each machine takes, which switches the service on.
        self.first_call_s = 0.0
        #: How much the platform's clock is ahead.
        self.skew_s = 0.0
        #: Answers that are given next instead of the real ones: a status and a body.
        self.faults: deque[tuple[int, str]] = deque()

    # --- for the emulated cloud

    def add(self, machine: str) -> None:
        """There is a machine of this name now."""
        with self._lock:
            self._machines.setdefault(machine, _Machine())

    def remove(self, machine: str) -> None:
        """The machine is gone, with its events."""
        with self._lock:
            self._machines.pop(machine, None)
            for event in [one for one in self._events.values() if one.machine == machine]:
                del self._events[event.id]

    def announce(self, machine: str, asked: Announcement) -> str:
        """Announce an event; its id.  Raises KeyError when there is no such machine."""
        with self._lock:
            self._machines[machine].incarnation += 1
            event_id = str(uuid.uuid4()).upper()
            begin = self._clock() + self.skew_s + asked.notice_s
            self._events[event_id] = Event(id=event_id, machine=machine, asked=asked, not_before=begin)
            return event_id

    def finish(self, event_id: str) -> None:
        """The event is done, or cancelled: it is no longer listed."""
        with self._lock:
            event = self._events.pop(event_id, None)
            if event is not None and event.machine in self._machines:
                self._machines[event.machine].incarnation += 1

    def event(self, event_id: str) -> Event | None:
        """An event as it stands."""
        with self._lock:
            self._begin_due()
            return self._events.get(event_id)

    # --- for machines

    def application(self) -> Starlette:
        """The service as an ASGI application, to be mounted at /metadata of a server that adds no `Date`."""
        routes: list[Route] = []
        for prefix in ("", "/machines/{machine}"):
            routes += [
                Route(f"{prefix}/scheduledevents", self._get, methods=["GET"]),
                Route(f"{prefix}/scheduledevents", self._post, methods=["POST"]),
                Route(f"{prefix}/instance/compute", self._about),
                Route(f"{prefix}/instance/compute/{{fact}}", self._about),
            ]
        routes += [
            Route("/control/machines/{machine}/events", self._control_announce, methods=["POST"]),
            Route("/control/events/{event_id}", self._control_event, methods=["GET", "DELETE"]),
        ]
        return Starlette(routes=routes)

    async def _get(self, request: Request) -> Response:
        name = self._machine(request)
        if isinstance(name, Response):
            return name
        machine = self._machines[name]
        if not machine.is_enabled:
            await asyncio.sleep(self.first_call_s)
            machine.is_enabled = True
        if self.faults:
            status, body = self.faults.popleft()
            return Response(body, status, media_type="application/json")
        with self._lock:
            self._begin_due()
            events = [_document(one) for one in self._events.values() if one.machine == name]
            body_now = {"DocumentIncarnation": machine.incarnation, "Events": events}
        # The platform's own time: the server in front adds none, so that there are not two.
        return JSONResponse(body_now, headers={"Date": formatdate(self._clock() + self.skew_s, usegmt=True)})

    async def _post(self, request: Request) -> Response:
        name = self._machine(request)
        if isinstance(name, Response):
            return name
        try:
            asked = [str(one["EventId"]) for one in (await request.json())["StartRequests"]]
        except (ValueError, KeyError, TypeError):
            return _bad("Bad request. The body must have StartRequests with an EventId each.")
        with self._lock:
            known = [self._events.get(event_id) for event_id in asked]
            if any(event is None or event.machine != name for event in known):
                return _bad("Bad request. There is no such event.")
            for event in known:
                if event is not None and not event.is_started:
                    event.is_started = event.is_acknowledged = True
                    self._machines[name].incarnation += 1
        if self._started is not None:
            for event_id in asked:
                self._started(name, event_id)
        return Response(status_code=200)

    async def _about(self, request: Request) -> Response:
        name = self._machine(request, _INSTANCE_VERSIONS)
        if isinstance(name, Response):
            return name
        value: Any = self._compute(name)
        fact = request.path_params.get("fact")
        if fact is not None:
            value = value.get(fact)
        if value is None:
            return JSONResponse({"error": "Not found"}, 404)
        if request.query_params.get("format") == "text":
            # Only what is a text by itself can be had as one.
            return (
                PlainTextResponse(value) if isinstance(value, str) else _bad("Bad request. Use format=json.")
            )
        return JSONResponse(value)

    def _machine(self, request: Request, versions: tuple[str, ...] = VERSIONS) -> str | Response:
        """The machine that asks, or why it gets no answer."""
        if request.headers.get("metadata", "").casefold() != "true":
            return _bad("Bad request. Required metadata header not specified or value is incorrect.")
        if "x-forwarded-for" in request.headers:
            return _bad("Bad request. X-Forwarded-For is not allowed.")
        if request.query_params.get("api-version") not in versions:
            return JSONResponse({"error": "Bad request", "newest-versions": list(versions)}, 400)
        name: str | None = request.path_params.get("machine")
        with self._lock:
            if name is None and len(self._machines) == 1:
                (name,) = self._machines
            if name is None or name not in self._machines:
                return JSONResponse({"error": "Not found"}, 404)
            recent = self._machines[name].requests
            now = self._clock()
            while recent and recent[0] <= now - 1.0:
                recent.popleft()
            if len(recent) >= REQUESTS_PER_S:
                return JSONResponse({"error": "Too many requests"}, 429, headers={"Retry-After": "1"})
            recent.append(now)
        return name

    def _begin_due(self) -> None:
        now = self._clock() + self.skew_s
        for event in self._events.values():
            if not event.is_started and now >= event.not_before:
                event.is_started = True
                self._machines[event.machine].incarnation += 1

    # --- the control API

    async def _control_announce(self, request: Request) -> Response:
        machine = request.path_params["machine"]
        try:
            asked = Announcement.model_validate_json(await request.body() or b"{}")
        except ValidationError as error:
            return _bad(str(error))
        self.add(machine)
        return JSONResponse({"EventId": self.announce(machine, asked)}, 201)

    async def _control_event(self, request: Request) -> Response:
        event = self.event(request.path_params["event_id"])
        if event is None:
            return JSONResponse({"error": "Not found"}, 404)
        if request.method == "DELETE":
            self.finish(event.id)
            return Response(status_code=204)
        return JSONResponse({**_document(event), "IsAcknowledged": event.is_acknowledged})


def _document(event: Event) -> dict[str, Any]:
    return {
        "EventId": event.id,
        "EventStatus": "Started" if event.is_started else "Scheduled",
        "EventType": event.asked.type,
        "ResourceType": "VirtualMachine",
        "Resources": [event.machine],
        # Blank once it has begun, as Azure has it.
        "NotBefore": "" if event.is_started else formatdate(event.not_before, usegmt=True),
        "Description": event.asked.description,
        "EventSource": event.asked.source,
        "DurationInSeconds": event.asked.duration_s,
    }


def _bad(message: str) -> Response:
    return JSONResponse({"error": message}, 400)
