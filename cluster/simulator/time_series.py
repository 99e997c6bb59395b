"""Time series of a replay in even steps: how many nodes there were, and how many jobs waited."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cluster.policies.offerings import CapacityType
from cluster.simulator.replay import Replay

#: Steps of a time series.
STEPS = 240


@dataclass(frozen=True, kw_only=True)
class TimeSeries:
    """Means over each step; the first step begins when the trace does."""

    step_s: float
    spot_nodes: tuple[float, ...]
    on_demand_nodes: tuple[float, ...]
    waiting_jobs: tuple[float, ...]


def time_series_of(replay: Replay, until_s: float) -> TimeSeries:
    """The time series of a replay that has run, until a time that may be after its end."""
    step_s = max(until_s, 1.0) / STEPS
    lives: dict[CapacityType, list[tuple[float, float]]] = {one: [] for one in CapacityType}
    for node in replay.fleet.every:
        end_s = replay.now if node.ended_s is None else node.ended_s
        lives[node.stock.offering.capacity].append((node.created_s, end_s))
    waits = [
        (sim.job.at_s, replay.now if sim.started_s is None else sim.started_s)
        for sim in (*replay.work.ended, *replay.work.given_up, *replay.work.unfinished())
    ]
    return TimeSeries(
        step_s=step_s,
        spot_nodes=means(lives[CapacityType.SPOT], step_s),
        on_demand_nodes=means(lives[CapacityType.ON_DEMAND], step_s),
        waiting_jobs=means(waits, step_s),
    )


def means(spans: Iterable[tuple[float, float]], step_s: float) -> tuple[float, ...]:
    """How many of the spans cover each step, on average over the step."""
    partly = [0.0] * (STEPS + 1)
    changes = [0] * (STEPS + 2)
    for begin, end in spans:
        first, last = min(STEPS, int(begin / step_s)), min(STEPS, int(end / step_s))
        if first == last:
            partly[first] += end - begin
            continue
        partly[first] += (first + 1) * step_s - begin
        partly[last] += end - last * step_s
        changes[first + 1] += 1
        changes[last] -= 1
    found = []
    whole = 0
    for at in range(STEPS):
        whole += changes[at]
        found.append(round(whole + partly[at] / step_s, 4))
    return tuple(found)
