"""What a job specification may name but this version cannot do: refused by name, never ignored.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from remora.errors import SpecProblem
from remora.spec.backends import LATER_BACKENDS

#: Field -> what to do instead.
REFUSED: dict[str, str] = {
    "environment.secrets": "read the secret from a file on the nodes; `variables` are visible to all users",
}


def refusals(spec: Mapping[str, Any]) -> list[SpecProblem]:
    """One problem for everything in a raw specification that belongs to a later version."""
    problems = [
        SpecProblem(field, f"this version cannot do it yet; {instead}")
        for field, instead in REFUSED.items()
        if _at(spec, field) is not None
    ]
    backend = _at(spec, "backend")
    if isinstance(backend, str) and backend in LATER_BACKENDS:
        problems.append(
            SpecProblem(
                "backend",
                f"this version has no {backend} backend of its own; build Horovod with MPI in the environment of"
                " the command, and use mpi",
            )
        )
    return problems


def without_refused(spec: Mapping[Any, Any], problems: list[SpecProblem]) -> dict[Any, Any]:
    """A copy without the refused fields (an empty one asks for nothing), so that the others are judged too."""
    copy = dict(spec)
    for field in (*REFUSED, *(problem.field for problem in problems)):
        head, _, tail = field.partition(".")
        section = copy.get(head)
        if not tail:
            copy.pop(head, None)
        elif isinstance(section, Mapping):
            copy[head] = {key: value for key, value in section.items() if key != tail}
    return copy


def _at(spec: Mapping[str, Any], field: str) -> Any:
    head, _, tail = field.partition(".")
    value = spec.get(head)
    if tail:
        return value.get(tail) if isinstance(value, Mapping) else None
    return value
