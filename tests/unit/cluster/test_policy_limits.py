"""Each limit of a policy: what lies on it is accepted, and what lies beyond it is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from cluster.policies.policies import MAX_NAMED, Policies

MONEY = [f"{one}.usd_per_{period}" for one in ("project", "budget") for period in ("day", "month")]
WINDOW = {"begins": "0 20 * * *", "lasts_s": 60}


def words(count: int) -> list[str]:
    return [f"w{number}" for number in range(count)]


def named(kind: str, more: int) -> dict[str, Any]:
    return {name: {"sizes": ["x"]} if kind == "pools" else {} for name in words(MAX_NAMED[kind] + more)}


def policies(place: str, value: object) -> Policies:
    """Policies with this value at this place: `pool.key`, `project.key`, `budget.key` or `window.key`; or `key`."""
    section, _, key = place.partition(".")
    pool, project = {"sizes": ["x"]}, {}
    match section:
        case "pool":
            pool |= {key: value}
        case "window":
            pool |= {"maintenance": [{**WINDOW, key: value}]}
        case "schedule":
            pool |= {"schedules": [{"window": WINDOW, key: value}]}
        case "project":
            project = {key: value}
        case "budget":
            return Policies.model_validate({"budget": {key: value}})
        case _:
            return Policies.model_validate({section: value})
    return Policies.model_validate({"pools": {"a": pool}, "projects": {"a": project}})


@pytest.mark.parametrize(
    ("place", "on_it", "beyond"),
    [
        ("pools", named("pools", 0), named("pools", 1)),
        ("pools", {"a" * 63: {"sizes": ["x"]}}, {"a" * 64: {"sizes": ["x"]}}),
        ("projects", named("projects", 0), named("projects", 1)),
        ("rules", words(64), words(65)),
        ("rules", ["a" * 128], ["a" * 129]),
        ("rules", ["a"], [""]),
        ("pool.sizes", ["x"], []),
        ("pool.sizes", words(32), words(33)),
        ("pool.zones", ["any"], []),
        ("pool.zones", words(32), words(33)),
        *((f"pool.{key}", 0, -1) for key in ("min_nodes", "max_nodes", "warm_nodes", "on_demand_core")),
        *((f"pool.{key}", 100_000, 100_001) for key in ("min_nodes", "max_nodes", "warm_nodes", "on_demand_core")),
        *((f"schedule.{key}", 0, -1) for key in ("min_nodes", "max_nodes", "warm_nodes")),
        *((f"schedule.{key}", 100_000, 100_001) for key in ("min_nodes", "max_nodes", "warm_nodes")),
        *((f"pool.{key}", 0, -1) for key in ("idle_s", "patience_s", "return_to_spot_s")),
        *((f"pool.{key}", "365d", 365 * 86_400 + 1) for key in ("idle_s", "patience_s", "return_to_spot_s")),
        *((f"pool.{key}", 0.001, 0.0) for key in ("grow_per_minute", "shrink_per_minute")),
        *((f"pool.{key}", 10_000.0, 10_000.001) for key in ("grow_per_minute", "shrink_per_minute")),
        *((f"pool.{key}", 0.001, 0) for key in ("join_timeout_s", "drain_s")),
        *((f"pool.{key}", "1d", 86_401) for key in ("join_timeout_s", "drain_s")),
        ("pool.schedules", [{"window": WINDOW}] * 64, [{"window": WINDOW}] * 65),
        ("pool.maintenance", [WINDOW] * 64, [WINDOW] * 65),
        ("window.lasts_s", 0.001, 0),
        ("window.lasts_s", "31d", 31 * 86_400 + 1),
        ("project.share", 0.001, 0.0),
        ("project.share", 1e6, 1e6 + 1.0),
        ("project.gpus", 0, -1),
        ("project.gpus", 100_000, 100_001),
        *((place, 0.0, -0.01) for place in MONEY),
        *((place, 1e9, 1e9 + 1.0) for place in MONEY),
        ("budget.steps", {"shrink": 0.001}, {"shrink": 0.0}),
        ("budget.steps", {"shrink": 10.0}, {"shrink": 10.001}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_lies_on_a_limit_is_accepted_and_what_lies_beyond_it_is_refused(
    place: str, on_it: object, beyond: object
) -> None:
    policies(place, on_it)
    with pytest.raises(ValidationError) as refused:
        policies(place, beyond)
    (problem,) = refused.value.errors()
    assert place.rpartition(".")[2] in problem["loc"]
