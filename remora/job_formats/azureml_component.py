"""A step that names a component: the two become one command job.  Opens the component's file.

The schema: https://learn.microsoft.com/azure/machine-learning/reference-yaml-component-command
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remora.errors import SpecError
from remora.job_formats.azureml_data import is_local, local_path, refuse_missing
from remora.job_formats.field_outcomes import Draft
from remora.spec.problems import read_yaml, short

#: Bytes of a component's file.
MAX_COMPONENT_BYTES = 256 * 1024
#: Files in which a component is looked for by its name.
_MAX_FILES = 100
_ASSET = re.compile(r"azureml:([A-Za-z0-9_.-]{1,200})(?::([A-Za-z0-9_.-]{1,50})|@latest)?")
#: What a component says about itself.
_ABOUT = ("$schema", "type", "name", "version", "display_name", "description", "tags", "is_deterministic")
_REGISTERED = (
    "{name} is registered in a workspace or a registry, and its command and code are not here; write the path of its"
    " YAML file in its place, with the code beside it"
)


@dataclass(frozen=True)
class Component:
    """The definition of a component, with the absolute folder that its paths start from."""

    fields: Mapping[Any, Any]
    folder: Path


def read_component(draft: Draft, field: str, value: Any, folder: Path) -> Component | None:
    """The component that a step names by a path or defines inside; None when it is refused."""
    if isinstance(value, Mapping):
        return Component(value, folder)
    if not isinstance(value, str):
        draft.refuse(field, f"{short(value)} given, expected the path of a component's file")
        return None
    path = folder / local_path(value) if is_local(value) else _registered(value, folder)
    if path is None:
        draft.refuse(field, _REGISTERED.format(name=value[:120]))
        return None
    if not is_local(value):
        draft.note(field, f"{path.name}, which defines a component of this name")
    try:
        found = read_yaml(path, MAX_COMPONENT_BYTES)
    except (SpecError, OSError, ValueError) as error:
        draft.refuse(field, " ".join(str(error).split())[:300])
        return None
    if not isinstance(found, Mapping):
        draft.refuse(field, f"{value[:80]} holds no mapping of keys to values")
        return None
    return Component(found, path.parent)


def _registered(value: str, folder: Path) -> Path | None:
    """The file in this folder that defines the component `azureml:NAME:VERSION`, if there is one."""
    wanted = _ASSET.fullmatch(value)
    if wanted is None:
        return None
    name, version = wanted.groups()
    files = sorted(path for path in folder.glob("*.y*ml") if path.is_file())
    for path in files[:_MAX_FILES]:
        try:
            found = read_yaml(path, MAX_COMPONENT_BYTES)
        except (SpecError, OSError, ValueError):
            continue
        if _defines(found, name, version):
            return path
    return None


def _defines(found: Any, name: str, version: str | None) -> bool:
    """True for a component of this name, and of this version where one is asked for."""
    if not isinstance(found, Mapping) or found.get("name") != name:
        return False
    is_component = "component" in str(found.get("$schema")).lower()
    return is_component and version in (None, str(found.get("version", version)))


def anchored(raw: Mapping[Any, Any], folder: Path) -> dict[Any, Any]:
    """A copy in which the local paths of code, conda files and inputs are absolute."""
    found = dict(raw)
    if isinstance(found.get("code"), str):
        found["code"] = _absolute(found["code"], folder)
    environment = found.get("environment")
    if isinstance(environment, Mapping) and isinstance(environment.get("conda_file"), str):
        found["environment"] = {**environment, "conda_file": _absolute(environment["conda_file"], folder)}
    if isinstance(found.get("inputs"), Mapping):
        found["inputs"] = {name: _anchored_input(one, folder) for name, one in found["inputs"].items()}
    return found


def _anchored_input(value: Any, folder: Path) -> Any:
    if isinstance(value, Mapping) and isinstance(value.get("path"), str) and "${{" not in value["path"]:
        return {**value, "path": _absolute(value["path"], folder)}
    return value


def _absolute(path: str, folder: Path) -> str:
    if not is_local(path):
        return path
    return posixpath.normpath(posixpath.join(str(folder), local_path(path)))


def one_job(draft: Draft, step: Mapping[Any, Any], component: Component) -> dict[Any, Any]:
    """The component with what its step says about it, as one job with absolute paths.

    `step` has absolute paths already, and an input that it leaves out on purpose is None.
    """
    definition = anchored(component.fields, component.folder)
    job = {key: value for key, value in definition.items() if key not in _ABOUT}
    for key, value in step.items():
        if key in ("environment_variables", "resources") and isinstance(value, Mapping):
            job[key] = {**(job.get(key) or {}), **value} if isinstance(job.get(key) or {}, Mapping) else value
        elif key not in ("component", "trial", "type", "inputs", "outputs") and value is not None:
            job[key] = value
    job["inputs"] = values_of(draft, definition.get("inputs"), step.get("inputs"))
    job["outputs"] = outputs_of(definition.get("outputs"), step.get("outputs"))
    return job


def values_of(draft: Draft, defined: Any, given: Any) -> dict[Any, Any]:
    """What a component's inputs are: given, their default, or missing; optional ones without a value are left out."""
    defined = defined if isinstance(defined, Mapping) else {}
    given = given if isinstance(given, Mapping) else {}
    found = {}
    for name, one in defined.items():
        about = one if isinstance(one, Mapping) else {"default": one}
        if given.get(name) is not None:
            found[name] = given[name]
        elif about.get("default") is not None:
            found[name] = about["default"]
        elif about.get("optional") is not True:
            refuse_missing(draft, str(name))
            found[name] = ""
    for name in given.keys() - defined.keys():
        draft.leave(f"inputs.{str(name)[:80]}", "the component has no such input; nothing was done with it")
    return found


def outputs_of(defined: Any, given: Any) -> dict[Any, Any]:
    """A component's outputs, with what the step says about each."""
    found = dict(defined) if isinstance(defined, Mapping) else {}
    for name, value in (given if isinstance(given, Mapping) else {}).items():
        before = found.get(name)
        if isinstance(value, Mapping):
            found[name] = {**(before if isinstance(before, Mapping) else {}), **value}
        else:
            found.setdefault(name, value)
    return found
