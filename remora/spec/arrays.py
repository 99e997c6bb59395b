"""One specification for many jobs that differ in some values: `array: {grid: {lr: [0.1, 0.01], seed: [1, 2]}}`.  Pure.

Values stand for `${{array.NAME}}` in the command, the arguments of an entrypoint, variables and labels.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from remora.job_commands.expressions import EXPRESSION
from remora.spec.fields import Number, Text, Whole
from remora.spec.sections import Section

#: Jobs of one array, parameters of one job, and bytes of all specifications together.
MAX_ELEMENTS, MAX_PARAMETERS, MAX_ARRAY_BYTES = 1000, 50, 4 * 2**20
ARRAY_FORM = "{grid: {name: [values]}}, or {list: [{name: value}]}, and most_at_once, stop_early"
_PARAMETER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
#: Stands for the number of an element, from 0.
INDEX = "index"
Scalar = str | int | float | bool


class StopEarly(Section):
    """Which jobs of an array end before the others, because of a metric that all of them report."""

    metric: Annotated[Text, Field(min_length=1)] = Field(
        description="the name of a metric that the script reports"
    )
    mode: Literal["min", "max"] = Field("min", description="min or max")
    policy: Literal["halving", "bandit", "median", "truncation"] = Field(
        "halving", description="halving, bandit, median or truncation"
    )
    #: `halving`: jobs are compared at this step, and whenever it has doubled.
    first_step: Whole | None = Field(None, ge=1, le=2**31, description="a whole number of steps from 1")
    #: The others: at each report of the metric whose number is a multiple of `every`, from `delay` on.
    every: Whole = Field(1, ge=1, le=2**31, description="a whole number of reports from 1")
    delay: Whole = Field(0, ge=0, le=2**31, description="a whole number of reports")
    #: `bandit`: how far from the best job a job may be, as a share of its value or in units of the metric.
    slack_factor: Number | None = Field(None, ge=0, le=1e12, description="a number from 0")
    slack_amount: Number | None = Field(None, ge=0, le=1e12, description="a number from 0")
    #: `truncation`: the share of jobs that ends at each comparison.
    percent: Whole | None = Field(None, ge=1, le=99, description="a whole number from 1 to 99")

    @model_validator(mode="after")
    def _fits_policy(self) -> Self:
        given = {name for names in _OF_POLICY.values() for name in names if getattr(self, name) is not None}
        needed = _OF_POLICY[self.policy]
        if needed and len(given & set(needed)) != 1:
            raise ValueError(f"the policy {self.policy} needs {' or '.join(needed)}")
        if more := sorted(given - set(needed)):
            raise ValueError(f"{more[0]} is not for the policy {self.policy}; leave it out")
        if self.policy == "halving" and (self.every, self.delay) != (1, 0):
            raise ValueError("every and delay are not for the policy halving; write first_step")
        return self


#: Fields of which a policy needs one.
_OF_POLICY = {
    "halving": ("first_step",),
    "bandit": ("slack_factor", "slack_amount"),
    "median": (),
    "truncation": ("percent",),
}


class Array(Section):
    """The values in which the jobs differ, and how many of them may run."""

    #: Every combination of these values.
    grid: dict[str, Any] = Field(
        {}, description="names with lists of values, e.g. {lr: [0.1, 0.01], seed: [1, 2]}"
    )
    #: Exactly these.
    list: tuple[Any, ...] = Field(
        (), description="a list of mappings with the same names, e.g. [{lr: 0.1, seed: 1}]"
    )
    most_at_once: Whole | None = Field(
        None, ge=1, le=MAX_ELEMENTS, description=f"a whole number from 1 to {MAX_ELEMENTS}"
    )

    stop_early: StopEarly | None = Field(
        None, description="{metric: a name, mode: min or max, first_step: a step}, or with a policy"
    )

    @field_validator("grid", mode="before")
    @classmethod
    def _are_lists(cls, value: object) -> object:
        if value is None:
            return {}
        for name, values in value.items() if isinstance(value, dict) else ():
            if not isinstance(values, list) or not values:
                raise ValueError(
                    f"{str(name)[:60]} is no list of values; write [..], with at least one value"
                )
            _check(name, values)
        return value

    @field_validator("list", mode="before")
    @classmethod
    def _are_mappings(cls, value: object) -> object:
        if value is None:
            return ()
        elements = [*value] if isinstance(value, list | tuple) else []
        for one in elements:
            if not isinstance(one, dict) or not one:
                raise ValueError("each element is a mapping of names to values")
            for name, scalar in one.items():
                _check(name, [scalar])
            if one.keys() != elements[0].keys():
                raise ValueError("all elements have the same names")
        return value

    @model_validator(mode="after")
    def _has_elements(self) -> Self:
        if bool(self.grid) == bool(self.list):
            raise ValueError("write either grid or list, with at least one value")
        if len(self.names) > MAX_PARAMETERS:
            raise ValueError(f"{len(self.names)} names, expected at most {MAX_PARAMETERS}")
        size = math.prod(len(values) for values in self.grid.values()) if self.grid else len(self.list)
        if size > MAX_ELEMENTS:
            raise ValueError(f"{size} jobs, expected at most {MAX_ELEMENTS}; write several arrays")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its parameters."""
        return tuple(self.grid or self.list[0])

    def elements(self) -> Iterator[dict[str, Scalar]]:
        """The values of each job; of a grid the last name changes first."""
        if self.grid:
            for values in itertools.product(*self.grid.values()):
                yield dict(zip(self.grid, values, strict=True))
        else:
            yield from (dict(one) for one in self.list)


def _check(name: object, values: list[Any]) -> None:
    if not isinstance(name, str) or not _PARAMETER.fullmatch(name) or name == INDEX:
        said = f"{str(name)[:60]!r} is no name of a parameter; use letters, digits and '_'"
        raise ValueError(f"{said}, and another name than {INDEX}" if name == INDEX else said)
    for value in values:
        if not isinstance(value, str | int | float) or (
            isinstance(value, float) and not math.isfinite(value)
        ):
            raise ValueError(
                f"{str(value)[:60]!r} is no value of {name}; write a text, a number, true or false"
            )
        if isinstance(value, str) and ("\0" in value or EXPRESSION.search(value)):
            raise ValueError(
                f"a value of {name} has an expression or a null character in it; write it plainly"
            )
