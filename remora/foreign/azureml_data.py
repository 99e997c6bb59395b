"""Inputs and outputs of an Azure ML job: the text that stands for each in the command."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from pathlib import Path

from remora.foreign.translation import Draft, Fields, Remark, scalar, slug, text_of
from remora.spec.problems import short

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_DATA_TYPES = (
    "uri_file",
    "uri_folder",
    "mltable",
    "mlflow_model",
    "custom_model",
    "triton_model",
    "safe_input",
)
_ASSET = (
    "what its workspace holds cannot be opened here; give --input {name}=PATH with a path that nodes can read"
)


def read_inputs(
    draft: Draft,
    section: Fields,
    folder: Path,
    code: str | None,
    given: Mapping[str, str],
    *,
    is_component: bool = False,
) -> dict[str, str]:
    """Text for each input by its name; `given` stands above what the file says.

    Optional inputs of a component that are not given are left out.
    """
    values = {}
    for name, raw in section.items():
        field = section.name(name)
        if name in given:
            text: str | None = given[name]
            draft.mapped.append(_used(field, given[name], " (given by --input)"))
        elif isinstance(raw, Mapping) and is_component and raw.get("default") is None:
            if raw.get("optional") is not True:
                draft.refuse(field, f"a component has no value for it; give --input {name[:80]}=VALUE")
                values[name] = ""
            continue
        elif isinstance(raw, Mapping):
            text = _data(draft, Fields(draft, raw, field), name, folder, code)
        else:
            text = scalar(raw)
            if text is None:
                draft.refuse(field, f"{short(raw)} given, expected a value or a mapping with a path")
            else:
                draft.mapped.append(_used(field, text))
        values[name] = text or ""
    for name in section.empty:
        if name in given:
            values[name] = given[name]
            draft.mapped.append(_used(section.name(name), given[name], " (given by --input)"))
        else:
            draft.refuse(section.name(name), f"it has no value; give --input {name[:80]}=VALUE")
            values[name] = ""
    for name in given.keys() - values.keys():
        draft.refuse("inputs", f"there is no input {name[:80]!r} that --input could give")
    return values


def _used(field: str, text: str, more: str = "") -> Remark:
    return Remark(field, f"command: {text_of(text)}{more}")


def _data(draft: Draft, fields: Fields, name: str, folder: Path, code: str | None) -> str | None:
    """The text for an input that is data: a path, or a URL that the script opens itself."""
    kind = fields.text("type") or "uri_folder"
    value = fields.take("value")
    if value is None:
        value = fields.take("default")
    mode = fields.text("mode") or "ro_mount"
    path = fields.text("path")
    fields.drop("description", "optional", "min", "max", "enum")
    fields.close()
    if path is None and (text := scalar(value)) is not None:
        draft.mapped.append(_used(fields.path, text))
        return text
    if path is None:
        draft.refuse(fields.path, "it has neither a path nor a value")
        return None
    if kind not in _DATA_TYPES:
        draft.refuse(fields.name("type"), f"{kind[:40]!r} given, expected one of {', '.join(_DATA_TYPES)}")
    if path.startswith("azureml:"):
        draft.refuse(fields.name("path"), f"{path[:80]}: {_ASSET.format(name=name)}")
        return path
    if _URL.match(path) and not path.startswith("file:"):
        if mode != "direct":
            draft.leave(
                fields.name("mode"), f"nothing is mounted or copied: the script gets the URL {path[:80]}"
            )
        draft.mapped.append(_used(fields.path, path))
        return path
    local = _local(local_path(path), folder, code)
    draft.mapped.append(_used(fields.path, local))
    if posixpath.isabs(local):
        draft.leave(
            fields.name("path"),
            f"nothing is copied from outside the code folder: every node must be able to read {local[:120]}",
        )
    return local


def local_path(text: str) -> str:
    """A path that may be written as a URL (`file:///data`, `file:./data`), as a path."""
    return text.removeprefix("file://" if text.startswith("file://") else "file:")


def _local(path: str, folder: Path, code: str | None) -> str:
    """A path as the script sees it: relative inside the code folder, else absolute.  Links are not looked at."""
    whole = posixpath.normpath(posixpath.join(str(folder), path))
    if code is not None:
        root = posixpath.normpath(posixpath.join(str(folder), code))
        if whole == root or whole.startswith(f"{root.rstrip('/')}/"):
            return posixpath.relpath(whole, root)
    return whole


def read_outputs(draft: Draft, section: Fields) -> set[str]:
    """Names of the outputs, each a folder of the job."""
    names: set[str] = set()
    # `final:` without a value is a folder like any other.
    for name, raw in [*section.items(), *((name, None) for name in section.empty)]:
        fields = Fields(draft, raw, section.name(name))
        kind, model = fields.text("type") or "uri_folder", slug(fields.text("name") or "")
        fields.drop("description")
        if fields.take("mode") == "direct":
            draft.leave(
                fields.name("mode"), "the script gets a folder on its node; it is collected from there"
            )
        fields.leave(
            "path", "outputs are kept with the job; `remora outputs JOB --download DIR` fetches them"
        )
        fields.leave("version", "a model gets the next version of its name")
        fields.close()
        output = {"model": model} if model and kind.endswith("_model") else {}
        if kind == "uri_file":
            draft.refuse(
                fields.name("type"),
                "uri_file given, and every output is a folder; write uri_folder, and let the script write"
                " its file into that folder",
            )
        if model and not output:
            draft.leave(fields.name("name"), "no data asset is made of it")
        draft.put("outputs", output, fields.path, key=name)
        names.add(name)
    return names
