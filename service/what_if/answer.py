"""Replays the trace of a question under each of its policies, and compares them (pure)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from cluster.policies.policies import Policies, PoolPolicy
from cluster.scheduling.formatting import count
from cluster.scheduling.installed_rules import FailureReport
from cluster.scheduling.launch_checks import Rule
from cluster.scheduling.planner import plan
from cluster.simulator.assumptions import Assumptions
from cluster.simulator.fleet import Fleet
from cluster.simulator.plot import plot
from cluster.simulator.replay import Progress, Replay
from cluster.simulator.report import ReplayReport, as_numbers, report_of
from cluster.simulator.time_series import time_series_of
from cluster.traces.trace import Trace
from remora.states import NodeState
from service.queue.retry import delay_after_loss
from service.what_if.question import Question

#: Loads site rules by name; failures are reported to the callback: `cluster.scheduling.installed_rules.load_rules`.
Load = Callable[[Iterable[str], FailureReport], Sequence[tuple[str, Rule]]]


def replayed(
    trace: Trace,
    policies: Policies,
    assumptions: Assumptions,
    progress: Progress | None = None,
    *,
    rules: Sequence[tuple[str, Rule]] = (),
) -> Replay:
    """The trace under the policies, decided by the functions that the service itself calls.

    `rules` are those that the policies name, in their order.
    """
    planner = partial(plan, rules=rules, explains_waits=False)
    replay = Replay(trace, policies, planner, backoff_in_a_replay, assumptions)
    replay.run(progress)
    return replay


def backoff_in_a_replay(losses: int) -> float | None:
    """Seconds to the next attempt of a job; it trains between two losses, so none of them follows another."""
    return delay_after_loss(losses, streak=1)


def left_out(policy: str, report: ReplayReport, fleet: Fleet) -> str | None:
    """A warning that the figures under this policy are not of all jobs; None when they are."""
    if not report.failed:
        return None
    never, broken = report.never_ran, report.failed - report.never_ran
    parts = [f"{never} of {report.jobs} jobs never ran"] if never else []
    if broken:
        parts.append(f"{broken} of {report.jobs} jobs began and failed")
    useless = [node for node in fleet.every if node.state is NodeState.FAILED]
    cost = "so its cost is less"
    if useless:
        usd = sum(node.cost for node in useless)
        cost = f"{usd:.2f} USD of its cost are of {count(len(useless), 'node')} that never joined"
    return f"{' and '.join(parts)} under {policy}: its waits and times are of the others alone, and {cost}"


def too_hasty(policy: str, pools: Mapping[str, PoolPolicy], provisioning_s: float) -> Iterator[str]:
    """Warnings of pools that give nodes up before the trace's nodes can have joined."""
    for name, pool in pools.items():
        if pool.join_timeout_s <= provisioning_s:
            yield (
                f"{policy}: pool {name!r} gives a node up that has not joined within {pool.join_timeout_s:g} s"
                f" (join_timeout_s), and nodes of the trace need {provisioning_s:g} s (provisioning_s)"
            )


def answer(question: Question, progress: Progress, load: Load) -> dict[str, Any]:
    """Reports, courses and the picture; equal questions have equal answers.

    The notes say of each site rule that was passed over why it first was, as the service's events do.
    """
    assumptions = Assumptions(seed=question.seed, look_s=question.look_s)
    replays: dict[str, Replay] = {}
    passed_over: dict[tuple[str, str], str] = {}
    for name, policies in question.policies.items():
        begun = len(replays)

        def report(part: float, begun: int = begun) -> None:
            progress((begun + part) / len(question.policies))

        def hear(rule: str, why: str, policy: str = name) -> None:
            passed_over.setdefault((policy, rule), why)

        rules = load(policies.rules, hear)
        replays[name] = replayed(question.trace, policies, assumptions, report, rules=rules)
    until_s = max(replay.now for replay in replays.values())
    series_by_name = {name: time_series_of(replay, until_s) for name, replay in replays.items()}
    reports = {name: report_of(replay) for name, replay in replays.items()}
    return {
        "reports": [{"policy": name, **as_numbers(report)} for name, report in reports.items()],
        "courses": {name: asdict(series) for name, series in series_by_name.items()},
        "plot": plot(series_by_name),
        "notes": [
            *question.trace.notes,
            *(
                said
                for name, policies in question.policies.items()
                for said in too_hasty(name, policies.pools, question.trace.provisioning_s)
            ),
            *(
                said
                for name, report in reports.items()
                if (said := left_out(name, report, replays[name].fleet)) is not None
            ),
            *(f"{name}: the rule {rule} is passed over: {why}" for (name, rule), why in passed_over.items()),
        ],
    }
