"""What one command of Azure ML, version 2 of its YAML, becomes: a job, a component, a step, or the trial of a sweep.

The schema: https://learn.microsoft.com/azure/machine-learning/reference-yaml-job-command
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from remora.job_commands.command_texts import argument_list
from remora.job_commands.expressions import EXPRESSION
from remora.job_commands.shell_quotes import Value, fill
from remora.job_formats.azureml_data import OutputNames, local_path, read_inputs, read_outputs
from remora.job_formats.azureml_environment import read_environment
from remora.job_formats.field_outcomes import Draft, Fields, scalar, slug
from remora.spec.fields import MAX_LABELS, refuses_label, refuses_variable

#: What Azure ML collects without being asked.
_DEFAULT_FOLDER = "outputs"
_SCRIPT = re.compile(r"([A-Za-z0-9][\w.-]{0,200})\.(?:py|sh)\b")
_INPUT = re.compile(r"\$\{\{\s*inputs\.([A-Za-z_]\w*)\s*\}\}")
#: What a command has only when the optional inputs in it are given.
_OPTIONAL = re.compile(r"\$\[\[((?:[^\]$]|\](?!\])|\$(?!\[\[))*)\]\]")
_DATA = re.compile(r"(inputs|outputs|search_space)\.([A-Za-z_]\w*)(?:\.path)?")
_RESOURCES = {
    "instance_type": "say what one worker needs: --cpus, --gpus and --memory",
    "shm_size": "a worker sees the shared memory of its node; mount a bigger /dev/shm there",
    "docker_args": "workers run without a container",
    "properties": "nothing here reads them",
    "locations": "the cluster is where it is",
}
_PRIORITIES = {"low": 25, "medium": 50, "high": 75}
_BACKENDS = {"pytorch": "ddp", "mpi": "mpi", "tensorflow": "tensorflow"}


def read_command_job(
    draft: Draft,
    raw: Mapping[Any, Any],
    folder: Path,
    given: Mapping[str, str],
    *,
    is_component: bool = False,
    parameters: Collection[str] = (),
    default_output: str = "default",
) -> OutputNames:
    """Read a command job, whose search space has `parameters`; returns its outputs, each with the file in it, if any.

    `folder` is the absolute folder that paths start from; `given` stands above the values of inputs; ./outputs becomes
    the output `default_output`.
    """
    fields = Fields(draft, raw)
    fields.drop("$schema", "type")
    if is_component:
        fields.drop("version", "is_deterministic")
    read_names(draft, fields)
    code = _code(draft, fields)
    values = read_inputs(draft, fields.section("inputs"), folder, code, given, is_component=is_component)
    outputs = read_outputs(draft, fields.section("outputs"))
    if default_output not in outputs:
        draft.put(f"outputs.{default_output}", {"path": _DEFAULT_FOLDER}, f"./{_DEFAULT_FOLDER}")
        outputs[default_output] = None
    _command(draft, fields, values, outputs, parameters)
    _workers(draft, fields)
    _variables(draft, fields, values)
    _azureml_variables(draft)
    _limits(draft, fields)
    read_environment(draft, fields.take("environment"), folder)
    read_labels(draft, fields)
    read_surroundings(draft, fields)
    fields.close()
    return outputs


def read_names(draft: Draft, fields: Fields) -> None:
    """Take the name and the project."""
    given = {key: fields.text(key) for key in ("display_name", "name", "experiment_name")}
    key = next((key for key in ("display_name", "name") if slug(given[key] or "")), None)
    if key is not None:
        draft.put("name", slug(given[key] or ""), key)
    if key == "display_name" and given["name"]:
        draft.leave("name", "a job gets an id of its own; display_name became its name")
    if project := slug(given["experiment_name"] or ""):
        draft.put("project", project, "experiment_name")


def _code(draft: Draft, fields: Fields) -> str | None:
    code = fields.text("code")
    if code is None:
        return None
    if re.match(r"[a-z+]+:", code) and not code.startswith("file:"):
        draft.refuse("code", f"{code[:80]} is no folder on this machine; name one")
        return None
    path = local_path(code)
    draft.put("code", path, "code")
    return path


def _command(
    draft: Draft,
    fields: Fields,
    values: Mapping[str, Value],
    outputs: OutputNames,
    parameters: Collection[str],
) -> None:
    template = fields.text("command")
    if template is None:
        if not draft.problems:
            draft.refuse("command", "missing; a command job has one")
        return
    template = _OPTIONAL.sub(lambda part: _chosen(part.group(1), values), template)
    if "$[[" in template:
        draft.refuse("command", "a part $[[...]] of it does not end; write ]] behind it")

    def value(match: re.Match[str]) -> Value:
        found = _value(match.group(1).strip(), values, outputs, parameters)
        if isinstance(found, str):
            draft.refuse("command", f"{match.group()[:80]} {found}")
            return Value("")
        return found

    try:
        words = argument_list(fill(template, EXPRESSION, value))
    except ValueError as error:
        draft.refuse("command", str(error))
        return
    draft.put("command", words, "command")
    if "name" not in draft.spec and (script := _SCRIPT.search(words[-1])) and words[0] == "bash":
        draft.put("name", slug(script.group(1)), "command")


def _value(
    word: str, values: Mapping[str, Value], outputs: OutputNames, parameters: Collection[str]
) -> Value | str:
    """What stands for the expression with this word, or why nothing does."""
    data = _DATA.fullmatch(word)
    if data is None:
        return "is neither an input nor an output of the job"
    kind, name = data.groups()
    if name not in {"inputs": values, "outputs": outputs, "search_space": parameters}[kind]:
        return f"is not among the job's {kind}"
    if kind == "inputs":
        return values[name]
    if kind == "search_space":
        return Value(f"${{{{array.{name}}}}}", is_expression=True)
    file = outputs[name]
    return Value(f"${{{{outputs.{name}}}}}" + (f"/{file}" if file else ""), is_expression=True)


def _chosen(part: str, values: Mapping[str, Value]) -> str:
    """An optional part of a command, when all inputs that it names have a value; else nothing."""
    return part if all(match.group(1) in values for match in _INPUT.finditer(part)) else ""


def _workers(draft: Draft, fields: Fields) -> None:
    resources = fields.section("resources")
    instances = resources.whole("instance_count") or 1
    most = max(resources.whole("max_instance_count") or instances, instances)
    for key, instead in _RESOURCES.items():
        resources.leave(key, instead)
    resources.close()
    distribution = fields.section("distribution")
    kind = (distribution.text("type") or "").lower()
    each, source = 1, "resources.instance_count"
    if kind == "tensorflow":
        instances = most = distribution.whole("worker_count") or instances
        source = "distribution.worker_count"
        if servers := distribution.whole("parameter_server_count", least=0):
            draft.leave(
                distribution.name("parameter_server_count"),
                f"the {servers} parameter servers are left out; use MultiWorkerMirroredStrategy",
            )
    elif kind:
        each = distribution.whole("process_count_per_instance") or 1
        source = "resources.instance_count, distribution.process_count_per_instance"
    if kind == "ray":
        draft.refuse("distribution.type", "Remora runs on Ray, and gives no cluster to a script; use pytorch")
    elif kind and kind not in _BACKENDS:
        draft.refuse("distribution.type", f"{kind[:40]!r} given, expected pytorch, mpi or tensorflow")
    if kind != "ray":
        distribution.close()
    draft.put("backend", _BACKENDS.get(kind, "command"), "distribution.type" if kind else "no distribution")
    workers = instances * each if most == instances else {"min": instances * each, "max": most * each}
    draft.put("workers", workers, source)


def _variables(draft: Draft, fields: Fields, values: Mapping[str, Value]) -> None:
    section = fields.section("environment_variables")
    for name, value in section.items():
        text = scalar(value)
        if text is not None:
            text = _INPUT.sub(lambda match: _text_of_input(match, values), text)
        if text is None:
            draft.refuse(section.name(name), "expected a text, a number or a boolean")
        elif refusal := refuses_variable(name):
            draft.leave(section.name(name), refusal)
        else:
            draft.put_variable(name, text, section.name(name))


def _text_of_input(match: re.Match[str], values: Mapping[str, Value]) -> str:
    found = values.get(match.group(1))
    return match.group() if found is None else found.text


def _azureml_variables(draft: Draft) -> None:
    """Variables that scripts know from Azure ML, as far as they mean something here; the job's own come first."""
    known = {"AZUREML_RUN_ID": "${{job.id}}", "AZUREML_ROOT_RUN_ID": "${{job.id}}"}
    if draft.spec.get("backend") != "command":
        known["AZ_BATCH_MASTER_NODE"] = "${{master.address}}:${{master.port}}"
        known["AZ_BATCHAI_MPI_MASTER_NODE"] = "${{master.address}}"
    own = draft.spec.setdefault("environment", {}).setdefault("variables", {})
    own.update({name: value for name, value in known.items() if name not in own})
    draft.note("AZUREML_RUN_ID, ...", "environment.variables, as Azure ML sets them")


def _limits(draft: Draft, fields: Fields) -> None:
    limits = fields.section("limits")
    timeout = limits.whole("timeout")
    if timeout is not None:
        draft.put("limits.run_time", timeout, limits.name("timeout"), shown=f"{timeout} s")
    limits.close()


def read_labels(draft: Draft, fields: Fields) -> None:
    """Take the tags that can be labels."""
    for place, (name, value) in enumerate(fields.section("tags").items()):
        text = scalar(value)
        refusal = (
            refuses_label(name, text) if place < MAX_LABELS else f"a job has at most {MAX_LABELS} labels"
        )
        if refusal:
            draft.leave(f"tags.{name}"[:80], refusal)
        else:
            draft.put("labels", text, f"tags.{name}", key=name)


def read_surroundings(draft: Draft, fields: Fields) -> None:
    """Take where and for whom the job runs, most of which is not honoured."""
    fields.leave("compute", "there is one pool of nodes; say what a worker needs: --cpus, --gpus, --memory")
    fields.leave("description", "a job has no description")
    fields.leave("identity", "a script reads data with what its node may read")
    services = fields.section("services")
    for name, _ in services.items():
        draft.leave(services.name(name), "nothing is opened into a running job; `remora logs -f` shows it")
    queue = fields.section("queue_settings")
    priority = queue.text("priority")
    if priority is not None and priority.lower() in _PRIORITIES:
        draft.put("priority", _PRIORITIES[priority.lower()], queue.name("priority"))
    elif priority is not None:
        draft.refuse(queue.name("priority"), f"{priority[:40]!r} given, expected low, medium or high")
    queue.leave("job_tier", "there is one kind of node, and a job outlives the loss of any")
    queue.close()
