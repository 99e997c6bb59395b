"""Which kind of file of Azure ML, version 2 of its YAML, is given, and what translates it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from remora.job_formats.azureml_command import read_command_job
from remora.job_formats.azureml_pipeline import OTHER_TYPES, translate_pipeline
from remora.job_formats.azureml_sweep import read_sweep
from remora.job_formats.field_outcomes import Draft, Pipeline, Translation

_SCHEMA = re.compile(r"azureml.{0,200}/(\w{1,100})\.schema\.json$", re.IGNORECASE)
_TYPES = ("command", "sweep", "pipeline", *OTHER_TYPES)


def is_azureml(raw: Mapping[Any, Any]) -> bool:
    """True for what says by its schema, its type or its references that it is Azure ML's."""
    if _kind_of_schema(raw) is not None or raw.get("type") in _TYPES:
        return True
    references = (raw.get("environment"), raw.get("compute"))
    return any(isinstance(one, str) and one.startswith("azureml:") for one in references)


def translate(raw: Mapping[Any, Any], folder: Path, inputs: Mapping[str, str]) -> Translation | Pipeline:
    """Translate a command job, a sweep or a pipeline; any other type becomes a problem, and nothing else."""
    kind = _kind_of_schema(raw) or "command"
    if isinstance(given := raw.get("type"), str):
        kind = given
    if kind == "pipeline":
        return translate_pipeline(raw, folder, inputs)
    is_component = kind == "component" or (kind == "command" and _is_component(raw))
    if is_component:
        draft = Draft("an Azure ML command component")
        read_command_job(draft, raw, folder, inputs, is_component=True)
    elif kind == "command":
        draft = Draft("an Azure ML command job")
        read_command_job(draft, raw, folder, inputs)
    elif kind == "sweep":
        draft = Draft("an Azure ML sweep job")
        read_sweep(draft, raw, folder, inputs)
    else:
        draft = Draft("an Azure ML job")
        why = OTHER_TYPES.get(kind, "write a file of type command")
        draft.refuse("type", f"Azure ML's {kind[:40]} jobs are not taken; {why}")
    return draft.finish()


def _kind_of_schema(raw: Mapping[Any, Any]) -> str | None:
    word = _schema(raw)
    if word is None:
        return None
    if word.lower() == "commandcomponent":
        return "component"
    word = re.sub(r"(?<=.)(Job|Component)$", "", word)
    known = {name.replace("_", ""): name for name in _TYPES}
    return known.get(word.lower(), word)


def _schema(raw: Mapping[Any, Any]) -> str | None:
    schema = raw.get("$schema")
    found = _SCHEMA.search(schema) if isinstance(schema, str) else None
    return None if found is None else found.group(1)


def _is_component(raw: Mapping[Any, Any]) -> bool:
    """True for a command component: a job whose inputs are to be given, each with a type and perhaps a default."""
    if (schema := _schema(raw)) is not None:
        return schema.lower() == "commandcomponent"
    inputs = raw.get("inputs")
    kinds = (
        [one for one in inputs.values() if isinstance(one, Mapping)] if isinstance(inputs, Mapping) else []
    )
    return bool(kinds) and not any({"path", "value"} & one.keys() for one in kinds) and "version" in raw
