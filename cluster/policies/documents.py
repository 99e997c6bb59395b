"""A policy document, YAML or JSON as operators write it, and the `Policies` it stands for (pure)."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import yaml
from pydantic import ValidationError

from cluster.policies.catalogue_conflicts import ClusterFacts, catalogue_conflicts
from cluster.policies.conflicts import conflicts
from cluster.policies.policies import MAX_NAMED, Policies
from cluster.policies.policy_problems import Conflict, Path, PoliciesRefused, PolicyProblem, form_conflicts
from remora.errors import MAX_PROBLEMS, MORE_PROBLEMS, SpecError
from remora.spec.problems import LONGEST_KEY, parse_yaml

#: Characters of a document.
MAX_DOCUMENT = 512 * 1024
_EMPTY = "the document is empty; write `pools: {}` if the cluster shall have no node at all"
_TOP = (
    "a policy document is a mapping with the keys pools, projects, principals, budget, ray_programs and rules"
)


def read_document(text: str, known: ClusterFacts) -> Policies:
    """The policies that a document means.  Raises PoliciesRefused with every problem that can be found at once."""
    policies, lines = _formed(text)
    found = _placed(itertools.chain(conflicts(policies), catalogue_conflicts(policies, known)), lines)
    if found:
        raise PoliciesRefused(found)
    return policies


def read_stored(text: str) -> Policies:
    """The policies that a document means which was accepted once: only what is not well formed is refused.

    Contradictions are refused only when a document is applied: a newer release that finds more keeps accepted ones.
    """
    return _formed(text)[0]


def _formed(text: str) -> tuple[Policies, Mapping[Path, int]]:
    """What is well formed, with the line of each value."""
    data, lines = _parse(text)
    try:
        return Policies.model_validate(data), lines
    except ValidationError as error:
        raise PoliciesRefused(_placed(form_conflicts(error), lines)) from None


def digest_of(text: str) -> str:
    """`sha256:...` of a document's text."""
    return f"sha256:{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()}"


def _parse(text: str) -> tuple[Any, Mapping[Path, int]]:
    try:
        data, node = parse_yaml(text, MAX_DOCUMENT, "the document")
    except SpecError as error:
        raise PoliciesRefused(PolicyProblem("", one.message) for one in error.problems) from None
    if data is None:
        raise PoliciesRefused([PolicyProblem("", _EMPTY)])
    if not isinstance(data, dict):
        raise PoliciesRefused([PolicyProblem("", _TOP)])
    for key, most in MAX_NAMED.items():
        section = data.get(key)
        # Here, because pydantic would look at each of them first.
        if isinstance(section, dict) and len(section) > most:
            raise PoliciesRefused(
                [PolicyProblem(key, f"there are {len(section)} of them; write at most {most}")]
            )
    # The parser has bounded depth and number of what it gives.
    return data, dict(_walk(node, ()))


def _walk(node: yaml.Node | None, path: Path) -> Iterator[tuple[Path, int]]:
    """Every value below a node with its line: that of its key, or of itself in a list."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                own = (*path, str(key.value))
                yield own, key.start_mark.line + 1
                yield from _walk(value, own)
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            own = (*path, str(number))
            yield own, value.start_mark.line + 1
            yield from _walk(value, own)


def _placed(found: Iterable[Conflict], lines: Mapping[Path, int]) -> list[PolicyProblem]:
    """The first of these with their lines; no more than these are looked for."""
    problems: list[PolicyProblem] = []
    conflicts = list(itertools.islice(found, MAX_PROBLEMS + 1))
    more = [PolicyProblem("", MORE_PROBLEMS)] if len(conflicts) > MAX_PROBLEMS else []
    for conflict in conflicts[: MAX_PROBLEMS - len(more)]:
        places = dict.fromkeys(line for path in conflict.paths if (line := _line(path, lines)) is not None)
        field = ".".join(part[:LONGEST_KEY] for part in conflict.paths[0])
        problems.append(PolicyProblem(field, conflict.message, tuple(places)))
    return sorted(problems, key=lambda problem: problem.lines[:1]) + more


def _line(path: Path, lines: Mapping[Path, int]) -> int | None:
    """The line of a value, or of the nearest section around one that is not written down."""
    return next((lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in lines), None)
