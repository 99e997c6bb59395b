"""Goodput: which part of paid time trained, and what the rest cost (pure).

The definitions are those of ML Productivity Goodput (Google, "Goodput metric as measure of ML productivity", 2024; for
fleets arXiv 2502.06982): scheduling goodput is the part of the time in which all that a job needs is there, runtime
goodput the part of that time in which progress is made that is kept, program goodput the part of what the hardware
could do that the program does; goodput is their product.  Time that repeats steps stands for the time that was lost.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from service.queue.accounts import Amount, total_of
from service.queue.cost_causes import IDLE, Cause, to_ms
from service.queue.ledger import UseRow

#: Causes of the time in which a job holds a part of a node.
HELD = frozenset(
    {Cause.STARTING, Cause.PREPARING, Cause.TRAINING, Cause.CHECKPOINT, Cause.RECOMPUTING, Cause.DRAINING}
)
#: Of the rates of a job, the part that is not exceeded by what counts as the best sustained one.
_SUSTAINED = 0.9
#: Rates from which on a best one can be named.
_ENOUGH = 5


@dataclass(frozen=True, kw_only=True)
class Goodput:
    """Each from 0 to 1; None: not known."""

    scheduling: float | None
    runtime: float | None
    program: float | None

    @property
    def overall(self) -> float | None:
        """The product of what is known; None when nothing is."""
        known = [one for one in (self.scheduling, self.runtime, self.program) if one is not None]
        return math.prod(known) if known else None


@dataclass(frozen=True, kw_only=True)
class Loss:
    """What one cause cost, and what would have saved some of it."""

    cause: Cause
    amount: Amount
    #: Part of it that would have been saved.
    saved: float
    #: By what; a sentence without a full stop that goes on from the figure.
    by: str


@dataclass(frozen=True, kw_only=True)
class Progressed:
    """A step that a job had done."""

    step: int
    #: Seconds since 1970.
    at: float
    attempt: int
    world_size: int


def runtime_goodput(by_cause: Mapping[Cause, Amount]) -> float | None:
    """Of the time in which nodes were held, the part that made new steps."""
    held = sum(one.node_ns for cause, one in by_cause.items() if cause in HELD)
    return _part(by_cause.get(Cause.TRAINING, Amount()).node_ns, held)


def fleet_scheduling_goodput(by_cause: Mapping[Cause, Amount]) -> float | None:
    """Of all paid time, the part in which jobs or Ray programs held it."""
    held = sum(one.node_ns for cause, one in by_cause.items() if cause in HELD or cause is Cause.PROGRAMS)
    return _part(held, sum(one.node_ns for one in by_cause.values()))


def job_scheduling_goodput(
    uses: Iterable[UseRow], min_workers: int, begins_at: float, ends_at: float
) -> float | None:
    """Of the time between the two, the part in which the job had its smallest worker group; seconds since 1970."""
    begins_ms, ends_ms = to_ms(begins_at), to_ms(ends_at)
    changes: list[tuple[int, int]] = []
    for use in uses:
        first = max(begins_ms, to_ms(use.began_at))
        last = ends_ms if use.ended_at is None else min(ends_ms, to_ms(use.ended_at))
        if last > first:
            changes += [(first, use.workers), (last, -use.workers)]
    workers, since, whole = 0, begins_ms, 0
    for at, change in sorted(changes):
        whole += at - since if workers >= min_workers else 0
        workers, since = workers + change, at
    return _part(whole, ends_ms - begins_ms)


def program_goodput(points: Sequence[Progressed]) -> float | None:
    """The steps that a worker does in a second, on average, beside the best rate that it sustained.

    A step is the same work with any number of workers.  What the hardware could do at best is not known here: the best
    that the job itself has done stands for it, the rate that nine tenths of all parts of its training do not exceed.
    """
    rates: list[tuple[float, float]] = []
    for before, after in itertools.pairwise(points):
        steps, worker_s = after.step - before.step, (after.at - before.at) * after.world_size
        is_one_stretch = before.attempt == after.attempt and before.world_size == after.world_size
        if is_one_stretch and steps > 0 and worker_s > 0:
            rates.append((steps / worker_s, worker_s))
    if len(rates) < _ENOUGH:
        return None
    ordered = sorted(rate for rate, _ in rates)
    best = ordered[min(len(ordered) - 1, int(_SUSTAINED * len(ordered)))]
    done = sum(rate * worker_s for rate, worker_s in rates)
    return min(1.0, done / (best * sum(worker_s for _, worker_s in rates)))


def losses(by_cause: Mapping[Cause, Amount]) -> list[Loss]:
    """What each cause but training cost, the dearest first, with what would have saved some of it."""
    found = []
    for cause, amount in by_cause.items():
        if cause in (Cause.TRAINING, Cause.PROGRAMS) or not amount.node_ns:
            continue
        saved, by = _saving(cause, by_cause)
        found.append(Loss(cause=cause, amount=amount, saved=saved, by=by))
    return sorted(found, key=lambda one: (-one.amount.money, -one.amount.node_ns, one.cause))


def _saving(cause: Cause, by_cause: Mapping[Cause, Amount]) -> tuple[float, str]:
    """The part of a cause's cost that would have been saved, and by what."""
    match cause:
        case Cause.RECOMPUTING | Cause.CHECKPOINT:
            return _interval(by_cause)
        case Cause.PROVISIONING | Cause.WAITING:
            return 1.0, "with nodes that stand ready (`warm_nodes` of the pool)"
        case Cause.PREPARING:
            return 1.0, "with the job's packages in an image that the nodes have"
        case Cause.STARTING:
            return 0.5, "with half as many starts: fewer losses (another pool, on demand), or faster ones"
        case Cause.KEPT:
            return 0.5, "if the pool kept unused nodes half as long (`idle_s`)"
        case Cause.UNUSED:
            return 1.0, "with nodes of a size that its workers fill"
        case Cause.FAILED:
            return 1.0, "with another size, zone or pool, whose machines work"
    return 0.5, "if nodes were left in half the time (`drain_s` of the pool)"


def _interval(by_cause: Mapping[Cause, Amount]) -> tuple[float, str]:
    """Of checkpoints and repeated steps together: another interval between checkpoints.

    With n times the interval, stalls cost 1/n and repeated steps n times as much, so that n = sqrt(stalls / repeated)
    costs least (the argument of Young, 1974), twice their geometric mean.
    """
    stalls = by_cause.get(Cause.CHECKPOINT, Amount()).node_ns
    repeated = by_cause.get(Cause.RECOMPUTING, Amount()).node_ns
    if not stalls:
        return 0.5, "with a checkpoint twice as often"
    if not repeated:
        return 0.5, "with a checkpoint half as often"
    times = math.sqrt(stalls / repeated)
    saved = 1.0 - 2.0 * math.sqrt(stalls * repeated) / (stalls + repeated)
    if saved < 0.01:
        return 0.0, "as the interval between checkpoints is the best one already"
    return saved, f"with {times:.2g} times the interval between checkpoints"


def sentence(by_cause: Mapping[Cause, Amount]) -> str:
    """What was lost most, and what would have saved some of it, with figures."""
    whole = total_of(by_cause.values())
    if not whole.node_ns:
        return "No node was paid for in this time."
    found = losses(by_cause)
    trained = by_cause.get(Cause.TRAINING, Amount())
    is_free = not whole.money
    share = trained.node_ns / whole.node_ns if is_free else trained.money / whole.money
    said = f"{share:.0%} of {_figure(whole, 1.0, is_free)} trained"
    if not found:
        return f"{said}."
    worst = found[0]
    words = worst.cause.value.replace("_", " ")
    cost = _figure(worst.amount, 1.0, is_free)
    if worst.saved <= 0.0:
        return f"{said}; {words} cost the most besides, {cost}, {worst.by}."
    if not _is_worth(worst, is_free):
        return f"{said}; {words} cost the most besides, {cost}."
    could = _figure(worst.amount, worst.saved, is_free)
    return (
        f"{said}; {words} cost the most besides, {cost}, of which {could} would have been saved {worst.by}."
    )


def _is_worth(loss: Loss, is_free: bool) -> bool:
    """What would have been saved is a cent, or a minute of a free node, so that it is worth a change."""
    least, whole = (60.0, loss.amount.node_s) if is_free else (0.01, loss.amount.usd)
    return loss.saved * whole >= least


def _figure(amount: Amount, part: float, is_free: bool) -> str:
    if is_free and (node_s := part * amount.node_s) < 360.0:
        return f"{node_s:.3g} node seconds"
    if is_free:
        return f"{part * amount.node_s / 3600.0:.2f} node hours"
    return usd_text(part * amount.usd)


def usd_text(usd: float) -> str:
    """An amount with cents; below ten of them with two significant digits, so that little is not shown as nothing."""
    if not 0.0 < abs(usd) < 0.1:
        return f"{usd:.2f} USD"
    decimals = max(2, 1 - math.floor(math.log10(abs(usd))))
    return f"{usd:.{decimals}f} USD"


def _part(some: int, whole: int) -> float | None:
    return some / whole if whole > 0 else None


def idle_of(by_cause: Mapping[Cause, Amount]) -> Amount:
    """What was paid for while no job held it, of nodes that were ready."""
    return total_of(one for cause, one in by_cause.items() if cause in IDLE)
