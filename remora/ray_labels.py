"""What the service and the drivers of attempts have in common of Ray's nodes: labels, and claims of existing nodes."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping

#: A label that no node has.  What drivers ask Ray Train's coordinator for says `not in` of it, which every node
#: satisfies: by that it is known from what other Ray programs ask for.
FOR_JOBS_LABEL = "remora-for"
#: Says which of our nodes a Ray node is, where Remora made it.
NODE_LABEL = "remora-node"
#: Namespace of Ray's internal store, and the beginning of its keys that say the same of nodes that Remora did not make:
#: `claim:<Ray's id of the node>`, with our id of it as the first word of the value, and while the node drains its
#: deadline, seconds since 1970, as the fourth.
CLAIMS_NAMESPACE = b"remora"
CLAIM = b"claim:"
#: Set in processes of Ray that got our packages with their work, as their node's Python has none.
BROUGHT_VARIABLE = "REMORA_PACKAGES_BROUGHT"


def claims_in(entries: Mapping[bytes, bytes]) -> dict[str, str]:
    """Our node ids by Ray's, of entries of Ray's internal store."""
    return {
        key.removeprefix(CLAIM).decode("ascii", "replace"): value.decode("utf-8", "replace").partition(" ")[0]
        for key, value in entries.items()
        if key.startswith(CLAIM) and value
    }


def drains_in(entries: Mapping[bytes, bytes]) -> dict[str, float]:
    """Until when claimed nodes drain, seconds since 1970, by Ray's ids; of those that drain alone."""
    found: dict[str, float] = {}
    for key, value in entries.items():
        words = value.decode("utf-8", "replace").split(" ")
        deadline_at = _seconds(words[3]) if key.startswith(CLAIM) and len(words) > 3 else None
        if deadline_at is not None:
            found[key.removeprefix(CLAIM).decode("ascii", "replace")] = deadline_at
    return found


def with_claims(
    draining: Mapping[str, float], living: Collection[str], entries: Mapping[bytes, bytes]
) -> dict[str, float]:
    """Draining nodes and their deadlines (0: unknown), seconds since 1970 by Ray's ids, with what claims say.

    Living nodes without a claim are not ours, or not any more, and take no work of ours either.
    """
    claimed, found = claims_in(entries), dict(draining)
    for node, deadline in drains_in(entries).items():
        known = found.get(node) or deadline
        found[node] = min(known, deadline)
    return {**{node: 0.0 for node in living if node not in claimed}, **found}


def are_packages_brought() -> bool:
    """Whether this process of Ray got `remora` with its work: it works for a cluster that Remora did not start."""
    return BROUGHT_VARIABLE in os.environ


def _seconds(word: str) -> float | None:
    try:
        seconds = float(word)
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) else None
