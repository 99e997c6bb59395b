"""Azure ML `command` jobs, version 2 of its YAML, as job specifications.

The schema: https://learn.microsoft.com/azure/machine-learning/reference-yaml-job-command
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from remora.commands.command_texts import argument_list
from remora.commands.shell_quotes import Value, fill
from remora.foreign.azureml_data import local_path, read_inputs, read_outputs
from remora.foreign.azureml_environment import read_environment
from remora.foreign.translation import Draft, Fields, Remark, Translation, scalar, slug
from remora.spec.expressions import EXPRESSION
from remora.spec.fields import MAX_LABELS, refuses_label, refuses_variable

_SCHEMA = re.compile(r"azureml.{0,200}/(\w{1,100})\.schema\.json$", re.IGNORECASE)
#: What Azure ML collects without being asked, and its name for it.
_DEFAULT_OUTPUT, _DEFAULT_FOLDER = "default", "outputs"
_SCRIPT = re.compile(r"([A-Za-z0-9][\w.-]{0,200})\.(?:py|sh)\b")
_INPUT = re.compile(r"\$\{\{\s*inputs\.([A-Za-z_]\w*)\s*\}\}")
#: What a command has only when the optional inputs in it are given.
_OPTIONAL = re.compile(r"\$\[\[((?:[^\]$]|\](?!\])|\$(?!\[\[))*)\]\]")
_DATA = re.compile(r"(inputs|outputs)\.([A-Za-z_]\w*)(?:\.path)?")
#: What to do with the types of job that are more than one command.
_OTHER_TYPES = {
    "sweep": "write the command of its trial as a specification, and its search space as `array`",
    "pipeline": "submit its steps one after the other, each as a job of its own, with --after and the job before",
    "spark": "Remora trains; run Spark where it runs now",
    "automl": "choose a model and submit its training script as a command",
    "parallel": "submit the script as a command that cuts its data by RANK and WORLD_SIZE",
    "import": "copy the data to where the nodes can read it",
    "data_transfer": "copy the data to where the nodes can read it",
    "finetuning": "submit the training script as a command",
    "distillation": "submit the training script as a command",
}
_RESOURCES = {
    "instance_type": "say what one worker needs: --cpus, --gpus and --memory",
    "shm_size": "a worker sees the shared memory of its node; mount a bigger /dev/shm there",
    "docker_args": "workers run without a container",
    "properties": "nothing here reads them",
    "locations": "the cluster is where it is",
}
_PRIORITIES = {"low": 25, "medium": 50, "high": 75}
_BACKENDS = {"pytorch": "ddp", "mpi": "mpi", "tensorflow": "tensorflow"}


def is_azureml(raw: Mapping[Any, Any]) -> bool:
    """True for what says by its schema, its type or its references that it is Azure ML's."""
    if _kind_of_schema(raw) is not None or raw.get("type") in ("command", *_OTHER_TYPES):
        return True
    references = (raw.get("environment"), raw.get("compute"))
    return any(isinstance(one, str) and one.startswith("azureml:") for one in references)


def translate(raw: Mapping[Any, Any], folder: Path, inputs: Mapping[str, str]) -> Translation:
    """Translate a command job; any other type becomes a problem, and nothing else."""
    kind = _kind_of_schema(raw) or "command"
    if isinstance(given := raw.get("type"), str):
        kind = given
    is_component = kind == "component" or (_is_component(raw) and kind == "command")
    if kind != "command" and not is_component:
        draft = Draft("an Azure ML job")
        why = _OTHER_TYPES.get(kind, "write a file of type command")
        draft.refuse("type", f"Azure ML's {kind[:40]} jobs are not taken; {why}")
        return draft.finish()
    draft = Draft("an Azure ML command component" if is_component else "an Azure ML command job")
    fields = Fields(draft, raw)
    fields.drop("$schema", "type")
    if is_component:
        fields.drop("version", "is_deterministic")
    _names(draft, fields)
    code = _code(draft, fields)
    values = read_inputs(draft, fields.section("inputs"), folder, code, inputs, is_component=is_component)
    outputs = read_outputs(draft, fields.section("outputs"))
    if _DEFAULT_OUTPUT not in outputs:
        draft.put(f"outputs.{_DEFAULT_OUTPUT}", {"path": _DEFAULT_FOLDER}, f"./{_DEFAULT_FOLDER}")
        outputs.add(_DEFAULT_OUTPUT)
    _command(draft, fields, values, outputs)
    _workers(draft, fields)
    _variables(draft, fields, values)
    _told(draft)
    _limits(draft, fields)
    _rest(draft, fields, folder)
    fields.close()
    return draft.finish()


def _kind_of_schema(raw: Mapping[Any, Any]) -> str | None:
    schema = raw.get("$schema")
    found = _SCHEMA.search(schema) if isinstance(schema, str) else None
    if found is None:
        return None
    word = re.sub(r"Job$", "", found.group(1))
    word = "component" if _is_component(raw) else word
    known = {name.replace("_", ""): name for name in _OTHER_TYPES}
    return known.get(word.lower(), word)


def _is_component(raw: Mapping[Any, Any]) -> bool:
    """True for a command component: a job whose inputs are to be given, each with a type and perhaps a default."""
    schema = raw.get("$schema")
    found = _SCHEMA.search(schema) if isinstance(schema, str) else None
    return found is not None and found.group(1).lower() == "commandcomponent"


def _names(draft: Draft, fields: Fields) -> None:
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


def _command(draft: Draft, fields: Fields, values: dict[str, str], outputs: set[str]) -> None:
    template = fields.text("command")
    if template is None:
        if not draft.problems:
            draft.refuse("command", "missing; a command job has one")
        return
    template = _OPTIONAL.sub(lambda part: _chosen(part.group(1), values), template)
    if "$[[" in template:
        draft.refuse("command", "a part $[[...]] of it does not end; write ]] behind it")

    def value(match: re.Match[str]) -> Value:
        data = _DATA.fullmatch(match.group(1).strip())
        if data is None:
            draft.refuse("command", f"{match.group()[:80]} is neither an input nor an output of the job")
        elif data.group(2) not in (values if data.group(1) == "inputs" else outputs):
            draft.refuse("command", f"{match.group()[:80]} is not among the job's {data.group(1)}")
        elif data.group(1) == "inputs":
            return Value(values[data.group(2)])
        else:
            return Value(f"${{{{outputs.{data.group(2)}}}}}", is_expression=True)
        return Value("")

    try:
        filled = fill(template, EXPRESSION, value)
    except ValueError as error:
        draft.refuse("command", str(error))
        return
    try:
        words = argument_list(filled)
    except ValueError as error:
        draft.refuse("command", f"the command line cannot be split into words: {error}")
    else:
        draft.put("command", words, "command")
        if "name" not in draft.spec and (script := _SCRIPT.search(words[-1])) and words[0] == "bash":
            draft.put("name", slug(script.group(1)), "command")


def _chosen(part: str, values: Mapping[str, str]) -> str:
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
        draft.refuse("distribution.type", "Remora runs on Ray, and hands no cluster to a script; use pytorch")
    elif kind and kind not in _BACKENDS:
        draft.refuse("distribution.type", f"{kind[:40]!r} given, expected pytorch, mpi or tensorflow")
    if kind != "ray":
        distribution.close()
    draft.put("backend", _BACKENDS.get(kind, "command"), "distribution.type" if kind else "no distribution")
    workers = instances * each if most == instances else {"min": instances * each, "max": most * each}
    draft.put("workers", workers, source)


def _variables(draft: Draft, fields: Fields, values: dict[str, str]) -> None:
    section = fields.section("environment_variables")
    for name, value in section.items():
        text = scalar(value)
        if text is not None:
            text = _INPUT.sub(lambda match: values.get(match.group(1), match.group()), text)
        if text is None:
            draft.refuse(section.name(name), "expected a text, a number or a boolean")
        elif refusal := refuses_variable(name):
            draft.leave(section.name(name), refusal)
        else:
            draft.put_variable(name, text, section.name(name))


def _told(draft: Draft) -> None:
    """Variables that scripts know from Azure ML, as far as they mean something here; the job's own come first."""
    known = {"AZUREML_RUN_ID": "${{job.id}}", "AZUREML_ROOT_RUN_ID": "${{job.id}}"}
    if draft.spec.get("backend") != "command":
        known["AZ_BATCH_MASTER_NODE"] = "${{master.address}}:${{master.port}}"
        known["AZ_BATCHAI_MPI_MASTER_NODE"] = "${{master.address}}"
    own = draft.spec.setdefault("environment", {}).setdefault("variables", {})
    own.update({name: value for name, value in known.items() if name not in own})
    draft.mapped.append(Remark("AZUREML_RUN_ID, ...", "environment.variables, as Azure ML sets them"))


def _limits(draft: Draft, fields: Fields) -> None:
    limits = fields.section("limits")
    timeout = limits.whole("timeout")
    if timeout is not None:
        draft.put("limits.run_time", timeout, limits.name("timeout"), shown=f"{timeout} s")
    limits.close()


def _rest(draft: Draft, fields: Fields, folder: Path) -> None:
    read_environment(draft, fields.take("environment"), folder)
    fields.leave("compute", "there is one pool of nodes; say what a worker needs: --cpus, --gpus, --memory")
    fields.leave("description", "a job has no description")
    for place, (name, value) in enumerate(fields.section("tags").items()):
        text = scalar(value)
        refusal = (
            refuses_label(name, text) if place < MAX_LABELS else f"a job has at most {MAX_LABELS} labels"
        )
        if refusal:
            draft.leave(f"tags.{name}"[:80], refusal)
        else:
            draft.put("labels", text, f"tags.{name}", key=name)
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
