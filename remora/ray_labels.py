"""What the service and the drivers of attempts have in common of Ray's nodes: labels, and claims of existing nodes."""

from __future__ import annotations

from collections.abc import Mapping

#: A label that no node has.  What drivers ask Ray Train's coordinator for says `not in` of it, which every node
#: satisfies: by that it is known from what other Ray programs ask for.
FOR_JOBS_LABEL = "remora-for"
#: Says which of our nodes a Ray node is, where Remora made it.
NODE_LABEL = "remora-node"
#: Namespace of Ray's internal store, and the beginning of its keys that say the same of nodes that Remora did not make:
#: `claim:<Ray's id of the node>`, with our id of it as the first word of the value.
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
