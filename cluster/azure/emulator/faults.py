"""Faults to inject: what goes wrong, at which request, and how often; each counts how often it fired."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class FaultPoint(StrEnum):
    """The requests, or parts of them, at which a fault can be injected."""

    CREATE = "create"
    #: After a create was accepted: its operation fails and leaves the machine behind.
    CREATE_LATER = "create-later"
    DELETE = "delete"
    #: After a delete was accepted: its operation fails and the machine stays.
    DELETE_LATER = "delete-later"
    #: A change of a scale set's document, and of an instance's.
    UPDATE_SET = "update-set"
    CLAIM = "claim"
    GET = "get"
    #: What a scale set or an instance says of itself.
    VIEW = "view"
    #: Lists of interfaces and of disks.
    PARTS = "parts"
    LIST = "list"
    LIST_SETS = "list-sets"
    LIST_INSTANCES = "list-instances"
    POLL = "poll"
    USAGES = "usages"
    SKUS = "skus"
    EVICTIONS = "evictions"
    SCORES = "scores"
    PRICES = "prices"
    #: The request for a deployment, one of its resources, what it would change, and the deletion of a group.
    DEPLOY = "deploy"
    DEPLOY_RESOURCE = "deploy-resource"
    WHAT_IF = "what-if"
    DELETE_GROUP = "delete-group"
    #: The request for a template of images, its check, and its run.
    IMAGE_TEMPLATE = "image-template"
    IMAGE_CHECK = "image-check"
    IMAGE_BUILD = "image-build"
    SECRET = "secret"  # noqa: S105  # a word, too
    TOKEN = "token"  # noqa: S105  # a word, not a token


class Effect(StrEnum):
    """What a fault does."""

    #: An error is answered, and nothing is done.
    REFUSE = "refuse"
    #: It is done, and an error is answered.
    DONE_BUT_REFUSE = "done-but-refuse"
    #: It is done, and the connection breaks without an answer.
    LOSE_ANSWER = "lose-answer"
    #: A machine being created is taken back before it exists.
    EVICT = "evict"
    #: A machine goes, its network interface and disk stay.
    LEAK = "leak"


class EmulatorFault(BaseModel):
    """One fault to inject."""

    model_config = ConfigDict(extra="forbid")

    at: FaultPoint
    effect: Effect = Effect.REFUSE
    status: int = 500
    code: str = "InternalServerError"
    message: str = "An internal error occurred."
    #: Seconds of the Retry-After header; None sends none.
    retry_after: float | None = None
    #: The answer's body, verbatim, instead of the document of an error.
    body: str | None = None
    #: How often it happens; 0: for ever.
    times: int = Field(default=1, ge=0)
    #: Only for this size, this zone ("" for none), this page of a list (the first is 1); None: for any.
    size: str | None = None
    zone: str | None = None
    page: int | None = None
    #: Only for resources of this type, in a deployment; None: for any.
    kind: str | None = None
    #: How often it happened.
    fired: int = 0

    def fits(self, at: FaultPoint, facts: dict[str, Any]) -> bool:
        """True when it fires at this request."""
        wanted = {
            name: value
            for name in ("size", "zone", "page", "kind")
            if (value := getattr(self, name)) is not None
        }
        is_left = self.times == 0 or self.fired < self.times
        return is_left and self.at is at and all(facts.get(name) == value for name, value in wanted.items())


class EmulatorFaults:
    """All faults that are set, the oldest first."""

    def __init__(self) -> None:
        self.all: list[EmulatorFault] = []

    def take(self, at: FaultPoint, **facts: Any) -> EmulatorFault | None:
        """The first fault that fires at this request, counted; `facts` are its size, zone and page, if it has any."""
        for fault in self.all:
            if fault.fits(at, facts):
                fault.fired += 1
                return fault
        return None
