"""JAX: `jax.distributed.initialize()` without arguments finds the worker group in environment variables."""

from __future__ import annotations

from trainers.backends.backend import Backend, LaunchContext


class Jax(Backend):
    """The coordinator is at rank 0's rendezvous address; JAX reads the rest from variables of Slurm.

    JAX has a variable of its own for the coordinator alone, and takes the number of processes and its place among them
    from the cluster that it detects.  Slurm is the one whose variables are enough for that:
    https://docs.jax.dev/en/latest/multi_process.html
    """

    def variables(self, launch: LaunchContext) -> dict[str, str]:
        """The coordinator, the processes, which one this is, and which GPUs of its node it has."""
        identity = launch.identity
        count, rank = str(identity.world_size), str(identity.rank)
        address, port = identity.master_addr, str(identity.master_port)
        variables = {
            "JAX_COORDINATOR_ADDRESS": f"{address}:{port}",
            # For scripts that hand the three to `initialize` themselves.
            "JAX_NUM_PROCESSES": count,
            "JAX_PROCESS_ID": rank,
            "SLURM_JOB_ID": str(identity.master_port),
            "SLURM_STEP_NODELIST": address,
            "SLURM_STEP_NUM_NODES": str(identity.num_nodes),
            "SLURM_NTASKS": count,
            "SLURM_PROCID": rank,
            "SLURM_LOCALID": str(identity.local_rank),
        }
        gpus = launch.plan.resources.get("GPU", 0.0)
        if gpus and "JAX_LOCAL_DEVICE_IDS" not in launch.environment:
            variables["JAX_LOCAL_DEVICE_IDS"] = _own_gpus(identity.local_rank, gpus)
        return variables


def _own_gpus(local_rank: int, gpus: float) -> str:
    """Indices of a worker's GPUs among those of its worker group on the node, all of which it sees.

    `gpus`: of one worker, a share of one or a whole number.
    """
    first = int(local_rank * gpus)
    return ",".join(str(first + index) for index in range(max(1, int(gpus))))
