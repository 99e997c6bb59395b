"""The environment variables of a worker's child process (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

#: Variables of ours and of Ray that a user's process must not see.
_HIDDEN_PREFIXES = ("RAY_", "REMORA_", "PYTHONPATH")
#: What marks every process of a machine, so that the local provider ends all of them with it.
_MARKS = ("REMORA_MACHINE", "REMORA_NODE_ID")


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where one worker stands in its worker group."""

    job_id: str
    attempt_id: str
    attempt: int
    #: Number of the worker group within the attempt, from 1.
    generation: int
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    num_nodes: int
    master_addr: str
    master_port: int
    #: Address and port of every rank, in their order, for backends that ask for them; each was free on its node.
    peers: tuple[str, ...] = ()
    #: Known to the workers of this worker group alone.
    key: str = field(default="", repr=False)


def child_environment(
    inherited: Mapping[str, str],
    variables: Mapping[str, str],
    place: Place,
    *,
    cpus: float,
    interface: str | None,
    python_folder: str,
) -> dict[str, str]:
    """What the user's command sees: the machine's own variables, torchrun's, ours, and the user's above them.

    `interface` is the network interface that carries the node's address, for gloo and NCCL; `python_folder` holds the
    interpreter that `python` shall mean.  Names of the rendezvous are torchrun's:
    https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables
    """
    base = {
        name: value
        for name, value in inherited.items()
        if name in _MARKS or not name.startswith(_HIDDEN_PREFIXES)
    }
    base["PATH"] = f"{python_folder}:{base.get('PATH', '/usr/local/bin:/usr/bin:/bin')}"
    base.setdefault("PYTHONUNBUFFERED", "1")
    base["OMP_NUM_THREADS"] = str(max(1, int(cpus)))
    if interface is not None:
        base["GLOO_SOCKET_IFNAME"] = interface
        base["NCCL_SOCKET_IFNAME"] = interface
    base.update(variables)
    base.update(
        {
            "RANK": str(place.rank),
            "WORLD_SIZE": str(place.world_size),
            "LOCAL_RANK": str(place.local_rank),
            "LOCAL_WORLD_SIZE": str(place.local_world_size),
            "NODE_RANK": str(place.node_rank),
            "GROUP_RANK": str(place.node_rank),
            "GROUP_WORLD_SIZE": str(place.num_nodes),
            "ROLE_RANK": str(place.rank),
            "ROLE_WORLD_SIZE": str(place.world_size),
            "ROLE_NAME": "default",
            "MASTER_ADDR": place.master_addr,
            "MASTER_PORT": str(place.master_port),
            "TORCHELASTIC_RUN_ID": place.attempt_id,
            "TORCHELASTIC_RESTART_COUNT": str(place.generation - 1),
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_USE_AGENT_STORE": "False",
            "REMORA_JOB_ID": place.job_id,
            "REMORA_ATTEMPT_ID": place.attempt_id,
            "REMORA_ATTEMPT": str(place.attempt),
            "REMORA_GENERATION": str(place.generation),
        }
    )
    return base
