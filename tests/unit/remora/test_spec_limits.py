"""Each limit of a job specification: what lies on it is accepted, and what lies beyond it is refused by name."""

from __future__ import annotations

import pytest

from remora.errors import SpecError
from remora.spec.fields import (
    LONGEST_IMAGE,
    LONGEST_LABEL,
    LONGEST_PATTERN,
    MAX_LABELS,
    MAX_PATTERNS,
    MAX_PLACES,
)
from remora.spec.sections import (
    LONGEST_PATH,
    LONGEST_REQUIREMENT,
    LONGEST_SETUP,
    MAX_AFTER,
    MAX_INPUTS,
    MAX_REQUIREMENTS,
)
from remora.spec.spec import JobSpec


def spec(field: str, value: object) -> JobSpec:
    """A specification with this value in this field, which is `section.key` or `key`, and what that needs beside it."""
    section, _, key = field.partition(".")
    others = {"min": 4096, "max": 4096} if section == "workers" else {}
    return JobSpec.from_mapping({"command": "x", section: {**others, key: value} if key else value})


def names(count: int) -> list[str]:
    return [f"n{number}" for number in range(count)]


def job_ids(count: int) -> list[str]:
    return [f"job_{number:026d}" for number in range(count)]


@pytest.mark.parametrize(
    ("field", "on_it", "beyond"),
    [
        ("name", "a" * 63, "a" * 64),
        ("project", "a" * 63, "a" * 64),
        ("workers", 1, 0),
        ("workers", 4096, 4097),
        ("workers.min", 1, 0),
        ("workers.multiple_of", 1, 0),
        ("workers_per_node", 1, 0),
        ("workers_per_node", 4096, 4097),
        ("resources.gpus", 0, -0.001),
        ("resources.gpus", 0.999, 1.001),
        ("resources.gpus", 1024, 1025),
        ("resources.cpus", 0.001, 0),
        ("resources.cpus", 4096, 4097),
        ("resources.memory", 1, 0),
        ("environment.image", "localhost/" + "a" * (LONGEST_IMAGE - 10), "localhost/" + "a" * (LONGEST_IMAGE - 9)),
        ("environment.python", "3.99", "3.100"),
        ("environment.pip", ["a"] * MAX_REQUIREMENTS, ["a"] * (MAX_REQUIREMENTS + 1)),
        ("environment.pip", ["a" * LONGEST_REQUIREMENT], ["a" * (LONGEST_REQUIREMENT + 1)]),
        ("environment.setup", "a" * LONGEST_SETUP, "a" * (LONGEST_SETUP + 1)),
        ("inputs", {one: {"store": "s"} for one in names(MAX_INPUTS)},
         {one: {"store": "s"} for one in names(MAX_INPUTS + 1)}),
        ("inputs.a", {"store": "s", "path": "a" * LONGEST_PATH}, {"store": "s", "path": "a" * (LONGEST_PATH + 1)}),
        ("outputs.a", {"path": "a" * LONGEST_PATH}, {"path": "a" * (LONGEST_PATH + 1)}),
        ("outputs.a", {"commit": "a" * LONGEST_PATH}, {"commit": "a" * (LONGEST_PATH + 1)}),
        ("outputs", {"a" * 63: {}}, {"a" * 64: {}}),
        ("placement.pools", names(MAX_PLACES), names(MAX_PLACES + 1)),
        ("placement.zones", names(MAX_PLACES), names(MAX_PLACES + 1)),
        ("elastic.shards", 1, 0),
        ("elastic.shards", 2**31, 2**31 + 1),
        ("elastic.global_batch", 1, 0),
        ("checkpoint.interval", 0.001, 0),
        ("checkpoint.keep", 1, 0),
        ("checkpoint.keep", 100, 101),
        ("priority", 0, -1),
        ("priority", 100, 101),
        ("retry.limit", 0, -1),
        ("retry.limit", 100, 101),
        ("retry.on_exit_codes", 1, 0),
        ("retry.on_exit_codes", "1-255", "1-256"),
        ("retry.on_log_patterns", names(MAX_PATTERNS), names(MAX_PATTERNS + 1)),
        ("retry.on_log_patterns", "a" * LONGEST_PATTERN, "a" * (LONGEST_PATTERN + 1)),
        ("schedule", "0 3 * * *".ljust(LONGEST_PATH), "0 3 * * *".ljust(LONGEST_PATH + 1)),
        ("labels", dict.fromkeys(names(MAX_LABELS), ""), dict.fromkeys(names(MAX_LABELS + 1), "")),
        ("labels.a", "a" * LONGEST_LABEL, "a" * (LONGEST_LABEL + 1)),
        ("after", job_ids(MAX_AFTER), job_ids(MAX_AFTER + 1)),
        ("limits.run_time", 0.001, 0),
        ("limits.wait_time", 0.001, 0),
        ("limits.step_time", 0.001, 0),
        ("limits.budget", 0.001, 0),
        ("limits.deadline", 0.001, 0),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 30 else "",
)  # fmt: skip
def test_what_lies_on_a_limit_is_accepted_and_what_lies_beyond_it_is_refused(
    field: str, on_it: object, beyond: object
) -> None:
    spec(field, on_it)
    with pytest.raises(SpecError) as refused:
        spec(field, beyond)
    (problem,) = refused.value.problems
    assert problem.field.startswith(field.partition(".")[0])
