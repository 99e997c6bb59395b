"""What `${{parent...}}` in a step of an Azure ML pipeline stands for.  Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from remora.job_commands.expressions import EXPRESSION
from remora.job_formats.azureml_data import FromStep
from remora.job_formats.field_outcomes import Draft, scalar
from remora.spec.pipeline_steps import StepOutput

_WORD = r"([A-Za-z_][\w-]{0,200})"
_PARENT = re.compile(
    rf"parent\.(?:inputs\.{_WORD}|outputs\.{_WORD}|jobs\.{_WORD}\.outputs\.{_WORD})(?:\.path)?", re.ASCII
)
_JOBS = re.compile(rf"\$\{{\{{\s*parent\.jobs\.{_WORD}\.", re.ASCII)


@dataclass(frozen=True)
class ParentOutput:
    """Stands in a step's outputs for an output of its pipeline."""

    name: str


@dataclass(frozen=True, kw_only=True)
class Scope:
    """What the steps of one pipeline can refer to."""

    #: Names with values as the file has them; None for optional ones without a value.
    inputs: Mapping[Any, Any]
    outputs: Mapping[Any, Any]
    #: What the steps before write, by the names of steps and outputs; None for a step that is refused itself.
    written: Mapping[str, Mapping[str, FromStep] | None]


def resolve(draft: Draft, field: str, value: Any, scope: Scope) -> Any:
    """`value` with what its references stand for: text for text inside others, else whole values."""
    if isinstance(value, str):
        return _resolve_text(draft, field, value, scope)
    if isinstance(value, list):
        return [resolve(draft, field, one, scope) for one in value]
    if not isinstance(value, Mapping):
        return value
    found = {key: resolve(draft, f"{field}.{str(key)[:80]}", one, scope) for key, one in value.items()}
    path = found.get("path")
    # Data of which only the path refers to something else is that.
    if isinstance(path, Mapping):
        return {**path, **{key: one for key, one in found.items() if key != "path"}}
    return path if isinstance(path, FromStep) else found


def _resolve_text(draft: Draft, field: str, text: str, scope: Scope) -> Any:
    if (whole := EXPRESSION.fullmatch(text.strip())) is not None:
        return _meaning(draft, field, whole, scope)

    def part(match: re.Match[str]) -> str:
        found = _meaning(draft, field, match, scope)
        if (inside := scalar(found)) is None:
            draft.refuse(field, f"{match.group()[:80]} is no value that can stand inside of a text")
        return inside or ""

    return EXPRESSION.sub(part, text)


def _meaning(draft: Draft, field: str, match: re.Match[str], scope: Scope) -> Any:
    found = _PARENT.fullmatch(match.group(1).strip())
    if found is None:
        return match.group()
    in_input, in_output, step, output = found.groups()
    if step is not None:
        return _written(draft, field, match.group()[:120], step, output, scope)
    if in_output is not None:
        if in_output not in scope.outputs:
            draft.refuse(field, f"{match.group()[:80]} is not among the pipeline's outputs")
        return ParentOutput(in_output)
    if in_input not in scope.inputs:
        draft.refuse(field, f"{match.group()[:80]} is not among the pipeline's inputs")
    return scope.inputs.get(in_input)


def _written(draft: Draft, field: str, text: str, step: str, output: str, scope: Scope) -> FromStep:
    outputs = scope.written.get(step, {})
    if outputs is not None and output in outputs:
        return outputs[output]
    if outputs is not None:
        what = f"output {output[:80]!r} of the step" if step in scope.written else "step"
        draft.refuse(field, f"{text}: there is no {what} {step[:80]!r}")
    return FromStep(StepOutput(step, output))


def steps_in(value: Any) -> Iterator[str]:
    """Names of the steps that a section refers to."""
    if isinstance(value, str):
        yield from (match.group(1) for match in _JOBS.finditer(value))
    elif isinstance(value, Mapping | list):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from steps_in(one)
