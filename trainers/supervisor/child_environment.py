"""The environment variables of a worker's child process (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trainers.containers.arguments import visible_in_container
from trainers.isolation.variables import MACHINE_MARKS
from trainers.worker_identity import WorkerIdentity

#: Variables of ours and of Ray, and credentials of storages, that a user's process must not see.
_HIDDEN_PREFIXES = ("RAY_", "REMORA_", "PYTHONPATH", "AZURE_STORAGE_")
#: The trace of whatever started the node is not the job's.
_TRACE = ("TRACEPARENT", "TRACESTATE")


def variables_in_container(inherited: Mapping[str, str], image: Mapping[str, str]) -> dict[str, str]:
    """What stands for the machine's own variables in a container: those of the image, and the worker's GPUs.

    Paths that variables of the machine name are not there.
    """
    # An image without users names no home.
    found = {
        "HOME": "/root",
        **image,
        **{name: inherited[name] for name in MACHINE_MARKS if name in inherited},
    }
    if (visible := inherited.get("CUDA_VISIBLE_DEVICES")) is not None:
        found["CUDA_VISIBLE_DEVICES"] = visible_in_container(visible)
    return found


#: How many collectives PyTorch keeps, for `remora.script.collectives`, and the old name, of which it warns.
_RECORDER, _OLD_RECORDER, _RECORDED = "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE", "256"


def child_environment(
    inherited: Mapping[str, str],
    variables: Mapping[str, str],
    identity: WorkerIdentity,
    *,
    cpus: float,
    interface: str | None,
    path_folders: Sequence[str],
    traceparent: str | None = None,
) -> dict[str, str]:
    """What the user's command sees: the machine's own variables, torchrun's, ours, and the user's above them.

    `interface` is the network interface that carries the node's address, for gloo and NCCL; programs are looked
    for in `path_folders` first, where `python` and `pip` are the job's.  Spans of the command join the trace of
    `traceparent` (https://opentelemetry.io/docs/specs/otel/context/env-carriers/).  Names of the rendezvous are
    torchrun's: https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables
    """
    base = {
        name: value
        for name, value in inherited.items()
        if name in MACHINE_MARKS or not name.startswith((*_HIDDEN_PREFIXES, *_TRACE))
    }
    base["PATH"] = ":".join([*path_folders, base.get("PATH", "/usr/local/bin:/usr/bin:/bin")])
    base.setdefault("PYTHONUNBUFFERED", "1")
    base["OMP_NUM_THREADS"] = str(max(1, int(cpus)))
    if interface is not None:
        base["GLOO_SOCKET_IFNAME"] = interface
        base["NCCL_SOCKET_IFNAME"] = interface
    if _OLD_RECORDER not in base and _OLD_RECORDER not in variables:
        base.setdefault(_RECORDER, _RECORDED)
    if traceparent is not None:
        base["TRACEPARENT"] = traceparent
    base.update(variables)
    base.update(
        {
            "RANK": str(identity.rank),
            "WORLD_SIZE": str(identity.world_size),
            "LOCAL_RANK": str(identity.local_rank),
            "LOCAL_WORLD_SIZE": str(identity.local_world_size),
            "NODE_RANK": str(identity.node_rank),
            "GROUP_RANK": str(identity.node_rank),
            "GROUP_WORLD_SIZE": str(identity.num_nodes),
            "ROLE_RANK": str(identity.rank),
            "ROLE_WORLD_SIZE": str(identity.world_size),
            "ROLE_NAME": "default",
            "MASTER_ADDR": identity.master_addr,
            "MASTER_PORT": str(identity.master_port),
            "TORCHELASTIC_RUN_ID": identity.attempt_id,
            "TORCHELASTIC_RESTART_COUNT": str(identity.generation - 1),
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_USE_AGENT_STORE": "False",
            "REMORA_JOB_ID": identity.job_id,
            "REMORA_ATTEMPT_ID": identity.attempt_id,
            "REMORA_ATTEMPT": str(identity.attempt),
            "REMORA_GENERATION": str(identity.generation),
        }
    )
    return base
