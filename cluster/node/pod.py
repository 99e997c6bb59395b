"""python -m cluster.node.pod: make this pod the node that the controller says, until Ray ends or SIGTERM comes.

It asks the head each second which node it is, and then starts `ray start` and the node agent.  It ends with 0 after
SIGTERM, with 2 when what the head says can never make a node of it, and with 1 when Ray ended.

REMORA_HEAD is the head's `host:port`, POD_NAME and POD_IP are the pod's own, RAY_AUTH_TOKEN_PATH is the file with the
secret of the cluster, RUNTIME_DIRECTORY a folder for the pid of Ray; REMORA_RAY_FLAGS are more flags of `ray start`.
"""

from __future__ import annotations

import logging
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType

from cluster.azure.body import NodeFile
from cluster.node import node_processes
from cluster.node.agent.metadata import URL
from cluster.node.boot import NodeRuntime, Start, start_of
from cluster.provider import InvalidRequest, NodeRequest
from cluster.ray.joining import RAY_SETTINGS, token_environment
from remora.process_log import NODE_LINES, write_log

log = logging.getLogger("cluster.node.pod")

#: Exit status when starting again would change nothing, and when Ray ended.
UNUSABLE, RAY_ENDED = 2, 1
#: Seconds between two questions.
ASK_S = 1.0
#: Variables without which there is no node.
NEEDED = ("REMORA_HEAD", "POD_NAME", "POD_IP", "RAY_AUTH_TOKEN_PATH")


def main() -> int:
    """Be a node; the exit status of the process."""
    write_log("node", text=logging.Formatter(NODE_LINES))
    stopping = threading.Event()

    def stop(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001
        stopping.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    missing = [name for name in NEEDED if not os.environ.get(name)]
    if missing:
        log.error("%s is not set: take the pod's template from deploy/kubernetes/raycluster.yaml", missing[0])
        return UNUSABLE
    # A container that was killed leaves it, and probes would take it for this one's.
    _run_folder(os.environ).unlink(missing_ok=True)
    # Ray reads them when it is imported.
    os.environ.update(RAY_SETTINGS)
    from cluster.ray.pod_names import named_node

    head, pod = os.environ["REMORA_HEAD"], os.environ["POD_NAME"]
    try:
        request = ask(lambda: named_node(head, pod), stopping)
        if request is None:
            return 0
        start = start_of_pod(request, os.environ)
    except InvalidRequest as error:
        log.error("by what the head says this pod is no node: %s", error)  # noqa: TRY400
        return UNUSABLE
    log.info("joining the Ray head %s as %s", head, request.node_id)
    status = node_processes.run(start.ray, start.agent, start.environment, _run_folder(os.environ), stopping)
    if status is None:
        log.info("asked to end; Ray and the agent have ended")
        return 0
    log.error("Ray ended with %d", status)
    return RAY_ENDED


def ask(look: Callable[[], NodeRequest | None], stopping: threading.Event) -> NodeRequest | None:
    """Ask until it is known which node this pod is; None when stopped before.  Raises InvalidRequest."""
    complaint = ""
    while not stopping.is_set():
        try:
            request, said = look(), "no controller has said yet which node it is"
        except InvalidRequest:
            raise
        except Exception as error:  # Ray raises what its RPC library raises
            request, said = None, f"the head does not answer: {' '.join(str(error).split())[:300]}"
        if request is not None:
            return request
        if said != complaint:
            log.info("this pod waits: %s; asking again", said)
        complaint = said
        stopping.wait(ASK_S)
    return None


def start_of_pod(request: NodeRequest, variables: Mapping[str, str]) -> Start:
    """The processes of this pod as that node (pure).  Raises InvalidRequest for what Ray would refuse."""
    node = NodeFile(
        cluster="",
        node=request.node_id,
        pool=request.pool,
        head=variables["REMORA_HEAD"],
        resources=dict(request.resources),
        labels=dict(request.labels),
        vault=None,
        identity_client_id=None,
    )
    runtime = NodeRuntime(
        python=sys.executable,
        run=Path(variables.get("RUNTIME_DIRECTORY") or "/run/remora"),
        # Pods cannot reach it; the agent goes on without notices.
        metadata_url=variables.get("REMORA_METADATA_URL") or URL,
        ray_flags=[
            f"--node-ip-address={variables['POD_IP']}",
            *shlex.split(variables.get("REMORA_RAY_FLAGS", "")),
        ],
    )
    start = start_of(node, request.node_id, runtime)
    token = token_environment(variables["RAY_AUTH_TOKEN_PATH"])
    return Start(ray=start.ray, agent=start.agent, environment={**start.environment, **token})


def _run_folder(variables: Mapping[str, str]) -> Path:
    folder = Path(variables.get("RUNTIME_DIRECTORY") or "/run/remora")
    folder.mkdir(parents=True, exist_ok=True)
    return folder / "ray.pid"


if __name__ == "__main__":
    sys.exit(main())
