"""`docs/events.md` names every event that the code reports, with its fields, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from typing import get_args

from cluster.scheduling.actions import WaitsFor
from remora.states import JobState, NodeState
from tests.architecture.repository import ROOT, sources, tree_of
from trainers.driver.regrouping import Cause

PAGE = (ROOT / "docs/events.md").read_text()

KIND = re.compile(
    r"(job|attempt|worker_group|worker|node|checkpoint|training|records?|policies|quotas|ray_program|schedule)\.[a-z_]+"
    # `cluster` is a package as well, and `environment` a field of jobs.
    r"|cluster\.(un)?seen|environment\.(preparing|ready)|offerings\.read"
)
#: What stands in a kind that is put together, by what it begins with.
PUT_TOGETHER = {
    "job.": [state.value for state in JobState if state.is_terminal],
    "node.": [state.value for state in NodeState],
    "worker_group.": ["grow", "drain", "resize", "pause"],
}
#: Arguments of the functions that report events which are no fields of `data`.
NO_FIELDS = {"at", "kind", "message", "attempt", "data"}


def test_every_event_and_its_fields_are_on_the_page_and_nothing_else_is() -> None:
    assert on_the_page() == in_the_code()


def test_every_cause_of_a_regrouping_is_on_the_page_and_nothing_else_is() -> None:
    assert listed("worker_group.regrouped", "cause") == set(get_args(Cause))


def test_every_reason_to_wait_is_on_the_page_and_nothing_else_is() -> None:
    (row,) = re.findall(r"^\| `job\.waiting` \| (.*?) \|", PAGE, re.MULTILINE)
    assert set(re.findall(r"`(waiting_\w+)`", row)) == {one.value for one in WaitsFor}


def listed(kind: str, field: str) -> set[str]:
    """The values of a field that the page enumerates: "`field` is `a`, `b` or `c`"."""
    (row,) = re.findall(rf"^\| `{re.escape(kind)}` \| (.*?) \|", PAGE, re.MULTILINE)
    (values,) = re.findall(rf"`{field}` is ((?:`\w+`(?:, | or )?)+)", row)
    return set(re.findall(r"`(\w+)`", values))


def on_the_page() -> dict[str, set[str]]:
    rows = re.findall(r"^\| `([a-z_.]+)` \| .* \|(.*)\|$", PAGE, re.MULTILINE)
    return {kind: set(re.findall(r"`(\w+)`", fields)) for kind, fields in rows}


@cache
def in_the_code() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name in sources("service", "cluster", "trainers"):
        for node in ast.walk(tree_of(name)):
            if isinstance(node, ast.Call):
                for kind in kinds_of(node):
                    found.setdefault(kind, set()).update(fields_of(node))
    return found


def kinds_of(call: ast.Call) -> Iterator[str]:
    for argument in [*call.args, *(keyword.value for keyword in call.keywords)]:
        match argument:
            case ast.Constant(value=str(text)) if KIND.fullmatch(text):
                yield text
            case ast.JoinedStr(values=[ast.Constant(value=str(start)), _]) if start in PUT_TOGETHER:
                yield from (start + end for end in PUT_TOGETHER[start])


def fields_of(call: ast.Call) -> set[str]:
    named = {keyword.arg for keyword in call.keywords if keyword.arg} - NO_FIELDS
    literal = [one for one in [*call.args, *(k.value for k in call.keywords)] if isinstance(one, ast.Dict)]
    keys = {key.value for one in literal for key in one.keys if isinstance(key, ast.Constant)}
    return named | {str(key) for key in keys}
