"""What Kubeflow's jobs have in common: how long they run, and how often they are tried."""

from __future__ import annotations

from remora.job_formats.field_outcomes import Draft, Fields


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
        draft.leave("spec.runPolicy.suspend", "a job begins as soon as there is capacity")
    policy.leave("schedulingPolicy", "all workers of a job start together; `priority` orders the queue")
    policy.close()
