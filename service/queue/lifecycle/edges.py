"""The transitions of jobs, attempts and nodes, and which observation causes each (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from remora.states import AttemptState, JobState, NodeState

StateT = TypeVar("StateT", JobState, AttemptState, NodeState)


JOB_EDGES: Mapping[tuple[JobState, JobState], str] = {
    (JobState.QUEUED, JobState.ADMITTED): "its smallest worker group fits: the dispatch loop made an attempt",
    (
        JobState.QUEUED,
        JobState.FAILED,
    ): "it waited longer than `limits.wait_time`, has spent `limits.budget`, or a job of its `after` did not end as"
    " wanted",
    (JobState.QUEUED, JobState.CANCELLED): "its owner cancelled it while no attempt existed",
    (
        JobState.QUEUED,
        JobState.PAUSED,
    ): "its owner paused it, or it waits for another attempt and the cluster's budget reached its last step",
    (JobState.ADMITTED, JobState.RUNNING): "the driver reported its first worker group",
    (JobState.ADMITTED, JobState.QUEUED): "the attempt ended before it trained and another one follows",
    (
        JobState.ADMITTED,
        JobState.PAUSED,
    ): "the attempt ended before it trained, as its owner paused it or the cluster's budget reached its last step",
    (
        JobState.ADMITTED,
        JobState.SUCCEEDED,
    ): "every rank returned 0 before the driver reported a worker group",
    (JobState.ADMITTED, JobState.FAILED): "the attempt ended before it trained and none follows",
    (JobState.ADMITTED, JobState.CANCELLED): "the attempt ended after its owner had cancelled",
    (JobState.RUNNING, JobState.QUEUED): "the attempt ended and another one follows",
    (
        JobState.RUNNING,
        JobState.PAUSED,
    ): "the attempt ended at a checkpoint, as its owner paused it or the cluster's budget reached its last step",
    (JobState.RUNNING, JobState.SUCCEEDED): "every rank returned 0",
    (JobState.RUNNING, JobState.FAILED): "the attempt ended and none follows",
    (
        JobState.RUNNING,
        JobState.CANCELLED,
    ): "the attempt ended after its owner had cancelled, or its array had stopped it early",
    (
        JobState.PAUSED,
        JobState.QUEUED,
    ): "its owner resumed it, or the budget allows it again: a new day or month began, or an operator raised it",
    (JobState.PAUSED, JobState.FAILED): "a job of its `after` did not end as wanted",
    (JobState.PAUSED, JobState.CANCELLED): "its owner cancelled it",
}


ATTEMPT_EDGES: Mapping[tuple[AttemptState, AttemptState], str] = {
    (AttemptState.STARTING, AttemptState.RUNNING): "the driver reported a worker group",
    (AttemptState.STARTING, AttemptState.DRAINING): "it was asked to stop before it trained",
    (AttemptState.STARTING, AttemptState.ENDED): "the driver ended, or died, before it trained",
    (AttemptState.RUNNING, AttemptState.STARTING): "workers were lost and the driver gathers a new group",
    (AttemptState.RUNNING, AttemptState.DRAINING): "it was asked to stop",
    (AttemptState.RUNNING, AttemptState.ENDED): "the driver ended or died",
    (
        AttemptState.DRAINING,
        AttemptState.ENDED,
    ): "the driver ended or died, or the grace was over and it was killed",
}


NODE_EDGES: Mapping[tuple[NodeState, NodeState], str] = {
    (NodeState.REQUESTED, NodeState.LAUNCHED): "the provider accepted it",
    (NodeState.REQUESTED, NodeState.TERMINATING): "the provider refused it, or it is not wanted any more",
    (NodeState.LAUNCHED, NodeState.JOINED): "it is a living member of the Ray cluster",
    (
        NodeState.LAUNCHED,
        NodeState.TERMINATING,
    ): "its machine died, it never joined, or it is not wanted any more",
    (NodeState.JOINED, NodeState.READY): (
        "Ray announces its resources and it does not drain, and it has passed its preflight where nodes have one"
    ),
    (NodeState.JOINED, NodeState.DRAINING): "Ray drains it",
    (NodeState.JOINED, NodeState.TERMINATING): "its machine died or it left the Ray cluster",
    (NodeState.READY, NodeState.DRAINING): "Ray drains it",
    (
        NodeState.READY,
        NodeState.TERMINATING,
    ): "its machine died, it left the Ray cluster, or it is not wanted any more",
    (
        NodeState.DRAINING,
        NodeState.TERMINATING,
    ): "its machine died, it left the Ray cluster, or it is not wanted any more",
    (NodeState.TERMINATING, NodeState.GONE): "the provider no longer lists it",
    (
        NodeState.TERMINATING,
        NodeState.FAILED,
    ): "the provider no longer lists it and it ended before it was of use",
}


class TransitionError(Exception):
    """A transition was requested that no table allows; the store's transaction is rolled back."""


def checked(edges: Mapping[tuple[StateT, StateT], str], old: StateT, new: StateT) -> StateT:
    """`new`.  Raises TransitionError when no edge leads there from `old`."""
    if (old, new) not in edges:
        raise TransitionError(f"nothing leads from {old.value} to {new.value}")
    return new
