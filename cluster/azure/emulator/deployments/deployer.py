"""Carries deployments out, a resource at a time, and says beforehand what one would change."""

from __future__ import annotations

import uuid
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from cluster.azure.emulator.deployments.expressions import InvalidTemplate
from cluster.azure.emulator.deployments.kinds import Json
from cluster.azure.emulator.deployments.resources import Resources
from cluster.azure.emulator.deployments.template import DEPLOYMENTS, Place, Template, Wanted
from cluster.azure.emulator.emulated_cloud import Refused
from cluster.azure.emulator.faults import EmulatorFaults, FaultPoint


@dataclass
class Deployment:
    """One deployment at the scope of a subscription."""

    id: str
    name: str
    started_at: float
    state: str = "Running"
    outputs: Json = field(default_factory=dict)
    error: Json | None = None
    #: Of its resources and modules: type, id and state.
    operations: list[Json] = field(default_factory=list)
    correlation: str = field(default_factory=lambda: str(uuid.uuid4()))

    def document(self) -> Json:
        """As Azure shows it: without its parameters, some of which are secret."""
        properties: Json = {"provisioningState": self.state, "correlationId": self.correlation}
        if self.outputs:
            properties["outputs"] = self.outputs
        if self.error is not None:
            properties["error"] = self.error
        return {"id": self.id, "name": self.name, "type": DEPLOYMENTS, "properties": properties}


class Deployer:
    """All deployments; nothing runs by itself: what is due happens at the next request."""

    def __init__(self, resources: Resources, faults: EmulatorFaults, tenant: str) -> None:
        self.resources = resources
        self._faults = faults
        self._tenant = tenant
        #: By their ids: each subscription has names of its own.
        self.all: dict[str, Deployment] = {}
        self._steps: dict[str, Iterator[None]] = {}
        #: What was uploaded to storages, by account, container and name.
        self.blobs: dict[str, bytes] = {}
        #: Seconds that each resource takes.
        self.resource_s = 0.0
        self._due_at: dict[str, float] = {}

    def template(self, subscription: str, body: Mapping[str, Any], resources: Resources) -> Template:
        """The template of a request.  Raises Refused for one that cannot be evaluated."""
        try:
            properties = body["properties"]
            place = Place(subscription=subscription, tenant=self._tenant, region=body["location"])
            given = {name: one["value"] for name, one in properties.get("parameters", {}).items()}
            return Template(properties["template"], given, place, resources.find)
        except InvalidTemplate as error:
            raise Refused(
                400, "InvalidTemplate", f"Deployment template validation failed: {error}"
            ) from error
        except (KeyError, TypeError) as error:
            raise Refused(
                400, "InvalidRequestContent", f"The request content was invalid: {error}."
            ) from error

    def begin(self, subscription: str, name: str, body: Mapping[str, Any], now: float) -> Deployment:
        """Begin a deployment.  Raises Refused, also while one of the same name runs."""
        id = f"/subscriptions/{subscription}/providers/{DEPLOYMENTS}/{name}"
        known = self.all.get(id)
        if known is not None and known.state == "Running":
            said = f"Unable to edit or replace deployment '{name}': previous deployment is still active."
            raise Refused(409, "DeploymentActive", said)
        template = self.template(subscription, body, self.resources)
        deployment = Deployment(id=id, name=name, started_at=now)
        self.all[id] = deployment
        self._steps[id] = self._carried_out(deployment, template)
        self._due_at[id] = now + self.resource_s
        self.advance(now)
        return deployment

    def cancel(self, id: str) -> None:
        """Stop a deployment between two resources.  Raises Refused when it does not run."""
        if self._steps.pop(id, None) is None:
            said = f"The deployment '{id.rpartition('/')[2]}' is not running."
            raise Refused(409, "DeploymentCannotBeCancelled", said)
        self.all[id].state = "Canceled"

    def advance(self, now: float) -> None:
        """Let happen what is due until now."""
        for id, steps in list(self._steps.items()):
            while self._due_at[id] <= now:
                if next(steps, self) is self:
                    del self._steps[id]
                    break
                self._due_at[id] += self.resource_s

    def _carried_out(self, deployment: Deployment, template: Template) -> Iterator[None]:
        try:
            yield from self._made(self.resources, template, deployment.operations)
            deployment.outputs = template.outputs()
            deployment.state = "Succeeded"
        except InvalidTemplate as error:
            self._failed(deployment, {"code": "InvalidTemplate", "message": str(error)})
        except Refused as refused:
            self._failed(deployment, {"code": refused.code, "message": str(refused)})

    def _failed(self, deployment: Deployment, reason: Json) -> None:
        deployment.state = "Failed"
        for operation in deployment.operations:
            if operation["properties"]["provisioningState"] == "Running":
                operation["properties"] |= {"provisioningState": "Failed", "statusMessage": {"error": reason}}
        said = "At least one resource deployment operation failed. Please list deployment operations for details."
        deployment.error = {"code": "DeploymentFailed", "message": said, "details": [reason]}

    def _made(
        self, resources: Resources, template: Template, operations: list[Json]
    ) -> Generator[None, None, None]:
        """Make each resource of a template; a step ends after each."""
        for one in template.resources():
            wanted, inner = one if isinstance(one, tuple) else (one, None)
            operation = _operation(wanted)
            operations.append(operation)
            if inner is not None:
                yield from self._made(resources, inner, [])
                resources.put(
                    Wanted(id=wanted.id, type=DEPLOYMENTS, body={"name": wanted.id.rpartition("/")[2]})
                )
            else:
                fault = self._faults.take(FaultPoint.DEPLOY_RESOURCE, kind=wanted.type)
                if fault is not None:
                    raise Refused.by(fault)
                resources.put(wanted)
                yield
            operation["properties"]["provisioningState"] = "Succeeded"

    def changes(self, subscription: str, body: Mapping[str, Any]) -> list[Json]:
        """What a deployment would change, as `whatIf` says it.  Raises Refused."""
        dry = self.resources.dry()
        before = {one["id"]: one for one in self.resources.shown() + self.resources.groups()}
        wanted: set[str] = set()
        try:
            for one in _all_of(self.template(subscription, body, dry), dry):
                wanted.add(one.id)
                dry.put(one)
        except InvalidTemplate as error:
            raise Refused(
                400, "InvalidTemplate", f"Deployment template validation failed: {error}"
            ) from error
        after = {one["id"]: one for one in dry.shown() + dry.groups() if one["id"] in wanted}
        found = [_change(id, before.get(id), one) for id, one in after.items()]
        groups = {one["id"] for one in dry.groups() if one["id"] in wanted}
        return found + [
            {"resourceId": id, "changeType": "Ignore", "before": one}
            for id, one in before.items()
            if id not in wanted and any(id.startswith(f"{group}/") for group in groups)
        ]


def _all_of(template: Template, resources: Resources) -> Iterator[Wanted]:
    """All resources of a template and of those in it; the caller makes each before it asks for the next one."""
    for one in template.resources():
        if isinstance(one, tuple):
            yield from _all_of(one[1], resources)
        else:
            yield one


def _operation(wanted: Wanted) -> Json:
    target = {"id": wanted.id, "resourceType": wanted.type, "resourceName": wanted.id.rpartition("/")[2]}
    properties = {"provisioningOperation": "Create", "provisioningState": "Running", "targetResource": target}
    return {"operationId": uuid.uuid4().hex.upper(), "properties": properties}


def _change(id: str, before: Json | None, after: Json) -> Json:
    if before is None:
        return {"resourceId": id, "changeType": "Create", "after": after}
    delta = list(_delta(before, after, ""))
    kind = "Modify" if delta else "NoChange"
    return {"resourceId": id, "changeType": kind, "before": before, "after": after, "delta": delta}


def _delta(before: Any, after: Any, path: str) -> Iterator[Json]:
    if isinstance(before, dict) and isinstance(after, dict):
        for name in sorted(before.keys() | after.keys()):
            yield from _delta(before.get(name), after.get(name), f"{path}.{name}" if path else name)
    elif before != after:
        kind = "Create" if before is None else "Delete" if after is None else "Modify"
        yield {"path": path, "propertyChangeType": kind, "before": before, "after": after}
