"""Messages for what is wrong with a policy document (pure)."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from cluster.policies.policies import Policies
from remora.spec.problems import MOST_ERRORS, section_of, short

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

#: Keys and indexes from the top of a document to one of its values.
Path = tuple[str, ...]


@dataclass(frozen=True)
class PolicyProblem:
    """Why a document is refused: one value, or two that contradict each other."""

    #: Dotted path such as `pools.a100.min_nodes`; empty for the document as a whole.
    field: str
    #: One sentence for people.
    message: str
    #: Where it stands in the document, 1 and up; two lines for a conflict.
    lines: tuple[int, ...] = ()

    def __str__(self) -> str:
        word = "line" if len(self.lines) == 1 else "lines"
        place = f" ({word} {' and '.join(map(str, self.lines))})" if self.lines else ""
        return f"{self.field}{place}: {self.message}" if self.field else f"{self.message}{place}"


class PoliciesRefused(Exception):
    """A policy document is refused; `str()` gives one line per problem."""

    def __init__(self, problems: Iterable[PolicyProblem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


@dataclass(frozen=True)
class Conflict:
    """Values that cannot hold together; the first path is the one to be named, all of them have lines."""

    paths: tuple[Path, ...]
    message: str


def form_conflicts(error: ValidationError) -> Iterator[Conflict]:
    """What pydantic complains about, in the order of the fields."""
    if (count := error.error_count()) > MOST_ERRORS:
        yield Conflict(((),), f"{count} values are wrong; begin with a small document")
        return
    for detail in error.errors(include_url=False):
        path = tuple(str(part) for part in detail["loc"] if part != "[key]")
        is_key = detail["loc"][-1:] == ("[key]",) and detail["type"] == "string_type"
        words = "keys must be texts; put quotes around it" if is_key else _sentence(detail, path)
        yield Conflict((path,), words)


def _sentence(detail: ErrorDetails, path: Path) -> str:
    kind = detail["type"]
    if kind == "extra_forbidden":
        return f"unknown key{_nearest(path)}"
    if kind == "missing":
        return "missing"
    if kind == "string_pattern_mismatch":
        return f"{short(detail['input'])} is no name; use a-z, 0-9, '-', '_' and '.', at most 63 of them"
    if kind == "value_error":
        own = str(detail.get("ctx", {}).get("error", ""))
        return f"{short(detail['input'])} given, {own}" if own.startswith("expected") else own
    if kind in ("model_type", "dict_type"):
        return f"{short(detail['input'])} given, expected keys with values{_known(path)}"
    expected = re.sub(r"^.*? should ", "", detail["msg"])
    return f"{short(detail['input'])} given, it should {expected}"


def _known(path: Path) -> str:
    section = section_at(path)
    return f": {', '.join(section.model_fields)}" if section is not None else ""


def _nearest(path: Path) -> str:
    *above, word = path
    section = section_at(tuple(above))
    keys = list(section.model_fields) if section is not None else []
    near = difflib.get_close_matches(word[:80].lower().replace("-", "_"), keys, n=1, cutoff=0.5)
    if near:
        return f"; did you mean {near[0]}?"
    elsewhere = [where for where, fields in _sections() if word in fields]
    if elsewhere:
        return f"; {word} belongs into {elsewhere[0]}"
    return f"; known are {', '.join(keys)}"


def _sections() -> Iterator[tuple[str, Iterable[str]]]:
    yield "the document's top", Policies.model_fields
    for where, path in {
        "a pool": ("pools", "x"),
        "a project": ("projects", "x"),
        "limits of a project": ("projects", "x", "limits"),
        "principals": ("principals",),
        "budget": ("budget",),
        "a schedule": ("pools", "x", "schedules", "0"),
        "a window": ("pools", "x", "maintenance", "0"),
    }.items():
        section = section_at(path)
        yield where, section.model_fields if section is not None else ()


def section_at(path: Path) -> type[BaseModel] | None:
    """The type of the section at a path, through the names of pools and projects and through lists."""
    annotation: Any = Policies
    for part in path:
        section = section_of(annotation)
        if get_origin(annotation) is dict:
            annotation = get_args(annotation)[1]
        elif get_origin(annotation) is tuple:
            annotation = get_args(annotation)[0]
        elif section is not None and part in section.model_fields:
            annotation = section.model_fields[part].annotation
        else:
            return None
    return section_of(annotation) if get_origin(annotation) not in (dict, tuple) else None
