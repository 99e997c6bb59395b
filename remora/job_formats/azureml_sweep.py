"""Sweeps of Azure ML: an array with the grid of their choices, or with values that are drawn from their search space.

The schema: https://learn.microsoft.com/azure/machine-learning/reference-yaml-job-sweep
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from remora.job_formats.azureml_command import read_command_job
from remora.job_formats.azureml_component import Component, one_job, read_component
from remora.job_formats.azureml_data import OutputNames, Parameter
from remora.job_formats.azureml_early_termination import read_early_termination
from remora.job_formats.field_outcomes import Draft, Fields, scalar
from remora.spec.arrays import MAX_ELEMENTS, MAX_PARAMETERS
from remora.spec.problems import short

_Draw = Callable[[random.Random], float | int | str | bool]


def read_sweep(
    draft: Draft,
    raw: Mapping[Any, Any],
    folder: Path,
    given: Mapping[str, str],
    component: Component | None = None,
) -> OutputNames:
    """Read a sweep as one specification with an array; `component` is that of its trial where it was read already."""
    fields = Fields(draft, {key: value for key, value in raw.items() if key not in ("inputs", "outputs")})
    trial = fields.take("trial")
    if component is None and not (isinstance(trial, Mapping) and "inputs" not in trial):
        component = None if trial is None else read_component(draft, "trial", trial, folder)
        if component is None:
            if trial is None:
                draft.refuse("trial", "missing; a sweep has the command that it tries")
            return {}
    limits = fields.section("limits")
    algorithm, seed = _algorithm(draft, fields)
    names = _array(draft, fields.section("search_space"), limits, algorithm, seed)
    objective = fields.section("objective")
    metric, goal = objective.text("primary_metric"), objective.text("goal")
    if metric:
        draft.leave(
            objective.name("primary_metric"),
            f"`remora arrays show ARRAY` lists the jobs; compare what each reports as {metric[:60]!r}",
        )
    objective.close()
    read_early_termination(draft, fields.take("early_termination"), metric, goal)
    command = {key: value for key, value in fields.items() if key != "type"} | _limits(limits)
    if component is None:
        job = {**(trial or {}), **command, "inputs": raw.get("inputs"), "outputs": raw.get("outputs")}
    else:
        searched = {name: Parameter(name) for name in names}
        inputs = {**(raw.get("inputs") or {}), **given, **searched}
        job = one_job(draft, {**command, "inputs": inputs, "outputs": raw.get("outputs")}, component)
        given = {}
    return read_command_job(draft, job, folder, given, parameters=names)


def _limits(limits: Fields) -> dict[str, Any]:
    """The limits of one trial, as those of a command."""
    each = limits.take("trial_timeout")
    limits.leave("timeout", "an array has no limit of time for all of its jobs; write trial_timeout for each")
    limits.close()
    return {} if each is None else {"limits": {"timeout": each}}


def _algorithm(draft: Draft, fields: Fields) -> tuple[str, int]:
    """The sampling algorithm, and the seed with which values are drawn."""
    raw = fields.take("sampling_algorithm")
    about = Fields(draft, raw if isinstance(raw, Mapping) else {"type": raw}, "sampling_algorithm")
    name = (about.text("type") or "random").lower()
    seed = about.whole("seed", least=0)
    if name not in ("random", "grid", "bayesian"):
        draft.refuse("sampling_algorithm", f"{name[:40]!r} given, expected grid, random or bayesian")
    elif name == "bayesian":
        draft.leave(
            "sampling_algorithm", "values are drawn at random beforehand; no result decides about later ones"
        )
    if (about.text("rule") or "random").lower() != "random":
        draft.leave("sampling_algorithm.rule", "values are drawn independently of each other")
    about.drop("logbase")
    about.close()
    return name, seed or 0


def _array(draft: Draft, space: Fields, limits: Fields, algorithm: str, seed: int) -> tuple[str, ...]:
    """Put the array; returns the names of its parameters."""
    choices: dict[str, list[Any]] = {}
    draws: dict[str, _Draw] = {}
    for name, raw in space.items():
        about = Fields(draft, raw, space.name(name))
        kind = (about.text("type") or "").lower()
        if kind == "choice":
            choices[name] = _choices(draft, about)
            draws[name] = _chooser(choices[name] or [""])
        else:
            draws[name] = _distribution(draft, about, kind)
        about.close()
    total, at_once = limits.whole("max_total_trials"), limits.whole("max_concurrent_trials")
    if not draws:
        draft.refuse("search_space", "missing; a sweep has values to try")
    elif len(draws) > MAX_PARAMETERS:
        draft.refuse("search_space", f"{len(draws)} names, expected at most {MAX_PARAMETERS}")
    elif choices.keys() == draws.keys() and algorithm == "grid":
        _grid(draft, choices, total)
    elif algorithm == "grid":
        draft.refuse("sampling_algorithm", "a grid needs a choice of values for every name of search_space")
    else:
        _drawn(draft, choices, draws, total, seed)
    if at_once is not None and "array" in draft.spec:
        draft.put("array.most_at_once", min(at_once, MAX_ELEMENTS), limits.name("max_concurrent_trials"))
    return tuple(draws)


def _grid(draft: Draft, choices: Mapping[str, list[Any]], total: int | None) -> None:
    size = math.prod(map(len, choices.values()))
    if size > MAX_ELEMENTS:
        draft.refuse(
            "search_space", f"{size} combinations, expected at most {MAX_ELEMENTS}; write fewer values"
        )
        return
    if total is not None and total < size:
        text = f"the array has all {size} combinations; leave values out to have fewer than that"
        draft.leave("limits.max_total_trials", text)
    draft.put("array.grid", dict(choices), "search_space")


def _drawn(
    draft: Draft, choices: Mapping[str, list[Any]], draws: Mapping[str, _Draw], total: int | None, seed: int
) -> None:
    """As many values as trials: all combinations where those are no more, else drawn with a seed."""
    is_finite = choices.keys() == draws.keys()
    size = math.prod(map(len, choices.values())) if is_finite else None
    if size is not None and size <= min(total or MAX_ELEMENTS, MAX_ELEMENTS):
        draft.put("array.grid", dict(choices), "search_space")
        return
    if total is None or total > MAX_ELEMENTS:
        draft.refuse(
            "limits.max_total_trials",
            f"{'missing' if total is None else total}; write how many trials there are, {MAX_ELEMENTS} at most",
        )
        return
    if draft.problems:
        return
    source = random.Random(seed)  # noqa: S311 - nothing is kept secret by it
    drawn: list[dict[str, Any]] = []
    # Two trials with the same values would show nothing.
    seen: set[tuple[Any, ...]] = set()
    for _ in range(100 * total):
        values = {name: draw(source) for name, draw in draws.items()}
        if len(drawn) < total and (key := tuple(values.values())) not in seen:
            seen.add(key)
            drawn.append(values)
        if len(drawn) == total:
            break
    draft.put("array.list", drawn, "search_space", shown=f"{len(drawn)} drawn with the seed {seed}")


def _choices(draft: Draft, about: Fields) -> list[Any]:
    values = about.take("values")
    if not isinstance(values, list) or not values:
        draft.refuse(about.name("values"), f"{short(values)} given, expected a list of values")
        return []
    for value in values:
        if scalar(value) is None:
            text = "expected texts, numbers or booleans; give each a name, and choose in the script"
            draft.refuse(about.name("values"), f"{short(value)} given, {text}")
    # Azure ML writes booleans as Python does, an array as JSON does.
    return [str(value) if isinstance(value, bool) else value for value in values]


def _chooser(values: list[Any]) -> _Draw:
    return lambda source: values[source.randrange(len(values))]


def _distribution(draft: Draft, about: Fields, kind: str) -> _Draw:
    """How a value of this distribution is drawn."""
    bare = kind.removeprefix("q").removeprefix("log")
    if kind == "randint":
        upper = about.whole("upper") or 1
        return lambda source: source.randrange(upper)
    if bare == "uniform":
        first, second = _number(draft, about, "min_value"), _number(draft, about, "max_value")
    elif bare == "normal":
        first, second = _number(draft, about, "mu"), _number(draft, about, "sigma")
    else:
        kinds = "choice, randint, uniform, normal and the forms of these with q and log"
        draft.refuse(about.name("type"), f"{kind[:40]!r} given, expected one of {kinds}")
        return lambda _source: 0
    step = _number(draft, about, "q") if kind.startswith("q") else 0.0
    is_log = "log" in kind
    if is_log and max(abs(first), abs(second)) > 100:
        draft.refuse(
            about.path, "a logarithm beyond 100 is no value of a search; write the logarithms of the limits"
        )

    def draw(source: random.Random) -> float:
        value = source.uniform(first, second) if bare == "uniform" else source.gauss(first, second)
        value = math.exp(min(value, 700.0)) if is_log else value
        value = round(value / step) * step if step else value
        return float(f"{value:.6g}")

    return draw


def _number(draft: Draft, about: Fields, key: str) -> float:
    value = about.take(key)
    if type(value) in (int, float) and abs(value) < 1e15:
        return float(value)
    draft.refuse(about.name(key), f"{short(value)} given, expected a number")
    return 0.0
