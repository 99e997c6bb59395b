"""Finds pairs of values in well-formed policies that contradict each other, with a message for each (pure)."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from cluster.policies.cron_fields import (
    SPAN_YEARS,
    calendar,
    dates_of,
    first_of,
    first_year,
    is_endless,
    windows_of,
)
from cluster.policies.policies import (
    AT_PLACE,
    BudgetStep,
    CapacityRule,
    Policies,
    PoolPolicy,
    Schedule,
    Window,
)
from cluster.policies.policy_problems import Conflict, Path

#: Keys of a pool that mean something under one capacity rule only.
_OWN_KEYS: Mapping[str, CapacityRule] = {
    "patience_s": CapacityRule.PREFER_SPOT,
    "return_to_spot_s": CapacityRule.PREFER_SPOT,
    "on_demand_core": CapacityRule.MIXED,
}
#: Added to a value that no line says.
DEFAULT = " (its default)"
#: Windows of all pools: each pair of a pool's schedules is held against each other, minute by minute of four years.
MAX_WINDOWS = 512
_LIMITS = ("min_nodes", "max_nodes", "warm_nodes")


def conflicts(policies: Policies) -> Iterator[Conflict]:
    """Every pair of values that contradict each other, independent of the catalogue."""
    pools = policies.pools.values()
    if (too_many := _too_many(pools)) is not None:
        yield Conflict((("pools",),), too_many)
        return
    year = first_year(pools)
    for name, pool in policies.pools.items():
        path = ("pools", name)
        yield from _limits(path, pool)
        yield from _doubled(path, pool)
        yield from _places(path, pool)
        yield from _idle_keys(path, pool)
        yield from _schedules(path, pool, year)
        yield from _maintenance(path, pool.maintenance, year)
    yield from _money(policies)
    yield from _steps(policies)
    yield from _twice(("rules",), policies.rules)
    yield from _ray_programs(policies)
    yield from _clusters(policies)


def _too_many(pools: Collection[PoolPolicy]) -> str | None:
    """What of all windows is more than can be compared."""
    windows = sum(len(windows_of(pool)) for pool in pools)
    if windows > MAX_WINDOWS:
        return f"schedules and maintenance have {windows} windows in all; write at most {MAX_WINDOWS}"
    years = {day.year for day in dates_of(pools)}
    if years and max(years) - min(years) >= SPAN_YEARS:
        return (
            f"dates of windows go from {min(years)} to {max(years)}; write those of {SPAN_YEARS} years at most,"
            " and leave out days that are over"
        )
    return None


def _clusters(policies: Policies) -> Iterator[Conflict]:
    """Projects whose jobs could never have a node."""
    known = set(policies.clusters)
    for name, project in policies.projects.items():
        if project.cluster not in known:
            message = f"no pool is in the cluster {project.cluster!r}; the clusters are {', '.join(policies.clusters)}"
            yield Conflict((("projects", name, "cluster"),), message)


def _places(path: Path, pool: PoolPolicy) -> Iterator[Conflict]:
    """A pool has its nodes in one place: a job's workers in one pool are near each other."""
    places = sorted({size.partition(AT_PLACE)[2] or "the first place" for size in pool.sizes})
    if len(places) > 1:
        message = (
            f"its sizes are of {' and '.join(places)}; make a pool for each place, and name it with place"
        )
        yield Conflict(((*path, "sizes"),), message)


def _ray_programs(policies: Policies) -> Iterator[Conflict]:
    """Pools that are not there, that are of another cluster, or named twice."""
    if policies.ray_programs is None:
        return
    path = ("ray_programs", "pools")
    project = policies.ray_programs.project
    cluster = policies.cluster_of(project)
    yield from _twice(path, policies.ray_programs.pools)
    for at, pool in enumerate(policies.ray_programs.pools):
        if pool not in policies.pools:
            known = ", ".join(policies.pools) or "none"
            yield Conflict(((*path, str(at)),), f"there is no pool {pool!r}; the pools are {known}")
        elif (own := policies.pools[pool].cluster) != cluster:
            message = (
                f"the pool {pool!r} is in the cluster {own!r}, and the project {project!r} in {cluster!r}"
            )
            yield Conflict(((*path, str(at)), ("pools", pool, "cluster")), message)


@dataclass(frozen=True)
class _Limit:
    """A number of nodes, and where it stands."""

    path: Path
    value: int
    #: No line says it.
    is_default: bool = False

    @property
    def words(self) -> str:
        """`max_nodes is 10 (its default)`."""
        return f"{self.path[-1]} is {self.value}{DEFAULT if self.is_default else ''}"


def _limit(path: Path, one: PoolPolicy | Schedule, key: str) -> _Limit:
    return _Limit((*path, key), getattr(one, key), key not in one.model_fields_set)


def _above(low: _Limit, high: _Limit, said: str = "") -> Iterator[Conflict]:
    """A conflict when the first number is above the second."""
    if low.value > high.value:
        message = f"{low.words} and {high.words}{said}; {low.path[-1]} must not be above {high.path[-1]}"
        yield Conflict((low.path, high.path), message)


def _limits(path: Path, pool: PoolPolicy) -> Iterator[Conflict]:
    most = _limit(path, pool, "max_nodes")
    for key in ("min_nodes", "warm_nodes", *_core(pool)):
        yield from _above(_limit(path, pool, key), most)


def _core(pool: PoolPolicy) -> tuple[str, ...]:
    """The key of a core that the document names."""
    is_named = pool.capacity is CapacityRule.MIXED and "on_demand_core" in pool.model_fields_set
    return ("on_demand_core",) if is_named else ()


def _doubled(path: Path, pool: PoolPolicy) -> Iterator[Conflict]:
    yield from _twice((*path, "sizes"), pool.sizes)
    yield from _twice((*path, "zones"), pool.zones)


def _twice(path: Path, words: Sequence[str]) -> Iterator[Conflict]:
    for number, word in enumerate(words):
        if word in words[:number]:
            paths = ((*path, str(number)), (*path, str(words.index(word))))
            yield Conflict(paths, f"{word!r} is there twice; the order says what is preferred")


def _idle_keys(path: Path, pool: PoolPolicy) -> Iterator[Conflict]:
    for key, rule in _OWN_KEYS.items():
        if key in pool.model_fields_set and getattr(pool, key) is not None and pool.capacity is not rule:
            default = "" if "capacity" in pool.model_fields_set else DEFAULT
            message = (
                f"{key} is {getattr(pool, key):g} and capacity is {pool.capacity}{default};"
                f" {key} is for {rule} only"
            )
            yield Conflict(((*path, key), (*path, "capacity")), message)
    if pool.sizes_are_equal and pool.capacity is CapacityRule.ON_DEMAND:
        message = "sizes_are_equal is true and capacity is on-demand; the cloud takes back nothing but spot"
        yield Conflict(((*path, "sizes_are_equal"), (*path, "capacity")), message)


def _schedules(path: Path, pool: PoolPolicy, year: int) -> Iterator[Conflict]:
    numbered = [((*path, "schedules", str(number)), one) for number, one in enumerate(pool.schedules)]
    for own, one in numbered:
        yield from _empty(own, one)
        yield from _never(own, one.window, year)
        yield from _scheduled_limits(path, pool, own, one)
    for (one_path, one), (other_path, other) in itertools.combinations(numbered, 2):
        yield from _contradiction(one_path, one, other_path, other, year)


def _empty(own: Path, schedule: Schedule) -> Iterator[Conflict]:
    if all(getattr(schedule, key) is None for key in _LIMITS):
        yield Conflict((own,), f"it changes nothing; give it one of {', '.join(_LIMITS)}")


def _never(own: Path, window: Window, year: int) -> Iterator[Conflict]:
    if not calendar(window, year):
        named = " among its only_dates" if window.only_dates else ""
        message = f"{window.begins!r} never comes; there is no such day{named}"
        yield Conflict(((*own, "window", "begins") if own[-2] == "schedules" else (*own, "begins"),), message)


def _scheduled_limits(path: Path, pool: PoolPolicy, own: Path, one: Schedule) -> Iterator[Conflict]:
    """A schedule's limits against each other, and against those of the pool where it leaves one as it is."""

    def limit(key: str) -> _Limit:
        is_own = getattr(one, key, None) is not None
        return _limit(own, one, key) if is_own else _limit(path, pool, key)

    said = f" from {one.window.begins!r} on"
    # A pool that is closed for a time has no core then either.
    for key in ("min_nodes", "warm_nodes", *(_core(pool) if one.max_nodes else ())):
        low, high = limit(key), limit("max_nodes")
        if (
            low.path[:-1] != path or high.path[:-1] != path
        ):  # otherwise the conflict is reported of the pool itself
            yield from _above(low, high, said)


def _contradiction(
    one_path: Path, one: Schedule, other_path: Path, other: Schedule, year: int
) -> Iterator[Conflict]:
    differing = [
        key for key in _LIMITS if None not in (values := (getattr(one, key), getattr(other, key)))
        and values[0] != values[1]
    ]  # fmt: skip
    crossing = [*_crossing(one_path, one, other_path, other), *_crossing(other_path, other, one_path, one)]
    if not differing and not crossing:
        return
    common = calendar(one.window, year) & calendar(other.window, year)
    for key in differing if common else ():
        message = (
            f"both windows are open on e.g. {first_of(common, year)}, and {key} is {getattr(one, key)} in one"
            f" and {getattr(other, key)} in the other"
        )
        yield Conflict(((*one_path, key), (*other_path, key)), message)
    for least, most in crossing if common else ():
        yield from _above(least, most, f" when both windows are open, on e.g. {first_of(common, year)}")


def _crossing(
    low_path: Path, low: Schedule, high_path: Path, high: Schedule
) -> Iterator[tuple[_Limit, _Limit]]:
    """What one schedule wants at least above what the other allows; what both of them name is compared elsewhere."""
    if high.max_nodes is None or low.max_nodes is not None:
        return
    for key in ("min_nodes", "warm_nodes"):
        least = getattr(low, key)
        if least is not None and getattr(high, key) is None and least > high.max_nodes:
            yield _limit(low_path, low, key), _limit(high_path, high, "max_nodes")


def _maintenance(path: Path, windows: Sequence[Window], year: int) -> Iterator[Conflict]:
    closed = 0
    for number, window in enumerate(windows):
        own = (*path, "maintenance", str(number))
        yield from _never(own, window, year)
        closed |= calendar(window, year)
    if is_endless(closed):
        message = "maintenance never ends, so that nothing would ever be launched; make a window shorter"
        yield Conflict(((*path, "maintenance"),), message)


def _money(policies: Policies) -> Iterator[Conflict]:
    budget = policies.budget
    whole: Path = ("budget",)
    yield from _more(whole, "usd_per_day", budget.usd_per_day, whole, "usd_per_month", budget.usd_per_month)
    for name, one in policies.projects.items():
        path = ("projects", name)
        yield from _more(path, "usd_per_day", one.usd_per_day, path, "usd_per_month", one.usd_per_month)
        yield from _more(path, "usd_per_day", one.usd_per_day, whole, "usd_per_day", budget.usd_per_day)
        yield from _more(
            path, "usd_per_month", one.usd_per_month, whole, "usd_per_month", budget.usd_per_month
        )
        if budget.usd_per_day is None:  # which is not above the month's, and says more
            yield from _more(
                path, "usd_per_day", one.usd_per_day, whole, "usd_per_month", budget.usd_per_month
            )


def _more(
    path: Path, key: str, value: float | None, other: Path, other_key: str, limit: float | None
) -> Iterator[Conflict]:
    if value is not None and limit is not None and value > limit:
        whose = "budget" if other == ("budget",) else "the project"
        message = f"{key} is {value:g}, and {other_key} of {whose} is {limit:g}; it must not be more"
        yield Conflict(((*path, key), (*other, other_key)), message)


def _steps(policies: Policies) -> Iterator[Conflict]:
    budget = policies.budget
    if budget.steps and budget.usd_per_day is None and budget.usd_per_month is None:
        message = "steps are parts of a budget, and there is none; give usd_per_day or usd_per_month"
        yield Conflict((("budget", "steps"),), message)
    for mild, severe in itertools.pairwise(BudgetStep):
        at, later = budget.steps.get(mild, 1.0), budget.steps.get(severe, 1.0)
        if at > later:
            begins = {step: _begins(step, budget.steps) for step in (mild, severe)}
            message = f"{mild} begins at {begins[mild]} and {severe} at {begins[severe]}; the milder step comes first"
            yield Conflict((("budget", "steps", mild.value), ("budget", "steps", severe.value)), message)


def _begins(step: BudgetStep, steps: Mapping[BudgetStep, float]) -> str:
    return f"{steps[step]:g}" if step in steps else "1, as it is not named"
