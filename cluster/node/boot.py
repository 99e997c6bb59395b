"""The processes that a node starts, from its node file (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from cluster.azure.body import NodeFile
from cluster.provider import NodeRequest
from cluster.ray.joining import NODE_VARIABLE, RAY_SETTINGS, join_flags, ray_start, token_environment


@dataclass(frozen=True, kw_only=True)
class NodeRuntime:
    """The machine's settings for its processes: interpreter, folder, metadata service, flags."""

    #: The interpreter that has Ray.
    python: str
    #: Folder for what must not outlive the boot, its owner's only.
    run: PurePath
    metadata_url: str
    #: Flags of `ray start` that this machine has besides those that follow from its file.
    ray_flags: Sequence[str] = ()
    #: GPUs that the agent looks for; None: as many as the node's file says that it has.
    gpus: int | None = None

    @property
    def token(self) -> PurePath:
        """The file with the cluster's secret."""
        return self.run / "ray.token"

    @property
    def ray_pid(self) -> PurePath:
        """The file with the pid of `ray start`."""
        return self.run / "ray.pid"


@dataclass(frozen=True, kw_only=True)
class Start:
    """The two processes of a node, and what is added to their environment."""

    ray: list[str]
    agent: list[str]
    environment: dict[str, str]


def start_of(node: NodeFile, node_id: str, runtime: NodeRuntime) -> Start:
    """What makes this machine the node `node_id`.  Raises `cluster.provider.InvalidRequest` for what Ray would refuse.

    No secret is in it: both read the secret out of its file.
    """
    request = NodeRequest(
        node_id=node_id, pool=node.pool, resources=dict(node.resources), labels=dict(node.labels)
    )
    gpus = runtime.gpus if runtime.gpus is not None else _gpus(node)
    agent = [
        *(runtime.python, "-P", "-m", "cluster.node.agent", "--head", node.head, "--node-id", node_id),
        *("--metadata-url", runtime.metadata_url, "--ray-pid-file", str(runtime.ray_pid)),
        *("--gpus", str(gpus)),
    ]
    environment = {**RAY_SETTINGS, **token_environment(str(runtime.token)), NODE_VARIABLE: node_id}
    return Start(
        ray=ray_start(runtime.python, [*runtime.ray_flags, *join_flags(request, node.head)]),
        agent=agent,
        environment=environment,
    )


def _gpus(node: NodeFile) -> int:
    """How many GPUs the machine has by its file; a part of one is none that could be counted."""
    amount = float(node.resources.get("GPU", 0.0))
    return int(amount) if amount.is_integer() else 0
