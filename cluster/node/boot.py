"""A node's file, which the machine's start-up data wrote, and the processes that the node starts from it (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from pydantic import TypeAdapter, ValidationError

from cluster.azure.body import NodeFile
from cluster.provider import NodeRequest
from cluster.ray.certificates import tls_environment
from cluster.ray.joining import NODE_VARIABLE, RAY_SETTINGS, join_flags, ray_start, token_environment

_NODE_FILE = TypeAdapter(NodeFile)


class NodeFileUnusable(Exception):
    """No machine can join by this file; the message is one sentence."""


def parse(text: str) -> NodeFile:
    """The file's content; unknown fields of a newer controller are ignored.

    Raises NodeFileUnusable when something is missing or is not what it should be.
    """
    try:
        node = _NODE_FILE.validate_json(text, strict=True)
    except ValidationError as error:
        problems = (_problem(one["loc"], one["type"], one["msg"]) for one in error.errors(include_url=False))
        raise NodeFileUnusable("; ".join(problems)) from error
    host, _, port = node.head.rpartition(":")
    if not host or not port.isdecimal():
        raise NodeFileUnusable(f"head {node.head!r} is not HOST:PORT")
    if not node.vault:
        raise NodeFileUnusable(
            "it names no vault that has the cluster's secret: set `vault` of the cluster's place"
        )
    return node


def _problem(place: tuple[int | str, ...], kind: str, said: str) -> str:
    name = ".".join(map(str, place))
    if kind == "missing":
        return f"it lacks {name}"
    return f"{name}: {said}" if name else said


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
    def tls(self) -> PurePath:
        """The folder with the machine's certificate."""
        return self.run / "tls"

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
    if node.tls:
        environment |= tls_environment(runtime.tls)
    return Start(
        ray=ray_start(runtime.python, [*runtime.ray_flags, *join_flags(request, node.head)]),
        agent=agent,
        environment=environment,
    )


def given_address(ray_flags: Sequence[str]) -> str | None:
    """The address that the machine's own flags of `ray start` give it; None: it is the one that leads to the head."""
    given = [flag.partition("=")[2] for flag in ray_flags if flag.startswith("--node-ip-address=")]
    return given[-1] if given else None


def _gpus(node: NodeFile) -> int:
    """How many GPUs the machine has by its file; a part of one is none that could be counted."""
    amount = float(node.resources.get("GPU", 0.0))
    return int(amount) if amount.is_integer() else 0
