"""The states that users, the API and the database share; every value equals the word on the wire.

Transitions are not here: `service/queue/lifecycle/` is the one place that allows them.
"""

from __future__ import annotations

from enum import StrEnum


class JobState(StrEnum):
    """State of a job."""

    #: Accepted and stored; waits in the queue and for nodes.
    QUEUED = "queued"
    #: The dispatch loop gave it quota; an attempt exists, its workers do not step yet.
    ADMITTED = "admitted"
    #: An attempt is training.
    RUNNING = "running"
    #: Stopped at a checkpoint, by its owner or by the cluster's budget; keeps its place and uses nothing.
    PAUSED = "paused"
    #: The command of every rank returned 0.
    SUCCEEDED = "succeeded"
    #: No attempt is left; the last attempt's end reason says why.
    FAILED = "failed"
    #: Ended because its owner asked.
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """True when nothing will change any more."""
        return self in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)


class AttemptState(StrEnum):
    """State of one attempt of a job."""

    #: The row exists; the driver is being started or waits for its first worker group.
    STARTING = "starting"
    #: A worker group trains.
    RUNNING = "running"
    #: Asked to stop; the driver is ending its children.
    DRAINING = "draining"
    #: Over; `end_reason` is set and nothing of it may write any more.
    ENDED = "ended"


class NodeState(StrEnum):
    """The state of one machine, from the decision to have it to its end."""

    #: The row exists; the provider has not been asked yet.
    REQUESTED = "requested"
    #: The provider accepted; the machine starts.
    LAUNCHED = "launched"
    #: Its raylet is known to the Ray cluster.
    JOINED = "joined"
    #: It may be given work.
    READY = "ready"
    #: It takes no new work and goes at its deadline.
    DRAINING = "draining"
    #: The provider was asked to delete it.
    TERMINATING = "terminating"
    #: The provider no longer knows it.
    GONE = "gone"
    #: It never became ready; `message` says why.
    FAILED = "failed"


class DrillState(StrEnum):
    """State of a drill, a rehearsed preemption."""

    #: Asked for; the controller has not begun.
    REQUESTED = "requested"
    #: The notice was given, or the nodes were taken without one.
    STRUCK = "struck"
    #: Every job that was hit has its workers back, or has ended.
    ENDED = "ended"
    #: Nothing was done; `message` says why.
    REFUSED = "refused"


class EndReason(StrEnum):
    """Why an attempt ended: the cause first, everything else is derived from it."""

    #: The command returned 0 on every rank.
    COMPLETED = "completed"
    #: The command of some rank returned another exit code.
    EXIT_CODE = "exit_code"
    #: The process of some rank was ended by a signal (a crash, the kernel's OOM killer, a kill by hand, our limit).
    SIGNAL = "signal"
    #: The command could not be started at all: not found, not executable, or the code bundle is unusable; or its ranks
    #: wait for one that has ended well.
    START_FAILED = "start_failed"
    #: The Python environment that the job describes could not be built on a node.
    ENVIRONMENT_FAILED = "environment_failed"
    #: The supervisor of some rank died while its node lived.
    SUPERVISOR_LOST = "supervisor_lost"
    #: The driver died.
    DRIVER_LOST = "driver_lost"
    #: The head of the Ray cluster died, and the driver with it.
    HEAD_LOST = "head_lost"
    #: Nodes were lost and fewer than `workers.min` could be had again in time, or a node was found to be sick when its
    #: workers failed.
    NODE_LOST = "node_lost"
    #: No step ended for far longer than the job's own history explains, or all ranks wait for each other.
    HANG = "hang"
    #: The workers do not hold the same weights any more, so that no checkpoint of theirs is one of a training.
    DIVERGED = "diverged"
    #: `limits.run_time` passed.
    RUN_TIME_EXCEEDED = "run_time_exceeded"
    #: `limits.budget` was spent.
    BUDGET_SPENT = "budget_spent"
    #: The owner cancelled the job.
    CANCELLED = "cancelled"
    #: The job's array stops jobs early, and others of it do better.
    STOPPED_EARLY = "stopped_early"
    #: The owner paused the job.
    PAUSED = "paused"
    #: The job's machines were taken by a decision of ours.
    EVICTED = "evicted"

    @property
    def is_users(self) -> bool:
        """True when the job's own code caused it, so that it counts against `retry.limit`."""
        return self in (EndReason.EXIT_CODE, EndReason.SIGNAL, EndReason.START_FAILED, EndReason.HANG)

    @property
    def is_final(self) -> bool:
        """True when no further attempt can follow, whatever `retry.limit` says."""
        return self in (
            EndReason.COMPLETED,
            EndReason.CANCELLED,
            EndReason.STOPPED_EARLY,
            EndReason.RUN_TIME_EXCEEDED,
            EndReason.BUDGET_SPENT,
            EndReason.DIVERGED,
            EndReason.ENVIRONMENT_FAILED,
        )
