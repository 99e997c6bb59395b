"""Policies by which a sweep of Azure ML ends trials early, as `array.stop_early`.

The schema: https://learn.microsoft.com/azure/machine-learning/reference-yaml-job-sweep#early-termination
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from remora.job_formats.field_outcomes import Draft, Fields
from remora.spec.problems import short

_POLICIES = {"bandit": "bandit", "median_stopping": "median", "truncation_selection": "truncation"}
_MODES = {"minimize": "min", "maximize": "max"}


def read_early_termination(draft: Draft, raw: Any, metric: str | None, goal: str | None) -> None:
    """Put the policy, where there is one; `metric` and `goal` are those of the sweep's objective."""
    if raw is None:
        return
    about = Fields(draft, raw, "early_termination")
    name = (about.text("type") or "").lower()
    every, delay = about.whole("evaluation_interval"), about.whole("delay_evaluation", least=0)
    rule: dict[str, Any] = {"metric": metric, "mode": _MODES.get((goal or "").lower())}
    if name not in _POLICIES:
        expected = " or ".join(_POLICIES)
        draft.refuse(about.name("type"), f"{name[:40]!r} given, expected {expected}")
        return
    if not metric or rule["mode"] is None:
        draft.refuse("objective", "early_termination needs primary_metric, and goal: minimize or maximize")
        return
    rule |= {"policy": _POLICIES[name], "every": every or 1, "delay": delay or 0}
    if name == "bandit":
        rule |= _slack(draft, about)
    elif name == "truncation_selection":
        rule["percent"] = about.whole("truncation_percentage")
        if rule["percent"] is None or rule["percent"] > 99:
            draft.refuse(about.name("truncation_percentage"), "expected a whole number from 1 to 99")
        if about.take("exclude_finished_jobs") not in (None, False):
            draft.leave(about.name("exclude_finished_jobs"), "trials that have ended are compared with, too")
    about.close()
    if "array" in draft.spec and not draft.problems:
        shown = f"by what the script reports as {metric[:60]!r} with remora.training.report"
        draft.put("array.stop_early", rule, about.path, shown=shown)


def _slack(draft: Draft, about: Fields) -> Mapping[str, float]:
    """The one slack that is given."""
    given = {
        key: value for key in ("slack_factor", "slack_amount") if (value := about.take(key)) not in (None, 0)
    }
    for key, value in given.items():
        if type(value) not in (int, float) or not 0 < value < 1e12:
            draft.refuse(about.name(key), f"{short(value)} given, expected a number above 0")
    if len(given) != 1:
        draft.refuse(about.path, "a bandit has either a slack_factor or a slack_amount")
    return given
