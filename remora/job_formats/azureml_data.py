"""Inputs and outputs of an Azure ML job: what stands for each in the command."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remora.job_commands.shell_quotes import Value
from remora.job_formats.field_outcomes import Draft, Fields, scalar, slug, text_of
from remora.spec.pipeline_steps import StepOutput
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
#: A place in a datastore; with and without the workspace that has the datastore.
_DATASTORE = re.compile(
    r"azureml:/{1,2}(?:subscriptions/[^/]+/resource-?groups?/[^/]+/(?:providers/[^/]+/)?workspaces/[^/]+/)?"
    r"datastores/([^/]{1,100})/paths/(.*)",
    re.IGNORECASE | re.DOTALL,
)
_ASSET = (
    "{path}: what a workspace or a registry holds cannot be opened here; give --input {option}=PATH with a path that"
    " nodes can read, or with the azureml://datastores/... path that `az ml data show` prints"
)
_COPIED = {
    "direct": "the script gets the path of a copy on its node, not the URL",
    "rw_mount": "the script gets a copy on its node, whose files it cannot change",
}

#: Names of outputs, each with the name of the file in its folder that the script writes, for outputs that are a file.
OutputNames = dict[str, str | None]


@dataclass(frozen=True)
class FromStep:
    """Stands in a step's inputs for what another step writes."""

    source: StepOutput
    #: Name of the file in it that is meant.
    file: str | None = None


@dataclass(frozen=True)
class Parameter:
    """Stands in a trial's inputs for a value of the search space."""

    name: str


def read_inputs(
    draft: Draft,
    section: Fields,
    folder: Path,
    code: str | None,
    given: Mapping[str, str],
    *,
    is_component: bool = False,
) -> dict[str, Value]:
    """What stands for each input by its name; `given` stands above what the file says.

    Optional inputs of a component that are not given are left out.
    """
    values: dict[str, Value] = {}
    for name, raw in [*section.items(), *((name, None) for name in section.empty)]:
        field = section.name(name)
        if name in given:
            raw = given_value(given[name])
        elif raw is None:
            refuse_missing(draft, name)
        elif isinstance(raw, Mapping) and is_component and raw.get("default") is None:
            if raw.get("optional") is True:
                continue
            refuse_missing(draft, name)
            raw = None
        values[name] = Value("") if raw is None else _read(draft, field, name, raw, folder, code)
    for name in given.keys() - values.keys():
        draft.refuse("inputs", f"there is no input {name[:80]!r} that --input could give")
    return values


def given_value(text: str) -> str | dict[str, str]:
    """What `--input` gives as the file would have it: a place in a datastore is data, any other text is a value."""
    return {"path": text} if _DATASTORE.match(text) else text


def refuse_missing(draft: Draft, name: str) -> None:
    """Note an input that has no value."""
    draft.refuse(f"inputs.{name[:80]}", f"it has no value; give --input {_option(draft, name)}=VALUE")


def _option(draft: Draft, name: str) -> str:
    """An input as `--input` names it."""
    return f"{draft.prefix.removeprefix('jobs.')}{name[:80]}"


def _read(draft: Draft, field: str, name: str, raw: Any, folder: Path, code: str | None) -> Value:
    if isinstance(raw, FromStep):
        return _read_from(draft, field, name, raw)
    if isinstance(raw, Parameter):
        draft.note(field, f"array: {raw.name}")
        return Value(f"${{{{array.{raw.name}}}}}", is_expression=True)
    if isinstance(raw, Mapping):
        return _data(draft, Fields(draft, raw, field), name, folder, code)
    if (text := scalar(raw)) is None:
        draft.refuse(field, f"{short(raw)} given, expected a value or a mapping with a path")
        return Value("")
    _used(draft, field, text)
    return Value(text)


def _used(draft: Draft, field: str, text: str) -> None:
    draft.note(field, f"command: {text_of(text)}")


def _read_from(draft: Draft, field: str, name: str, raw: FromStep) -> Value:
    source, file = raw.source, f"/{raw.file}" if raw.file else ""
    input_name = _input_name(draft, name)
    draft.reads[input_name] = source
    output = "all outputs" if source.output is None else f"the output {source.output}"
    draft.note(field, f"inputs.{input_name}: {output}{file} of the job of {source.step}, and after it")
    return Value(f"${{{{inputs.{input_name}}}}}{file}", is_expression=True)


def _input_name(draft: Draft, name: str) -> str:
    """A name for an input of the specification that no other one has."""
    taken = {*draft.reads, *draft.spec.get("inputs", {})}
    plain = slug(name)[:60] or "input"
    return next(one for one in (plain, *(f"{plain}-{at}" for at in range(2, 1000))) if one not in taken)


def _data(draft: Draft, fields: Fields, name: str, folder: Path, code: str | None) -> Value:
    """What stands for an input that is data: a path, or a URL that the script opens itself."""
    kind = fields.text("type") or "uri_folder"
    value = fields.take("value")
    if value is None:
        value = fields.take("default")
    mode = fields.text("mode") or "ro_mount"
    path = fields.text("path")
    fields.drop("description", "optional", "min", "max", "enum")
    fields.close()
    if path is None and (text := scalar(value)) is not None:
        _used(draft, fields.path, text)
        return Value(text)
    if path is None:
        refuse_missing(draft, name)
        return Value("")
    if kind not in _DATA_TYPES:
        draft.refuse(fields.name("type"), f"{kind[:40]!r} given, expected one of {', '.join(_DATA_TYPES)}")
    if (found := _DATASTORE.fullmatch(path)) is not None:
        return _in_store(draft, fields, name, mode, *found.groups())
    if path.startswith("azureml:"):
        draft.refuse(fields.name("path"), _ASSET.format(path=path[:80], option=_option(draft, name)))
        return Value(path)
    if _URL.match(path) and not path.startswith("file:"):
        if mode != "direct":
            draft.leave(
                fields.name("mode"), f"nothing is mounted or copied: the script gets the URL {path[:80]}"
            )
        _used(draft, fields.path, path)
        return Value(path)
    local = _local(local_path(path), folder, code)
    _used(draft, fields.path, local)
    if posixpath.isabs(local):
        draft.leave(
            fields.name("path"),
            f"nothing is copied from outside the code folder: every node must be able to read {local[:120]}",
        )
    return Value(local)


def _in_store(draft: Draft, fields: Fields, name: str, mode: str, datastore: str, path: str) -> Value:
    """An input in a datastore, for which operators define a store of the same name."""
    store, path = slug(datastore), posixpath.normpath(path.strip("/") or ".")
    if "*" in path or "${{" in path or path.startswith(".."):
        draft.refuse(fields.name("path"), f"{path[:80]!r} is no single folder or file; name one")
    if mode in _COPIED:
        draft.leave(fields.name("mode"), _COPIED[mode])
    input_name = _input_name(draft, name)
    source = {"store": store or "store"} | ({} if path == "." else {"path": path})
    shown = f"{text_of(source)}; operators define the store"
    draft.put("inputs", source, fields.path, key=input_name, shown=shown)
    return Value(f"${{{{inputs.{input_name}}}}}", is_expression=True)


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


def is_local(path: str) -> bool:
    """True for a path on this machine."""
    return path.startswith("file:") or not _URL.match(path)


def read_outputs(draft: Draft, section: Fields) -> OutputNames:
    """The outputs, each a folder of the job; for a file, the name that it gets in its folder."""
    names: OutputNames = {}
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
        if model and not output:
            draft.leave(fields.name("name"), "no data asset is made of it")
        names[name] = name if kind == "uri_file" else None
        shown = f"{text_of(output)}, a folder that holds the file {name}" if kind == "uri_file" else None
        draft.put("outputs", output, fields.path, key=name, shown=shown)
    return names
