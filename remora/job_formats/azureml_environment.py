"""The environment of an Azure ML job: the packages that pip installs become those of the specification.

The schema: https://learn.microsoft.com/azure/machine-learning/reference-yaml-environment
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from remora.errors import SpecError
from remora.job_formats.field_outcomes import Draft
from remora.spec.problems import read_yaml, short
from remora.spec.sections import LONGEST_REQUIREMENT, MAX_REQUIREMENTS

#: Bytes of a file of conda.
_MOST_BYTES = 256 * 1024
_PYTHON = re.compile(r"python\s*=+\s*(3\.\d{1,2})(?:\.[\d*]+)?")
#: Packages of conda that are there without being asked for.
_THERE = re.compile(r"(pip|setuptools|wheel|ca-certificates)\b")
_IMAGE = "the image is not taken over; name it with --image, or list packages: --pip, --requirements"


def read_environment(draft: Draft, value: Any, folder: Path) -> None:
    """Take what pip installs of it into `environment`, and name everything else.

    `folder` is that of the file, to which the path of a conda file is relative.
    """
    if value is None:
        return
    if not isinstance(value, Mapping):
        draft.leave("environment", _IMAGE)
        return
    for name, one in value.items():
        if name == "conda_file" and one is not None:
            _read_conda(draft, one, folder)
        elif name not in ("name", "version", "description", "tags", "conda_file", "$schema"):
            draft.leave(f"environment.{str(name)[:80]}", _IMAGE)


def _read_conda(draft: Draft, value: Any, folder: Path) -> None:
    field = "environment.conda_file"
    conda = value
    if isinstance(value, str):
        if ":" in value.partition("/")[0]:
            draft.leave(field, "only a file beside this one is read")
            return
        try:
            conda = read_yaml(folder / value, _MOST_BYTES)
        except (SpecError, OSError) as error:
            draft.refuse(field, " ".join(str(error).split())[:300])
            return
    dependencies = conda.get("dependencies") if isinstance(conda, Mapping) else None
    if not isinstance(dependencies, list):
        draft.refuse(field, "it has no list of dependencies")
        return
    for one in dependencies[: 2 * MAX_REQUIREMENTS]:
        if isinstance(one, Mapping):
            _take_pip(draft, field, one.get("pip"))
        elif isinstance(one, str) and (found := _PYTHON.fullmatch(one.strip())) is not None:
            draft.put("environment.python", found.group(1), field)
        elif not (isinstance(one, str) and _THERE.match(one)):
            said = f"{short(one)} comes from conda, which is not run; add it to environment.pip if pip has it"
            draft.leave(field, said)


def _take_pip(draft: Draft, field: str, lines: Any) -> None:
    taken = []
    for line in lines if isinstance(lines, list) else []:
        if not isinstance(line, str) or line.lstrip().startswith("-") or len(line) > LONGEST_REQUIREMENT:
            draft.leave(
                field, f"{short(line)} is no package; write options of pip into environment.requirements"
            )
        elif line.strip():
            taken.append(line.strip())
    if taken:
        draft.put("environment.pip", taken[:MAX_REQUIREMENTS], field)
