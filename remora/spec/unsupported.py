"""What a job specification may name but this version cannot do: refused by name, never ignored.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from remora.errors import SpecProblem
from remora.spec.backends import LATER_BACKENDS


def refusals(spec: Mapping[str, Any]) -> list[SpecProblem]:
    """One problem for everything in a raw specification that belongs to a later version."""
    backend = spec.get("backend")
    if isinstance(backend, str) and backend in LATER_BACKENDS:
        text = (
            f"this version has no {backend} backend of its own; build Horovod with MPI in the environment of the"
            " command, and use mpi"
        )
        return [SpecProblem("backend", text)]
    return []


def without_refused(spec: Mapping[Any, Any], problems: list[SpecProblem]) -> dict[Any, Any]:
    """A copy without the refused fields, so that the others are judged too."""
    refused = {problem.field for problem in problems}
    return {key: value for key, value in spec.items() if key not in refused}
