"""The interface between Remora and what makes machines, with its guarantees.

A provider makes, lists and deletes nodes.  It decides nothing: the planner says what to make.  The node's row exists
before `create` is called, so a lost answer leaks nothing: everything that `list` shows is compared with the rows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

_NODE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class ProviderError(Exception):
    """Base of everything a provider may raise; the message is one sentence for people.

    `closes` are the ids of the offerings that need not be asked for before `until` (seconds since 1970).
    """

    #: A word for what went wrong, of which there are few.
    kind: ClassVar[str] = "other"

    def __init__(self, message: str, *, closes: tuple[str, ...] = (), until: float = 0.0) -> None:
        super().__init__(message)
        self.closes = closes
        self.until = until


class InsufficientCapacity(ProviderError):
    """The provider has no machine of this kind now; do not ask for it before `until` (seconds since 1970)."""

    kind = "capacity"

    def __init__(self, message: str, *, offering: str, until: float, closes: tuple[str, ...] = ()) -> None:
        super().__init__(message, closes=closes or (offering,), until=until)
        self.offering = offering


class QuotaExceeded(ProviderError):
    """The account may not have more machines of this kind."""

    kind = "quota"


class Throttled(ProviderError):
    """Too many requests; try again after `retry_after_s` seconds."""

    kind = "throttled"

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Unanswered(Throttled):
    """No clear answer came: the request may have been carried out; the same request again, or `list`, shows it."""

    kind = "unanswered"


class InvalidRequest(ProviderError):
    """The request can never succeed as it is."""

    kind = "invalid_request"


class Unauthorized(ProviderError):
    """The credentials are missing, wrong or too weak."""

    kind = "unauthorized"


def check_node_id(node_id: str) -> None:
    """Raise InvalidRequest for what cannot be part of a machine's name everywhere."""
    if not _NODE_ID.fullmatch(node_id):
        raise InvalidRequest(f"{node_id!r} is not a node id: letters, digits, '_' and '-', at most 64")


@dataclass(frozen=True, kw_only=True)
class NodeRequest:
    """A machine to be made."""

    #: `node_...`; the provider marks the machine with it, so `create` is idempotent by it.
    node_id: str
    pool: str
    #: Ray resources it shall bring, e.g. {"CPU": 1.0}.
    resources: dict[str, float]
    #: Labels of the Ray node.
    labels: dict[str, str] = field(default_factory=dict)
    #: Id of the offering to buy, `<size>/<zone>/<capacity type>`; for providers that have more than one kind.
    offering: str | None = None
    #: Fabric domain whose other machines InfiniBand shall join it to; None: none.  A provider without InfiniBand
    #: ignores it.
    fabric: str | None = None


@dataclass(frozen=True, kw_only=True)
class ProvidedNode:
    """A machine as the provider sees it."""

    node_id: str
    pool: str
    #: True while its machine runs (whether or not it joined Ray); False when it died and waits to be deleted.
    is_running: bool
    #: IP address, once known.
    address: str | None
    created_at: float
    #: Why it is not running, for people.
    message: str | None = None
    #: What `create` would have raised, had the provider known at once that it cannot make this machine.
    refusal: ProviderError | None = None


class Provider(Protocol):
    """Makes machines that join the Ray cluster by themselves."""

    def create(self, request: NodeRequest) -> None:
        """Request a machine and return without waiting until it has started.

        Idempotent by `request.node_id`: asked again for one that exists, it changes nothing.
        Raises one of the errors above; then nothing was made, or `list` will show what was.
        """
        ...

    def list(self) -> list[ProvidedNode]:
        """Every machine of this cluster that exists, dead ones included until they are deleted.

        Raises ProviderError when it is not sure: a failed list is never an empty list.
        """
        ...

    def delete(self, node_id: str) -> None:
        """End the machine and all that runs on it; does nothing when it is gone already or never existed."""
        ...
