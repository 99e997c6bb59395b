"""Which rank of a new group gets what from which other one, so that all hold the same state; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class WorkerState:
    """What a worker brings into a new group."""

    #: Steps done; -1 without any state.
    step: int
    #: The state is the one that the script began with, and not of a group or a checkpoint.
    is_fresh: bool
    #: Of the settings and the shapes of the parameters.
    fingerprint: int
    #: Of what decides the bits that it computes; 0 where they may differ.
    hardware: int = 0
    #: It went back to a snapshot, and has done no step since.
    is_rolled_back: bool = False
    #: How far it is in evaluations of the step that it has done: 0 outside of the step, then 1, and 2 more for each
    #: that it has begun, less 1 while it has no result of that.
    evaluation: int = 0


@dataclass(frozen=True)
class SyncPlan:
    """How all workers come to the same state."""

    #: Steps done by the most advanced workers.
    step: int
    #: The first of them.
    root: int
    #: Ranks that take part in the newest step and still lack its result.
    behind: tuple[int, ...]
    #: Ranks that need the whole state.
    joining: tuple[int, ...]


class WorkersDiffer(ValueError):
    """The workers of one group do not run the same training."""


def evaluators(states: Sequence[WorkerState], behind: Sequence[int]) -> tuple[int, ...] | None:
    """Ranks that evaluate in the step that is done, where others have joined after it; None: all do."""
    inside = tuple(rank for rank, one in enumerate(states) if one.evaluation or rank in behind)
    return None if not any(one.evaluation for one in states) or len(inside) == len(states) else inside


def plan_sync(states: Sequence[WorkerState]) -> SyncPlan:
    """Compare the states of all ranks.

    Raises WorkersDiffer when scripts or settings differ, and when no worker has a state.
    """
    different = [n for n, one in enumerate(states) if one.fingerprint != states[0].fingerprint]
    if different:
        raise WorkersDiffer(
            f"rank {different[0]} runs another model or other settings of Loop than rank 0: "
            "start all workers with the same script and arguments"
        )
    step = max(one.step for one in states)
    if step < 0:
        raise WorkersDiffer("no worker of the new group holds the training state: resume from a checkpoint")
    able = [rank for rank, one in enumerate(states) if one.step == step]
    trained = [rank for rank in able if not states[rank].is_fresh]
    root = (trained or able)[0]
    joining = [
        rank
        for rank, one in enumerate(states)
        if one.step < 0 or (one.is_fresh and rank != root) or (one.is_rolled_back and one.step < step)
    ]
    behind = [rank for rank, one in enumerate(states) if one.step < step and rank not in joining]
    if any(states[rank].step < step - 1 for rank in behind):
        raise WorkersDiffer(
            f"the workers stand at steps {sorted({one.step for one in states})}, more than one step apart: "
            "resume all of them from the same checkpoint"
        )
    return SyncPlan(step, root, tuple(behind), tuple(joining))
