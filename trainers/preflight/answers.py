"""What the measurements of nodes have answered (pure)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OwnAnswer:
    """What a node has found out about itself."""

    node_id: str
    #: JSON of `trainers.preflight.own`; None: it has found out nothing.
    text: str | None
    #: Why it has not.
    why: str | None
    #: The Remora on the node has no preflight: it is of an earlier release.
    lacks_preflight: bool = False


@dataclass(frozen=True)
class LinkAnswer:
    """What two nodes have found out about what joins them."""

    #: Their ids.
    pair: tuple[str, str]
    #: MB (10^6 bytes) per second of a sum over both; None: it could not be measured.
    mb_per_s: float | None
    #: Why it could not.
    why: str | None
