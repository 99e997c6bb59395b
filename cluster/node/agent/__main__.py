"""python -m cluster.node.agent --head HOST:PORT [--node-id ID] [--machine NAME] [--gpus N] [--metadata-url URL] ...

One per machine, started before Ray: the first answer of the metadata service takes its time.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from cluster.node.agent.agent import Agent
from cluster.node.agent.gpus import Gpus
from cluster.node.agent.head_client import RayHead
from cluster.node.agent.metadata import URL, MetadataService
from remora.process_log import NODE_LINES, about, write_log

log = logging.getLogger("cluster.node.agent")


def _arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m cluster.node.agent", description=__doc__)
    parser.add_argument("--head", required=True, metavar="HOST:PORT", help="the Ray head's address")
    parser.add_argument(
        "--node-id", default=os.environ.get("REMORA_NODE_ID", ""), help="node_...; else REMORA_NODE_ID"
    )
    parser.add_argument("--machine", default="", help="the name in events; else the metadata service's")
    parser.add_argument(
        "--gpus", type=int, metavar="N", help="GPUs that the machine should have; 0: never look"
    )
    parser.add_argument("--metadata-url", default=URL, help="the metadata service, for the emulator")
    parser.add_argument(
        "--ray-pid-file",
        type=Path,
        help="holds the pid of `ray start --block`, which is ended when the head does not hear of a notice",
    )
    return parser.parse_args(words)


def end_ray(pid_file: Path | None, reason: str) -> None:
    """SIGTERM to the machine's `ray start --block`, which ends its workers with a grace."""
    try:
        pid = int(pid_file.read_text()) if pid_file is not None else 0
        if pid <= 1:
            log.warning("nothing is ended, no process of Ray is known (%s)", reason)
            return
        os.kill(pid, signal.SIGTERM)
    except (OSError, ValueError) as error:
        log.warning("Ray cannot be ended: %s", error)


def main(words: Sequence[str]) -> int:
    """Run until SIGTERM or SIGINT; the exit status of the process."""
    arguments = _arguments(words)
    write_log("agent", text=logging.Formatter(NODE_LINES), of_process=about(node=arguments.node_id))
    if not arguments.node_id:
        print("cluster.node.agent: give --node-id or REMORA_NODE_ID", file=sys.stderr)
        return 2
    stopping = threading.Event()

    def stop(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001
        stopping.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    metadata = MetadataService(arguments.metadata_url)
    head = RayHead(arguments.head, arguments.node_id)
    head.start()
    try:
        agent = Agent(
            arguments.machine,
            metadata,
            head,
            lambda reason: end_ray(arguments.ray_pid_file, reason),
            Gpus(expected=arguments.gpus).look,
        )
        agent.run(stopping)
    finally:
        head.close()
        metadata.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
