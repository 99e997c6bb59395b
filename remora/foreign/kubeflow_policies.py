"""What Kubeflow's jobs have in common: how long they run, how often they are tried, and the backend of JAX."""

from __future__ import annotations

from remora.foreign.field_outcomes import Draft, Fields
from remora.spec.backends import BACKENDS


def read_deadline(draft: Draft, fields: Fields) -> None:
    """Take the time after which the job ends."""
    seconds = fields.whole("activeDeadlineSeconds")
    if seconds is not None:
        draft.put("limits.run_time", seconds, fields.name("activeDeadlineSeconds"), shown=f"{seconds} s")


def read_run_policy(draft: Draft, policy: Fields) -> None:
    """Take how long and how often the job is tried."""
    read_deadline(draft, policy)
    tries = policy.whole("backoffLimit", least=0)
    if tries is not None:
        draft.put("retry.limit", min(tries, 100), policy.name("backoffLimit"))
    policy.drop("cleanPodPolicy", "ttlSecondsAfterFinished", "managedBy")
    if policy.take("suspend"):
        draft.leave("spec.runPolicy.suspend", "a job begins as soon as there is room")
    policy.leave("schedulingPolicy", "all workers of a job start together; `priority` orders the queue")
    policy.close()


def put_jax(draft: Draft, source: str) -> None:
    """Set the backend of JAX, if there is one."""
    if "jax" in BACKENDS:
        draft.put("backend", "jax", source)
    else:
        draft.refuse(
            source,
            "this version has no backend for JAX; write a specification with `backend: ddp`, and call"
            " jax.distributed.initialize with MASTER_ADDR, MASTER_PORT, WORLD_SIZE and RANK",
        )
