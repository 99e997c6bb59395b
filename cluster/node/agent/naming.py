"""python -m cluster.node.agent.naming [--metadata-url URL]: print which node this machine is, once its tags say.

All instances of a scale set start with the same data, so that `/etc/remora/node.json` names no node there.  The
controller gives the machine a tag; until then it has nothing to join as.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType

from cluster.azure.body import NODE_TAG
from cluster.node.agent.metadata import TIMEOUT_S, URL, MetadataAway, MetadataService
from remora.process_log import NODE_LINES, write_log

log = logging.getLogger("cluster.node.agent.naming")

#: Seconds between two looks at the tags.
LOOK_S = 1.0


def node_id_by_tag(metadata: MetadataService, stopping: threading.Event) -> str:
    """Id of the node that this machine was given to, however long that takes; empty when stopped before."""
    complaint = ""
    while not stopping.is_set():
        try:
            node_id = metadata.tags().get(NODE_TAG, "")
            said, pause_s = "no tag names its node yet", 0.0
        except MetadataAway as away:
            node_id, said, pause_s = "", str(away), away.pause_s
        if node_id:
            return node_id
        if said != complaint:
            log.info("which node this machine is is not known: %s; looking again", said)
        complaint = said
        stopping.wait(LOOK_S + pause_s)
    return ""


def node_id(url: str, stopping: threading.Event) -> str:
    """The same, asking the metadata service at this URL."""
    # Only the first call for Scheduled Events, which is not made here, may take minutes.
    metadata = MetadataService(url, first_timeout_s=TIMEOUT_S)
    try:
        return node_id_by_tag(metadata, stopping)
    finally:
        metadata.close()


def main(words: Sequence[str]) -> int:
    """Print the id; 1 when ended by SIGTERM or SIGINT before it is known."""
    parser = argparse.ArgumentParser(prog="python -m cluster.node.agent.naming", description=__doc__)
    parser.add_argument("--metadata-url", default=URL, help="the metadata service, for the emulator")
    arguments = parser.parse_args(words)
    write_log("agent", text=logging.Formatter(NODE_LINES))
    stopping = threading.Event()

    def stop(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001
        stopping.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    name = node_id(arguments.metadata_url, stopping)
    if not name:
        return 1
    print(name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
