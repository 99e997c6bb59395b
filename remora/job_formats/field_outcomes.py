"""What becomes of each field of a foreign file: it is mapped, not honoured, or keeps the job from running.

`Fields` reads each field once, `Draft` notes its outcome, and `Translation` or `Pipeline` is the result.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remora.errors import SpecProblem
from remora.spec.pipeline_steps import PipelineStep, StepOutput
from remora.spec.problems import short

#: No number of a job is as big; the text of an integer of thousands of digits cannot even be made.
MOST = 10**15


@dataclass(frozen=True)
class Remark:
    """What became of one field of the foreign file."""

    #: Dotted path in the foreign file.
    field: str
    #: For a mapped field the field of the specification and its value, else what is missing and what to do.
    text: str


@dataclass(frozen=True, kw_only=True)
class Outcomes:
    """What the owner of a foreign file should know about its translation."""

    #: What the file is, for people: `an Azure ML command job`.
    source: str
    mapped: tuple[Remark, ...]
    #: What the job asked for and does not get; it runs without.
    unhonoured: tuple[Remark, ...]
    #: What keeps the job from running at all.
    problems: tuple[SpecProblem, ...]


@dataclass(frozen=True, kw_only=True)
class Translation(Outcomes):
    """A foreign job as one specification, which may have an array."""

    #: Raw specification with the paths as they are in the file; `JobSpec.from_mapping` judges it.
    spec: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Pipeline(Outcomes):
    """A foreign file of several jobs, some of which read what others write."""

    #: Those that read from others come behind them.
    steps: tuple[PipelineStep, ...]


class Draft:
    """A translation while it is made; `prefix` stands before the names of all fields in what it notes."""

    def __init__(self, source: str, prefix: str = "") -> None:
        self.source = source
        self.prefix = prefix
        self.spec: dict[str, Any] = {}
        self.mapped: list[Remark] = []
        self.unhonoured: list[Remark] = []
        self.problems: list[SpecProblem] = []
        #: Inputs that are outputs of other steps, by their names in the specification.
        self.reads: dict[str, StepOutput] = {}

    def put(
        self, target: str, value: Any, source: str, *, key: str | None = None, shown: str | None = None
    ) -> None:
        """Set a dotted field of the specification, or `key` in it; `shown` stands for the value in the remark."""
        section = self.spec
        # A key is the file's own word, and may hold dots.
        *parents, last = target.split(".") if key is None else (*target.split("."), key)
        for parent in parents:
            section = section.setdefault(parent, {})
        section[last] = value
        field = target if key is None else f"{target}.{key}"
        self.note(source, f"{field}: {text_of(value) if shown is None else shown}")

    def note(self, source: str, what: str) -> None:
        """Note what a field has become."""
        self.mapped.append(Remark(self.prefix + source, what))

    def put_variable(self, name: str, value: str, source: str) -> None:
        """Set an environment variable; the remark does not show its value, which may be a password."""
        self.put("environment.variables", value, source, key=name, shown="...")

    def add_secret(self, name: str, source: str) -> None:
        """Let the job use a secret of its project as the variable of its name."""
        uses = self.spec.setdefault("environment", {}).setdefault("secrets", [])
        if name not in uses:
            uses.append(name)
        self.note(
            source, f"environment.secrets: {name}, which the project has to have: remora secrets set {name}"
        )

    def leave(self, source: str, why: str) -> None:
        """Note what the job does not get."""
        self.unhonoured.append(Remark(self.prefix + source, why))

    def refuse(self, source: str, why: str) -> None:
        """Note what keeps the job from running."""
        self.problems.append(SpecProblem(self.prefix + source, why))

    def take_notes(self, other: Draft) -> None:
        """Add what was noted in another draft."""
        self.mapped += other.mapped
        self.unhonoured += other.unhonoured
        self.problems += other.problems

    def finish(self) -> Translation:
        """What came of one job."""
        return Translation(spec=self.spec, **self._noted())

    def finish_pipeline(self, steps: Iterable[PipelineStep]) -> Pipeline:
        """What came of several jobs."""
        return Pipeline(steps=tuple(steps), **self._noted())

    def _noted(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "mapped": tuple(self.mapped),
            "unhonoured": tuple(self.unhonoured),
            "problems": tuple(self.problems),
        }


class Fields:
    """The keys of one section of a foreign file; keys that were not read are unknown and named by `close`."""

    def __init__(self, draft: Draft, raw: object, path: str = "") -> None:
        self.draft = draft
        self.path = path
        self._left: dict[str, Any] = {}
        #: Keys that are there without a value.
        self.empty: tuple[str, ...] = ()
        if isinstance(raw, Mapping):
            self.empty = tuple(_key(key) for key, value in raw.items() if value is None)
            self._left = {_key(key): value for key, value in raw.items() if value is not None}
        elif raw is not None:
            draft.refuse(path, f"{short(raw)} given, expected a mapping of keys to values")

    def name(self, key: str) -> str:
        """Dotted path of a key in the file."""
        return f"{self.path}.{key}" if self.path else key

    def take(self, key: str) -> Any:
        """The value of a key, None without one."""
        return self._left.pop(key, None)

    def section(self, key: str) -> Fields:
        """A section below this one, empty without one."""
        return Fields(self.draft, self.take(key), self.name(key))

    def text(self, key: str) -> str | None:
        """A text, None without one; anything else is refused."""
        value = self.take(key)
        if value is None or isinstance(value, str):
            return value
        self.draft.refuse(self.name(key), f"{short(value)} given, expected a text")
        return None

    def whole(self, key: str, least: int = 1) -> int | None:
        """A whole number, None without one; anything else is refused."""
        value = self.take(key)
        if value is None or (type(value) is int and least <= value < MOST):
            return value
        self.draft.refuse(self.name(key), f"{short(value)} given, expected a whole number from {least}")
        return None

    def leave(self, key: str, why: str) -> None:
        """Note a key that is there and that the job does not get."""
        if self.take(key) is not None:
            self.draft.leave(self.name(key), why)

    def drop(self, *keys: str) -> None:
        """Take keys that ask for nothing."""
        for key in keys:
            self.take(key)

    def items(self) -> Iterator[tuple[str, Any]]:
        """Every key that was not taken, which are taken by this."""
        left, self._left = self._left, {}
        yield from left.items()

    def close(self) -> None:
        """Name the keys that were not read."""
        for key, _ in self.items():
            self.draft.leave(self.name(key), "unknown key; nothing was done with it")


def _key(key: object) -> str:
    try:
        return str(key)[:200]
    except ValueError:  # an integer of thousands of digits has no decimal text
        return short(key)


def text_of(value: Any) -> str:
    """A value of the specification for people, on one line and never long."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {text_of(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(text_of(one) for one in value) + "]"
    text = " ".join(str(value).split())
    return text if len(text) <= 100 else f"{text[:97]}..."


def relative_code(spec: dict[str, Any], folder: Path) -> None:
    """Write an absolute `code` as it is seen from the file's folder."""
    code = spec.get("code")
    if isinstance(code, str) and posixpath.isabs(code):
        spec["code"] = posixpath.relpath(code, str(folder))


def slug(text: str) -> str:
    """A name as a specification takes it, empty when nothing of the text can stand in one."""
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-._")[:63].rstrip("-._")


def scalar(value: object) -> str | None:
    """A text, number or boolean as a command gets it; None for anything else."""
    if isinstance(value, bool | str):
        return str(value)
    if isinstance(value, int | float):
        try:
            return str(value)
        except ValueError:  # an integer of thousands of digits has no decimal text
            return None
    return None
