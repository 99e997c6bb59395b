"""`docs/policies.md`: its example can be applied, its rule can be followed, and it names every key and its default."""

from __future__ import annotations

import datetime as dt
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from cluster.policies.catalogue_conflicts import ClusterFacts
from cluster.policies.documents import read_document
from cluster.policies.offerings import CapacityType, Offering
from cluster.policies.policies import (
    BudgetPolicy,
    BudgetStep,
    CapacityRule,
    Policies,
    PoolPolicy,
    PrincipalLimits,
    ProjectLimits,
    ProjectPolicy,
    RayProgramsPolicy,
    Schedule,
    Window,
)
from cluster.scheduling.actions import Launch
from cluster.scheduling.view import ClusterView

PAGE = (Path(__file__).parents[3] / "docs/policies.md").read_text()
CATALOGUE = tuple(
    Offering(size=size, zone=zone, capacity=capacity, resources={"GPU": gpus}, price_per_hour=1.0)
    for size, gpus in {
        "Standard_NC24ads_A100_v4": 1.0,
        "Standard_NC48ads_A100_v4": 2.0,
        "Standard_NC4as_T4_v3": 1.0,
    }.items()
    for zone in (None, "1", "2")
    for capacity in CapacityType
)


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert found
    return found.group(1)


def test_the_example_can_be_applied() -> None:
    known = ClusterFacts(catalogue=CATALOGUE, rules=frozenset({"no-launch-on-friday"}))
    policies = read_document(block("yaml"), known)
    assert set(policies.pools) == {"a100", "t4"}
    assert policies.pools["a100"].zones == ("1", "2", "any")
    assert set(policies.model_fields_set) == set(Policies.model_fields)


#: Whose keys have a default on the page.
WITH_DEFAULTS = (PoolPolicy, ProjectPolicy, BudgetPolicy, RayProgramsPolicy)


@pytest.mark.parametrize(
    "section", [Policies, *WITH_DEFAULTS, ProjectLimits, PrincipalLimits, Schedule, Window]
)
def test_every_key_is_on_the_page(section: type[BaseModel]) -> None:
    code = " ".join(re.findall(r"`[^`\n]+`", PAGE))
    assert [key for key in section.model_fields if not re.search(rf"\b{key}\b", code)] == []


#: Whose the keys are of a table that begins with `key of ...`; the keys of the others are those of one section alone.
TABLES: dict[str, type[BaseModel]] = {
    "projects.NAME.limits": ProjectLimits,
    "principals": PrincipalLimits,
}


def defaults_on_the_page() -> list[tuple[type[BaseModel], str, str]]:
    """Section, key and default of each row of the page's tables; `limits` has a table of its own."""
    found: list[tuple[type[BaseModel], str, str]] = []
    for table in re.findall(r"(?:^\|.*\n)+", PAGE, re.MULTILINE):
        of = re.match(r"\| key of `([\w.]+)` \|", table)
        for keys, defaults in re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| ([^|]+) \|", table, re.MULTILINE):
            names = [key.strip("`") for key in keys.split(", ")]
            values = [default.strip("` ") for default in defaults.split(", ") * len(names)]
            found += [
                (TABLES[of[1]] if of else section_of(key), key, default)
                for key, default in zip(names, values, strict=False)
                if key != "limits"
            ]
    return found


def section_of(key: str) -> type[BaseModel]:
    return next(one for one in WITH_DEFAULTS if key in one.model_fields)


@pytest.mark.parametrize(("section", "key", "default"), defaults_on_the_page())
def test_every_default_is_what_the_page_says(section: type[BaseModel], key: str, default: str) -> None:
    needed = {"sizes": ["x"]} if section is PoolPolicy else {}
    made = getattr(section.model_validate(needed), key)
    if default in ("none", "never", "no limit"):
        assert made is None or section.model_fields[key].is_required()
    elif key == "steps":
        assert (made, default) == ({}, "each at 1.0")
    else:
        assert getattr(section.model_validate({**needed, key: yaml.safe_load(default)}), key) == made


@pytest.mark.parametrize("words", [CapacityRule, BudgetStep])
def test_every_word_is_on_the_page(words: type[CapacityRule | BudgetStep]) -> None:
    assert [word for word in words if f"`{word}`" not in PAGE] == []


def test_the_rule_does_what_the_page_says() -> None:
    space: dict[str, Any] = {}
    exec(compile(block("python"), "docs/policies.md", "exec", dont_inherit=True), space)  # noqa: S102 - our own page
    launch = Launch(pool="t4", offering="x", resources={}, reason="job_1 waits")
    for day, said in ((2, None), (3, "it is Friday"), (4, None)):
        view = ClusterView(now=dt.datetime(2026, 7, day, 12, tzinfo=dt.UTC).timestamp())
        assert space["no_launch_on_friday"](view, launch) == said
