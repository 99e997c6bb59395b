"""Counts what becomes of the files in a checkout of public examples: translated, refused for a reason, failed."""

from __future__ import annotations

import json
import re
import subprocess
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from remora.errors import SpecError, SpecProblem
from remora.job_formats import Pipeline, translate
from remora.spec.array_elements import elements_of
from remora.spec.pipeline_steps import check_steps
from remora.spec.problems import read_documents
from remora.spec.spec import MAX_SPEC_BYTES, JobSpec

#: An input that `--input` has to give.
_GIVEN = re.compile(r"give --input ([\w.-]+)=")
#: What a problem is about, and what it is counted as; the first that fits.
REASONS = (
    ("is registered in a workspace or a registry", "a component that is only in a registry"),
    ("steps of the type", "a step of type {type}"),
    ("jobs are not taken", "a job of type {type}"),
    ("which is an array of jobs", "a step that reads the best trial of a sweep"),
    ("given, and ranks are started by Open MPI", "another implementation of MPI than Open MPI"),
    ("no backend for JAX", "JAX"),
)
_TYPE = re.compile(r"of the type (\w+)|Azure ML's (\w+) jobs")


@dataclass
class Counts:
    """What became of the files of one kind."""

    files: int = 0
    translated: int = 0
    #: Those that are when the inputs are given that only a workspace has.
    translated_with_inputs: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Plain data; reasons by their frequency."""
        return {**vars(self), "refused": dict(self.refused.most_common())}


def documents_in(folder: Path) -> Iterator[tuple[Path, list[Any]]]:
    """Every file of YAML below a folder that can be read, with its documents."""
    for path in sorted(folder.rglob("*.y*ml")):
        if path.is_file():
            try:
                yield path, list(read_documents(path, MAX_SPEC_BYTES))
            except (SpecError, OSError, yaml.YAMLError):
                continue


def count(counts: Counts, name: str, raw: Any, folder: Path) -> None:
    """Translate one file, and once more with the inputs that its problems ask for."""
    counts.files += 1
    try:
        problems = _problems_of(raw, folder, {})
        given = {found: "/mnt/data" for one in problems for found in _GIVEN.findall(one.message)}
        rest = _problems_of(raw, folder, given) if given else problems
    except Exception:
        counts.failed.append(f"{name}: {traceback.format_exc(limit=-1).splitlines()[-1]}")
        return
    if not problems:
        counts.translated += 1
    elif not rest:
        counts.translated_with_inputs += 1
    else:
        counts.refused[_reason(rest)] += 1


def _problems_of(raw: Any, folder: Path, given: dict[str, str]) -> Sequence[SpecProblem]:
    try:
        found = translate(raw, folder, given)
        if found is None:
            return [SpecProblem("", "no job of another system")]
        if found.problems:
            return found.problems
        one = [] if isinstance(found, Pipeline) else [JobSpec.from_mapping(found.spec)]
        specs = check_steps(found.steps) if isinstance(found, Pipeline) else one
        for spec in specs:
            if spec.array is not None:
                elements_of(spec)
    except SpecError as error:
        return error.problems
    return ()


def _reason(problems: Sequence[SpecProblem]) -> str:
    """What the first problem is about, in the order of REASONS."""
    for part, reason in REASONS:
        for one in problems:
            if part in one.message:
                kind = _TYPE.search(one.message)
                return reason.format(type=next(filter(None, kind.groups()), "") if kind else "")
    return str(problems[0])[:120]


def report(checkout: Path, counts: dict[str, Counts]) -> str:
    """One line of JSON: the commit of the checkout, and the counts by kind."""
    git = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    found = subprocess.run(git, capture_output=True, text=True, check=False)
    commit = found.stdout.strip() if (checkout / ".git").exists() and found.returncode == 0 else None
    by_kind = {kind: one.as_json() for kind, one in sorted(counts.items())}
    return json.dumps({"commit": commit, **by_kind})


def count_all(
    checkout: Path, kind_of: Callable[[Path, list[Any]], tuple[str, Any] | None]
) -> dict[str, Counts]:
    """Count every file that has a kind; `kind_of` gives it with what is translated."""
    counts: dict[str, Counts] = {}
    for path, documents in documents_in(checkout):
        if (found := kind_of(path, documents)) is not None:
            kind, raw = found
            name = str(path.relative_to(checkout))
            count(counts.setdefault(kind, Counts()), name, raw, path.resolve().parent)
    return counts
