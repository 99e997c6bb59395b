"""What every paid millisecond of a node went into: one payer and one cause, from rows alone (pure).

A node is paid for from when its machine was first there until it has ended.  A node is cut where what is known of it
changes; in each cut a job has the part that its workers hold, and what it did with it stands in the phases of its
attempt.  What no worker holds has a payer too: `service.queue.bill`.

Times are integers, milliseconds since 1970, and parts are millionths of a node, so that their product, nanoseconds of a
whole node, is exact: two neighbouring ranges of time sum to what both together are, whenever they are asked for.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from service.queue.ledger import UseRow
from service.queue.rows import NodeRow, PhaseRow, WorkPhase

#: Parts of a whole node.
WHOLE = 1_000_000
#: After all times.
_NEVER = 1 << 62


class Payer(StrEnum):
    """Who pays."""

    JOB = "job"
    PROJECT = "project"
    CLUSTER = "cluster"


class Cause(StrEnum):
    """What a node was paid for."""

    #: Its machine boots and joins.
    PROVISIONING = "provisioning"
    #: A job's command starts, reads its checkpoint, and does its first step.
    STARTING = "starting"
    #: The job's environment is built, or its image fetched.
    PREPARING = "preparing"
    #: It was bought for a job that has not begun on it: others of its nodes are not there yet.
    WAITING = "idle_waiting"
    #: It was in use before, and is kept for what comes next.
    KEPT = "idle_kept"
    #: Bought for no job and not used yet, or the part of it that no job holds beside others.
    UNUSED = "idle_unused"
    #: New steps; or a command that reports no steps runs.
    TRAINING = "training"
    #: The training loop waits for a checkpoint.
    CHECKPOINT = "checkpoint_stall"
    #: Steps that were done before are done again.
    RECOMPUTING = "recomputing"
    #: It takes no more work and has not ended, or a job is being ended on it.
    DRAINING = "draining"
    #: It never became a node, or Ray lost it while its machine ran.
    FAILED = "failed"
    #: What Ray programs do with it is not known.
    PROGRAMS = "ray_programs"


#: Causes of a time in which nothing of a node is held.
IDLE = frozenset({Cause.WAITING, Cause.KEPT, Cause.UNUSED})

_BY_PHASE = {
    WorkPhase.STARTING: Cause.STARTING,
    WorkPhase.PREPARING: Cause.PREPARING,
    WorkPhase.TRAINING: Cause.TRAINING,
    WorkPhase.RECOMPUTING: Cause.RECOMPUTING,
    WorkPhase.CHECKPOINT: Cause.CHECKPOINT,
    WorkPhase.DRAINING: Cause.DRAINING,
}


def to_ms(at: float) -> int:
    """Milliseconds since 1970 of seconds since 1970."""
    return round(at * 1000.0)


def micro_usd(price_per_hour: float) -> int:
    """USD for an hour as millionths of a USD."""
    return round(price_per_hour * 1e6)


@dataclass(frozen=True, kw_only=True)
class Span:
    """One payer and one cause of a part of a node during some time."""

    node_id: str
    payer: Payer
    #: Id of the job, name of the project; empty for the cluster.
    name: str
    #: Of the job or of the one that the node was bought for, as far as one of them is known.
    project: str | None
    cause: Cause
    begins_ms: int
    ends_ms: int
    #: Nanoseconds of a whole node.
    node_ns: int


class Timeline:
    """What one attempt did when."""

    def __init__(self, rows: Iterable[PhaseRow]) -> None:
        ordered = sorted(rows, key=lambda row: (row.began_at, row.number))
        has_steps = any(row.phase in (WorkPhase.TRAINING, WorkPhase.RECOMPUTING) for row in ordered)
        # A command that never reports a step trains from its start, as far as can be known.
        running = Cause.STARTING if has_steps else Cause.TRAINING
        self._at = [to_ms(row.began_at) for row in ordered]
        self._causes = [_BY_PHASE.get(row.phase, running) for row in ordered]
        # Milliseconds of each cause before each phase, so that a range of any length is read at its two ends.
        self._before: dict[Cause, list[int]] = {cause: [0] for cause in set(self._causes)}
        for at, after, cause in zip(self._at, self._at[1:], self._causes, strict=False):
            for one, sums in self._before.items():
                sums.append(sums[-1] + (after - at if one is cause else 0))

    def cut(self, begins_ms: int, ends_ms: int) -> dict[Cause, int]:
        """Milliseconds of each cause between the two times; what was before the first phase has the cause of that."""
        if ends_ms <= begins_ms:
            return {}
        if not self._at:
            return {Cause.TRAINING: ends_ms - begins_ms}
        found = {cause: self._until(cause, ends_ms) - self._until(cause, begins_ms) for cause in self._before}
        return {cause: ms for cause, ms in found.items() if ms}

    def _until(self, cause: Cause, at: int) -> int:
        """Milliseconds of the cause up to then, counted from the first phase."""
        place = max(0, bisect_right(self._at, at) - 1)
        in_last = at - self._at[place] if self._causes[place] is cause else 0
        return self._before[cause][place] + in_last


def spans_of(
    nodes: Iterable[NodeRow],
    uses: Iterable[UseRow],
    phases: Iterable[PhaseRow],
    first_used: Mapping[str, float],
    projects: Mapping[str, str],
    ranges: Sequence[tuple[int, int]],
) -> Iterator[Span]:
    """Who paid for these nodes, and for what, in each of the ranges of time.

    `uses` are those of these nodes in the ranges, `phases` those of the attempts of these uses, `first_used` says since
    when each node has been used at all, and `projects` is the project of each job.  Neighbouring ranges sum to what
    they are together; they are in the order of time, in milliseconds since 1970.  Linear in the rows for one range, and
    in ranges for one row.
    """
    by_node: dict[str, list[UseRow]] = {}
    for use in uses:
        by_node.setdefault(use.node_id, []).append(use)
    by_attempt: dict[tuple[str, int], list[PhaseRow]] = {}
    for row in phases:
        by_attempt.setdefault((row.job_id, row.attempt), []).append(row)
    timelines = {key: Timeline(rows) for key, rows in by_attempt.items()}
    for node in nodes:
        if node.launched_at is None:
            continue
        account = _Node(node, by_node.get(node.id, ()), timelines, first_used.get(node.id), projects)
        yield from account.spans(ranges)


@dataclass(frozen=True)
class _Held:
    """A job holds some of a node."""

    begins_ms: int
    ends_ms: int
    job_id: str
    parts: int
    timeline: Timeline


_UNKNOWN = Timeline(())


class _Node:
    """One node with what is known of its time."""

    def __init__(
        self,
        node: NodeRow,
        uses: Iterable[UseRow],
        timelines: Mapping[tuple[str, int], Timeline],
        first_used: float | None,
        projects: Mapping[str, str],
    ) -> None:
        self._node = node
        self._projects = projects
        self._begins = to_ms(node.launched_at or 0.0)
        self._ends = _at_or_never(node.ended_at)
        self._ready = _at_or_never(node.ready_at)
        self._leaves = _at_or_never(node.leaving_since)
        self._first_used = _at_or_never(first_used)
        #: It never became a node, as is known by now.
        self._is_lost = node.ready_at is None and (node.ended_at is not None or node.is_failure)
        held = [
            _Held(
                to_ms(use.began_at),
                _at_or_never(use.ended_at),
                use.job_id,
                min(WHOLE, max(0, round(use.part * WHOLE))),
                timelines.get((use.job_id, use.attempt), _UNKNOWN),
            )
            for use in uses
        ]
        # By what the rows say and not by when it is asked: who comes first where more is held than there is.
        self._held = sorted(held, key=lambda one: (one.begins_ms, one.job_id, one.ends_ms))
        edges = {self._begins, self._ends, self._ready, self._leaves, self._first_used}
        for one in self._held:
            edges |= {one.begins_ms, one.ends_ms}
        self._edges = sorted(edge for edge in edges if self._begins <= edge <= self._ends)

    def spans(self, ranges: Iterable[tuple[int, int]]) -> Iterator[Span]:
        """Who paid for it in these ranges, which follow each other in time, and for what."""
        open_held: list[_Held] = []
        coming = 0
        for first, last in ranges:
            begins_ms, ends_ms = max(first, self._begins), min(last, self._ends)
            if ends_ms <= begins_ms:
                continue
            inner = self._edges[bisect_right(self._edges, begins_ms) : bisect_left(self._edges, ends_ms)]
            for begins, ends in zip([begins_ms, *inner], [*inner, ends_ms], strict=True):
                while coming < len(self._held) and self._held[coming].begins_ms <= begins:
                    open_held.append(self._held[coming])
                    coming += 1
                open_held = [one for one in open_held if one.ends_ms > begins]
                yield from self._cut(begins, ends, open_held)

    def _cut(self, begins: int, ends: int, held: Sequence[_Held]) -> Iterator[Span]:
        """Who pays for it while nothing of it changes."""
        left = WHOLE
        for one, parts in zip(held, _fitting([one.parts for one in held]), strict=True):
            left -= parts
            for cause, ms in one.timeline.cut(begins, ends).items():
                if parts and ms:
                    project = self._projects.get(one.job_id)
                    yield self._span(begins, ends, (Payer.JOB, one.job_id, project), cause, ms * parts)
        if left:
            payer, cause = self._unheld(begins, is_rest=left < WHOLE)
            yield self._span(begins, ends, payer, cause, (ends - begins) * left)

    def _unheld(self, begins: int, *, is_rest: bool) -> tuple[tuple[Payer, str, str | None], Cause]:
        """Who pays for what no worker holds from then on, and for what."""
        node = self._node
        bought_for = None if node.project is not None else node.bought_for
        project = node.project or self._projects.get(bought_for or "")
        of_cluster: tuple[Payer, str, str | None] = (Payer.CLUSTER, "", None)
        of_project = of_cluster if project is None else (Payer.PROJECT, project, project)
        if self._is_lost:
            return of_cluster, Cause.FAILED
        if begins < self._ready:
            of_job = of_cluster if bought_for is None else (Payer.JOB, bought_for, project)
            return (of_project if node.project is not None else of_job), Cause.PROVISIONING
        if node.project is not None:
            return of_project, Cause.PROGRAMS
        if begins >= self._leaves:
            is_failure = node.is_failure or node.is_cut_off
            return of_project, Cause.FAILED if is_failure else Cause.DRAINING
        if is_rest:
            return of_project, Cause.UNUSED
        if begins >= self._first_used:
            return of_project, Cause.KEPT
        return of_project, Cause.UNUSED if bought_for is None else Cause.WAITING

    def _span(
        self, begins: int, ends: int, payer: tuple[Payer, str, str | None], cause: Cause, node_ns: int
    ) -> Span:
        who, name, project = payer
        return Span(
            node_id=self._node.id,
            payer=who,
            name=name,
            project=project,
            cause=cause,
            begins_ms=begins,
            ends_ms=ends,
            node_ns=node_ns,
        )


def _at_or_never(at: float | None) -> int:
    return _NEVER if at is None else to_ms(at)


def _fitting(parts: Sequence[int]) -> list[int]:
    """The parts, made smaller alike where they are more than a whole node."""
    total = sum(parts)
    if total <= WHOLE:
        return list(parts)
    ends, held = [0], 0
    for one in parts:
        held += one
        ends.append(held * WHOLE // total)
    return [after - before for before, after in itertools.pairwise(ends)]
