"""The command `submit`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from remora.cli import arrays, output, schedules
from remora.cli.changes import json_or_text, labels_of
from remora.cli.conversion import print_remarks, read_file, translate
from remora.cli.dry_runs import try_out, try_out_steps
from remora.cli.exits import code_of_state
from remora.cli.freezing import freeze
from remora.cli.jobs import duration_option
from remora.cli.options import InputOption, JsonOption, ServerOption
from remora.cli.pipelines import refuse_options_of_one, send_pipeline
from remora.cli.session import connect, detaching
from remora.spec.backends import BACKEND_WORDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remora.spec.pipeline_steps import PipelineStep
    from remora.spec.spec import JobSpec
    from remora.views import JobArray, Schedule

    #: Values of options, None for those that are not given, and the section of the specification in which they belong.
    Options = tuple[dict[str, Any], str | None]
    Steps = list[PipelineStep]

_SPEC_SUFFIXES = (".yaml", ".yml", ".json")


def submit(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE|-- COMMAND",
            help="A specification (YAML or JSON; - reads standard input), a job of Azure ML or Kubeflow, or after --"
            " the command to run.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the job.")] = None,
    project: Annotated[str | None, typer.Option("--project", help="Project of the job.")] = None,
    code: Annotated[
        Path | None, typer.Option("--code", metavar="DIR", help="Folder of the code; else this one.")
    ] = None,
    no_code: Annotated[bool, typer.Option("--no-code", help="Send no code along.")] = False,
    entrypoint: Annotated[
        str | None,
        typer.Option(
            "--entrypoint",
            metavar="MODULE:FUNCTION",
            help="Call a function of the code; after -- come its arguments, NAME=VALUE.",
        ),
    ] = None,
    backend: Annotated[str | None, typer.Option("--backend", help=f"{BACKEND_WORDS}.")] = None,
    workers: Annotated[
        str | None, typer.Option("--workers", "-w", metavar="N | MIN:MAX", help="Number of workers.")
    ] = None,
    cpus: Annotated[float | None, typer.Option("--cpus", help="CPUs per worker.")] = None,
    gpus: Annotated[float | None, typer.Option("--gpus", help="GPUs per worker.")] = None,
    memory: Annotated[
        str | None, typer.Option("--memory", metavar="SIZE", help="Memory per worker, e.g. 8GiB.")
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option("--env", "-e", metavar="NAME=VALUE", help="Environment variable; repeat it."),
    ] = None,
    pip: Annotated[
        list[str] | None,
        typer.Option(
            "--pip",
            metavar="REQUIREMENT",
            help="Package for the job's environment, as pip writes it; repeat it.",
        ),
    ] = None,
    image: Annotated[
        str | None,
        typer.Option("--image", metavar="NAME", help="Image of the container in which the command runs."),
    ] = None,
    requirements: Annotated[
        str | None,
        typer.Option("--requirements", metavar="FILE", help="File of the code that lists such packages."),
    ] = None,
    python: Annotated[
        str | None,
        typer.Option("--python", metavar="VERSION", help="Version of Python, e.g. 3.12; else the nodes'."),
    ] = None,
    frozen: Annotated[
        bool,
        typer.Option("--freeze", help="Replace its requirements by the exact versions that uv finds now."),
    ] = False,
    pool: Annotated[
        list[str] | None,
        typer.Option("--pool", metavar="NAME", help="Pool of nodes; repeat it, the preferred one first."),
    ] = None,
    capacity: Annotated[
        str | None,
        typer.Option(
            "--capacity",
            metavar="TYPE",
            help="spot, on-demand, prefer-spot or mixed; else what the pool buys.",
        ),
    ] = None,
    fabric: Annotated[
        str | None,
        typer.Option(
            "--fabric",
            metavar="TYPE",
            help="infiniband: all workers on machines that it joins; else any.",
        ),
    ] = None,
    priority: Annotated[int | None, typer.Option("--priority", help="0 to 100; higher goes first.")] = None,
    checkpoint_interval: Annotated[
        str | None,
        typer.Option("--checkpoint-interval", metavar="DURATION", help="Time between checkpoints, or none."),
    ] = None,
    checkpoint_keep: Annotated[
        int | None, typer.Option("--checkpoint-keep", help="Checkpoints to keep.")
    ] = None,
    retries: Annotated[
        int | None, typer.Option("--retries", help="New attempts after failures of the code.")
    ] = None,
    run_time: Annotated[
        str | None, typer.Option("--run-time", metavar="DURATION", help="Longest time to train.")
    ] = None,
    after: Annotated[
        list[str] | None,
        typer.Option(
            "--after",
            metavar="JOB[:END]",
            help="Wait for another job's success, or for its failure or any end; repeat it.",
        ),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option("--label", "-l", metavar="NAME=VALUE", help="Label of the job; repeat it."),
    ] = None,
    inputs: InputOption = None,
    idempotency_key: Annotated[
        str | None,
        typer.Option("--idempotency-key", metavar="KEY", help="Submitting twice with one key makes one job."),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Watch the job until it has ended.")] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Submit nothing: show every problem, and the job with all defaults."),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the job's id.")] = False,
    as_json: JsonOption = False,
    server: ServerOption = None,
) -> None:
    """Submit a job: `remora submit job.yaml`, or `remora submit --workers 1:3 -- train.py --epochs 5`."""
    if entrypoint is not None:
        jobs: Steps | dict[str, Any] = _called(entrypoint, words or [], inputs or [])
    elif words:
        jobs = _jobs_in(words, inputs or [], quiet=quiet)
    else:
        raise typer.BadParameter("name a specification's file, or write -- and the command to run")
    options: list[Options] = [
        ({"name": name, "project": project, "backend": backend, "priority": priority}, None),
        ({"workers": _workers(workers)}, None),
        ({"cpus": cpus, "gpus": gpus, "memory": _number_or_text(memory)}, "resources"),
        ({"pools": pool or None, "capacity": capacity, "fabric": fabric}, "placement"),
        (
            {"interval": _duration(checkpoint_interval, "--checkpoint-interval"), "keep": checkpoint_keep},
            "checkpoint",
        ),
        ({"limit": retries}, "retry"),
        ({"run_time": _duration(run_time, "--run-time")}, "limits"),
        ({"image": image, "pip": pip or None, "requirements": requirements, "python": python}, "environment"),
        (labels_of(label or [], "--label"), "labels"),
        ({"after": _after(after, server) if after else None}, None),
    ]
    if not isinstance(jobs, dict):
        of_one = {
            "--name": name,
            "--code": code,
            "--no-code": no_code,
            "--freeze": frozen,
            "--follow": follow,
        }
        steps = [_step_with(step, options, env or []) for step in jobs]
        if dry_run:
            refuse_options_of_one(steps, of_one)
            try_out_steps(steps, as_json=as_json, server=server)
            return
        send_pipeline(steps, idempotency_key, of_one, quiet=quiet, as_json=as_json, server=server)
        return
    raw = jobs
    _lay_over(raw, options, env or [])
    if code is not None or no_code:
        raw["code"] = None if no_code else str(code)
    if frozen:
        # A specification that is refused is refused before uv looks for packages.
        folder = _checked(raw).code_folder
        freeze(raw, Path.cwd() if folder is None else folder)
    if dry_run:
        try_out(_checked(raw), as_json=as_json, server=server)
        return
    _send(_checked(raw), idempotency_key, follow=follow, quiet=quiet, as_json=as_json, server=server)


def _lay_over(raw: dict[str, Any], options: Sequence[Options], env: list[str]) -> None:
    for values, section in options:
        _override(raw, values, section)
    _add_variables(raw, env)


def _step_with(step: PipelineStep, options: Sequence[Options], env: list[str]) -> PipelineStep:
    spec = dict(step.spec)
    _lay_over(spec, options, env)
    return dataclasses.replace(step, spec=spec)


def read_words(words: list[str], code: Path | None, environment: dict[str, Any]) -> JobSpec:
    """The specification in a file, or of a command with that folder as its code.  Raises SpecError."""
    raw = _jobs_in(words, [], quiet=False)
    if not isinstance(raw, dict):
        raise typer.BadParameter(f"{words[0]} is a pipeline; name the specification of one of its steps")
    _override(raw, environment, "environment")
    if code is not None:
        raw["code"] = str(code)
    return _checked(raw)


def _checked(raw: dict[str, Any]) -> JobSpec:
    from remora.spec.spec import JobSpec

    return JobSpec.from_mapping(raw)


def _send(
    spec: JobSpec, key: str | None, *, follow: bool, quiet: bool, as_json: bool, server: str | None
) -> None:
    if spec.array is not None or spec.schedule is not None:
        _send_many(spec, key, follow=follow, quiet=quiet, as_json=as_json, server=server)
        return
    with connect(server, patient=False) as client:
        job = client.submit(spec, idempotency_key=key)
    if quiet:
        output.print_line(job.id)
    elif as_json and not follow:
        output.print_json(job)
    elif not as_json:
        output.print_line(output.summary(job))
    if not follow:
        if not (quiet or as_json):
            output.say(f"Watch it: remora logs -f {job.id}")
        return
    from remora.cli.progress import watch

    with detaching(job.id, "logs -f"), connect(server, patient=True) as client:
        ended = watch(client, job, as_json=as_json, quiet=quiet)
    raise typer.Exit(code_of_state(ended.state))


def _send_many(
    spec: JobSpec, key: str | None, *, follow: bool, quiet: bool, as_json: bool, server: str | None
) -> None:
    """Submit an array, or store a schedule."""
    if follow:
        raise typer.BadParameter("--follow watches one job; an array or a schedule has many")
    made: JobArray | Schedule
    with connect(server, patient=False) as client:
        if spec.schedule is not None:
            made = client.submit_schedule(spec, idempotency_key=key)
            line, command = schedules.summary(made), "schedules"
        else:
            made = client.submit_array(spec, idempotency_key=key)
            line, command = arrays.summary(made), "arrays"
    if quiet:
        output.print_line(made.id)
    elif as_json:
        output.print_json(made)
    else:
        output.print_line(line)
        output.say(f"Watch it: remora {command} show {made.id}")


def _jobs_in(words: list[str], inputs: list[str], *, quiet: bool) -> Steps | dict[str, Any]:
    """The specification, or those of a pipeline's steps, before the options are laid over it."""
    # One argument with spaces in it is a command line, as for ssh and `bash -c`.
    is_line = len(words) == 1 and len(words[0].split()) > 1 and not Path(words[0]).is_file()
    if is_line or (words[0] != "-" and not words[0].endswith(_SPEC_SUFFIXES)):
        if inputs:
            raise typer.BadParameter("--input is for the file of an Azure ML job")
        if not is_line and words[0].endswith(".py") and Path(words[0]).is_file():
            words = ["python", *words]
        return {"command": words[0] if is_line else list(words), "code": "."}
    if len(words) > 1:
        raise typer.BadParameter(
            f"after the file {words[0]} comes {words[1]!r}; a file has its command inside"
        )
    raw, folder, left = read_file(words[0])
    translation = translate(raw, folder, inputs, left)
    if translation is not None:
        if not quiet:
            print_remarks(translation)
        if translation.problems:
            from remora.errors import SpecError

            raise SpecError(translation.problems)
    from remora.job_formats import Pipeline
    from remora.spec.problems import with_code_from

    if isinstance(translation, Pipeline):
        return [dataclasses.replace(one, spec=with_code_from(one.spec, folder)) for one in translation.steps]
    if translation is not None:
        raw = translation.spec
    # Several documents are manifests, which have a translation.
    assert isinstance(raw, dict)
    return raw if words[0] == "-" else with_code_from(raw, folder)


def _called(entrypoint: str, words: list[str], inputs: list[str]) -> dict[str, Any]:
    """The specification of a job that calls a function."""
    if inputs:
        raise typer.BadParameter("--input is for the file of an Azure ML job")
    arguments: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise typer.BadParameter(f"{word!r}: expected NAME=VALUE, an argument of {entrypoint}")
        arguments[name] = json_or_text(text)
    return {"entrypoint": entrypoint, "arguments": arguments, "code": "."}


def _override(raw: dict[str, Any], values: dict[str, Any], section: str | None = None) -> None:
    """Lay the given options over the specification; what is no mapping there is left to be refused."""
    given = {name: value for name, value in values.items() if value is not None}
    if section is None:
        raw.update(given)
    elif given and isinstance(raw.get(section) or {}, dict):
        raw[section] = {**(raw.get(section) or {}), **given}


def _after(words: list[str], server: str | None) -> list[dict[str, str]]:
    """Jobs that come first, by their whole ids."""
    found = []
    with connect(server) as client:
        for word in words:
            job, colon, end = word.partition(":")
            found.append({"job": client.find(job).id, "when": end if colon else "success"})
    return found


def _workers(text: str | None) -> Any:
    if text is None:
        return None
    parts = text.split(":")
    if len(parts) > 2 or not all(part.isascii() and part.isdecimal() and len(part) < 10 for part in parts):
        raise typer.BadParameter(f"--workers {text!r}: expected a number such as 2, or a range such as 1:3")
    return int(text) if len(parts) == 1 else {"min": int(parts[0]), "max": int(parts[1])}


def _duration(text: str | None, option: str) -> Any:
    return text if text in (None, "none", "auto") else duration_option(text, option)


def _number_or_text(text: str | None) -> Any:
    return int(text) if text is not None and text.isdecimal() and len(text) < 20 else text


def _add_variables(raw: dict[str, Any], pairs: list[str]) -> None:
    added = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise typer.BadParameter(f"--env {pair!r}: expected NAME=VALUE")
        added[name] = value
    environment = raw.get("environment") or {}
    if added and isinstance(environment, dict) and isinstance(environment.get("variables") or {}, dict):
        raw["environment"] = {**environment, "variables": {**(environment.get("variables") or {}), **added}}
