"""Azure ML pipelines, version 2 of their YAML: each step becomes a job that waits for those whose outputs it reads.

The schema: https://learn.microsoft.com/azure/machine-learning/reference-yaml-job-pipeline
"""

from __future__ import annotations

import graphlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from remora.errors import SpecError
from remora.job_formats.azureml_command import read_command_job, read_labels, read_names, read_surroundings
from remora.job_formats.azureml_component import (
    Component,
    anchored,
    one_job,
    outputs_of,
    read_component,
    values_of,
)
from remora.job_formats.azureml_data import FromStep, OutputNames, given_value, refuse_missing
from remora.job_formats.azureml_references import ParentOutput, Scope, resolve, steps_in
from remora.job_formats.azureml_sweep import read_sweep
from remora.job_formats.field_outcomes import Draft, Fields, Pipeline, relative_code, slug
from remora.spec.pipeline_steps import MAX_STEPS, PipelineStep, StepOutput, in_order
from remora.spec.problems import short

#: What to do with the types of jobs and steps that are no commands.
OTHER_TYPES = {
    "spark": "Remora trains; run Spark where it runs now",
    "automl": "choose a model and submit its training script as a command",
    "parallel": "submit the script as a command that splits its data by RANK and WORLD_SIZE",
    "import": "copy the data to where the nodes can read it",
    "data_transfer": "copy the data to where the nodes can read it",
    "finetuning": "submit the training script as a command",
    "distillation": "submit the training script as a command",
}
#: Pipelines inside of each other.
_MAX_DEPTH = 8
#: The output with all that Azure ML keeps of a step, in which ./outputs is a folder.
_ARTIFACTS, _OUTPUTS_FOLDER = "artifacts", "outputs"
_SETTINGS = {
    "default_compute": "there is one pool of nodes; say what a worker needs: --cpus, --gpus, --memory",
    "default_datastore": "outputs are kept with the job; `remora outputs JOB --download DIR` fetches them",
    "on_init": "nothing is run before the steps; make it a step whose output they read",
    "on_finalize": "nothing is run after the steps; submit it with --after and their jobs",
}


def translate_pipeline(raw: Mapping[Any, Any], folder: Path, given: Mapping[str, str]) -> Pipeline:
    """Translate a pipeline; `given` has values for its inputs, and as STEP.NAME for those of its steps."""
    whole = Draft("an Azure ML pipeline")
    fields = Fields(whole, raw)
    fields.drop("$schema", "type", "version", "is_deterministic")
    read_names(whole, fields)
    read_labels(whole, fields)
    read_surroundings(whole, fields)
    _read_settings(whole, fields.section("settings"))
    named = fields.take("component")
    component = Component(raw, folder) if named is None else read_component(whole, "component", named, folder)
    inputs, outputs, _ = (fields.take(key) for key in ("inputs", "outputs", "jobs"))
    fields.close()
    if isinstance(name := whole.spec.pop("name", None), str):
        # A pipeline has no name of its own: it is a label of its steps.
        whole.mapped = [one for one in whole.mapped if not one.text.startswith("name: ")]
        whole.note("display_name" if "display_name" in raw else "name", f"labels.pipeline: {name}")
        whole.spec["labels"] = {"pipeline": name, **whole.spec.get("labels", {})}
    expansion = _Expansion(whole, folder, dict(given))
    if component is not None:
        values = _values(whole, component, inputs, folder, expansion.given)
        own = outputs_of(component.fields.get("outputs"), outputs)
        scope = Scope(inputs=values, outputs=own, written={})
        expansion.expand(component.fields.get("jobs"), component.folder, scope, "")
    return expansion.finish()


def _values(
    draft: Draft, component: Component, said: Any, folder: Path, given: dict[str, str]
) -> dict[Any, Any]:
    """Values of a pipeline's inputs: taken out of `given`, else the job's, else defaults; None for optional ones."""
    defined = anchored(component.fields, component.folder).get("inputs")
    values = dict(defined) if isinstance(defined, Mapping) else {}
    if isinstance(said, Mapping):
        values |= anchored({"inputs": said}, folder)["inputs"]
    for name, value in values.items():
        if name in given:
            values[name] = given_value(given.pop(name))
        elif isinstance(value, Mapping) and not {"path", "value"} & value.keys():
            values[name] = value.get("default")
            if values[name] is None and value.get("optional") is not True:
                refuse_missing(draft, str(name))
                values[name] = ""
        elif value is None:
            refuse_missing(draft, str(name))
            values[name] = ""
    return values


def _read_settings(draft: Draft, settings: Fields) -> None:
    for key, instead in _SETTINGS.items():
        settings.leave(key, instead)
    if settings.take("continue_on_step_failure") is False:
        why = "steps that do not need a failed one go on; `remora cancel` ends them"
        draft.leave(settings.name("continue_on_step_failure"), why)
    settings.drop("force_rerun", "continue_run_on_failed_optional_input", "_source")
    settings.close()


class _Expansion:
    """The steps of a pipeline, and of those inside of it, while they are read."""

    def __init__(self, whole: Draft, folder: Path, given: dict[str, str]) -> None:
        self.given = given
        self._whole = whole
        self._folder = folder
        self._steps: list[PipelineStep] = []
        self._count = 0

    def expand(
        self, jobs: Any, folder: Path, scope: Scope, prefix: str, depth: int = 0
    ) -> dict[str, FromStep]:
        """Read the steps in `jobs`; returns what became of the outputs of their pipeline."""
        steps = self._in_order(jobs, prefix)
        written: dict[str, Mapping[str, FromStep] | None] = {}
        exported: dict[str, FromStep] = {}
        scope = Scope(inputs=scope.inputs, outputs=scope.outputs, written=written)
        for name, raw in steps.items():
            self._count += 1
            if self._count > MAX_STEPS or depth > _MAX_DEPTH:
                limit = (
                    f"{MAX_STEPS} steps" if depth <= _MAX_DEPTH else f"{_MAX_DEPTH} pipelines in each other"
                )
                self._whole.refuse("jobs", f"more than {limit}; submit it in several parts")
                break
            draft = Draft(self._whole.source, f"jobs.{prefix}{name}.")
            found, bound = self._step(draft, f"{prefix}{name}", raw, folder, scope, depth)
            exported |= {output: found[own] for own, output in bound.items() if own in found}
            written[name] = found or None
            self._whole.take_notes(draft)
        return exported

    def _in_order(self, jobs: Any, prefix: str) -> dict[str, Mapping[Any, Any]]:
        field = f"jobs.{prefix}".rstrip(".")
        if not isinstance(jobs, Mapping) or not jobs:
            self._whole.refuse(
                field, f"{short(jobs)} given, expected the steps of the pipeline by their names"
            )
            return {}
        named = {str(name): one for name, one in jobs.items() if isinstance(one, Mapping)}
        for name, one in jobs.items():
            if not isinstance(one, Mapping):
                self._whole.refuse(f"{field}.{str(name)[:80]}", f"{short(one)} given, expected a step")
        needs = {
            name: [other for other in steps_in(one.get("inputs")) if other in named]
            for name, one in named.items()
        }
        try:
            return {name: named[name] for name in graphlib.TopologicalSorter(needs).static_order()}
        except graphlib.CycleError as error:
            self._whole.refuse(field, f"steps wait for each other: {' -> '.join(error.args[1])[:300]}")
            return {}

    def _step(
        self, draft: Draft, name: str, raw: Mapping[Any, Any], folder: Path, scope: Scope, depth: int
    ) -> tuple[Mapping[str, FromStep], dict[str, str]]:
        """Read one step: what it writes, and which outputs of its pipeline its own outputs are."""
        inside = ("component", "trial", "command", "jobs")
        step = anchored(raw, folder)
        step = {
            key: one if key in inside else resolve(draft, str(key)[:80], one, scope)
            for key, one in step.items()
        }
        bound = _take_bound(step, scope)
        kind = "trial" if step.get("type") == "sweep" else "component"
        component = None
        if step.get(kind) is not None and not (kind == "trial" and _is_plain_trial(step)):
            component = read_component(draft, kind, step[kind], folder)
            if component is None:
                return {}, bound
        self._take_given(name, step, component)
        word = step.get("type") or (component.fields.get("type") if component else None) or "command"
        if word == "pipeline" and component is not None:
            return self._nested(draft, name, step, component, depth), bound
        if word in ("command", "sweep"):
            return self._job(draft, name, step, component, is_sweep=word == "sweep"), bound
        why = OTHER_TYPES.get(str(word), "make it a step of type command")
        draft.refuse("type", f"steps of the type {str(word)[:40]} are not taken; {why}")
        return {}, bound

    def _take_given(self, name: str, step: dict[Any, Any], component: Component | None) -> None:
        """Put the values that are given as STEP.NAME into the step; those of no input are left to be refused."""
        inputs = step.get("inputs") or {}
        defined = {} if component is None else component.fields.get("inputs") or {}
        if not isinstance(inputs, Mapping) or not isinstance(defined, Mapping):
            return
        for one in {*inputs, *defined}:
            if (given := self.given.pop(f"{name}.{one}", None)) is not None:
                inputs = {**inputs, one: given_value(given)}
        step["inputs"] = inputs

    def _nested(
        self, draft: Draft, name: str, step: Mapping[Any, Any], component: Component, depth: int
    ) -> Mapping[str, FromStep]:
        definition = anchored(component.fields, component.folder)
        inputs = definition.get("inputs")
        values: dict[Any, Any] = dict.fromkeys(inputs) if isinstance(inputs, Mapping) else {}
        values |= values_of(draft, inputs, step.get("inputs"))
        scope = Scope(
            inputs=values, outputs=outputs_of(definition.get("outputs"), step.get("outputs")), written={}
        )
        return self.expand(definition.get("jobs"), component.folder, scope, f"{name}.", depth + 1)

    def _job(
        self, draft: Draft, name: str, step: dict[Any, Any], component: Component | None, *, is_sweep: bool
    ) -> Mapping[str, FromStep]:
        draft.spec["name"] = slug(name) or "step"
        job = step if component is None or is_sweep else one_job(draft, step, component)
        job = {
            key: value for key, value in job.items() if key not in ("name", "display_name", "experiment_name")
        }
        keeps_all = _takes_artifacts(job)
        if is_sweep:
            outputs: OutputNames = read_sweep(draft, job, self._folder, {}, component)
        else:
            default = _OUTPUTS_FOLDER if keeps_all else "default"
            outputs = read_command_job(draft, job, self._folder, {}, default_output=default)
        draft.spec = _with_defaults(draft.spec, self._whole.spec)
        relative_code(draft.spec, self._folder)
        self._steps.append(PipelineStep(name=name, spec=draft.spec, reads=draft.reads))
        written = {output: FromStep(StepOutput(name, output), file) for output, file in outputs.items()}
        return written | ({_ARTIFACTS: FromStep(StepOutput(name, None))} if keeps_all else {})

    def finish(self) -> Pipeline:
        """All steps in their order, with what became of the fields of each."""
        for key in self.given:
            self._whole.refuse("inputs", f"there is no input {key[:80]!r} that --input could give")
        steps = self._steps
        if not self._whole.problems:
            try:
                steps = in_order(steps)
            except SpecError as error:
                self._whole.problems += error.problems
        return self._whole.finish_pipeline(steps)


def _take_bound(step: dict[Any, Any], scope: Scope) -> dict[str, str]:
    """Outputs of the step that are outputs of its pipeline, which then say what each is."""
    outputs = step.get("outputs")
    if not isinstance(outputs, Mapping):
        return {}
    bound = {str(own): one.name for own, one in outputs.items() if isinstance(one, ParentOutput)}
    step["outputs"] = {
        own: scope.outputs.get(one.name) if isinstance(one, ParentOutput) else one
        for own, one in outputs.items()
    }
    return bound


def _is_plain_trial(step: Mapping[Any, Any]) -> bool:
    """True for a trial that is a command, whose inputs are those of its sweep, and no component."""
    trial = step.get("trial")
    return isinstance(trial, Mapping) and "inputs" not in trial


def _takes_artifacts(job: dict[Any, Any]) -> bool:
    """Take the output `artifacts`, which is all that a step has stored, unless its command writes to it."""
    outputs, command = job.get("outputs"), job.get("command")
    if (
        not isinstance(outputs, Mapping)
        or _ARTIFACTS not in outputs
        or f"outputs.{_ARTIFACTS}" in str(command)
    ):
        return False
    job["outputs"] = {name: one for name, one in outputs.items() if name != _ARTIFACTS}
    return _OUTPUTS_FOLDER not in job["outputs"]


def _with_defaults(spec: dict[str, Any], common: Mapping[str, Any]) -> dict[str, Any]:
    labels = {**common.get("labels", {}), **spec.get("labels", {})}
    return {**common, **spec, **({"labels": labels} if labels else {})}
