"""Records what an attempt does with the nodes that it holds, as phases that follow each other in time (pure)."""

from __future__ import annotations

from dataclasses import replace

from service.queue.rows import AttemptRow, PhaseRow, WorkPhase

#: Seconds of stalls that are collected before they become a phase, so that short checkpoints make few rows.
STALL_S = 1.0
#: Phases of one attempt; what it does after that counts for the newest one until it is drained.
MOST_PHASES = 100_000
#: Phases in which a training loop runs, which may wait.
_AT_WORK = frozenset({WorkPhase.RUNNING, WorkPhase.TRAINING, WorkPhase.RECOMPUTING})
Marked = tuple[AttemptRow, tuple[PhaseRow, ...]]


def mark(attempt: AttemptRow, phase: WorkPhase, at: float) -> Marked:
    """The attempt is in a phase from `at` on, in seconds since 1970, or from the beginning of the newest one.

    It writes a row, `MOST_PHASES` of one attempt at most and one more when that is drained.
    """
    is_full = attempt.phase_number >= MOST_PHASES and phase is not WorkPhase.DRAINING
    if attempt.phase is phase or is_full:
        return attempt, ()
    began_at = at if attempt.phase_at is None else max(at, attempt.phase_at)
    number = attempt.phase_number + 1
    row = PhaseRow(
        job_id=attempt.job_id, attempt=attempt.attempt, number=number, began_at=began_at, phase=phase
    )
    return replace(attempt, phase=phase, phase_at=began_at, phase_number=number), (row,)


def mark_past(attempt: AttemptRow, phase: WorkPhase, lasted_s: float, at: float) -> Marked:
    """While its loop was at work, the attempt was in another phase for some seconds until `at`, and is so no more."""
    before = attempt.phase
    # There is a place for both rows or for none of them.
    if before not in _AT_WORK or before is None or attempt.phase_number + 2 > MOST_PHASES:
        return attempt, ()
    during, rows = mark(attempt, phase, at - lasted_s)
    after, more = mark(during, before, at)
    return after, (*rows, *more)


def mark_stall(attempt: AttemptRow, stalled_s: float, at: float) -> Marked:
    """Its training loop has waited for checkpoints for `stalled_s` in all, and not for the last of them after `at`."""
    more_s = stalled_s - attempt.stalled_s
    if more_s < STALL_S:
        return attempt, ()
    attempt, rows = mark_past(attempt, WorkPhase.CHECKPOINT, more_s, at)
    return replace(attempt, stalled_s=stalled_s), rows
