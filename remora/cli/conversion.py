"""The command `convert`, and how a job's file is read: Remora's own specification, or a job written for others."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from remora.cli import output
from remora.cli.exits import ExitCode
from remora.cli.options import InputOption, JsonOption

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remora.job_formats import Pipeline, Remark, Translation


def convert(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="A job or pipeline of Azure ML, or a Kubeflow manifest; - reads standard input.",
            show_default=False,
        ),
    ],
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail when anything of the file is not honoured.")
    ] = False,
    inputs: InputOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print a job written for Azure ML or Kubeflow as a specification; on standard error, how each field was mapped."""
    from remora.errors import SpecError
    from remora.job_formats import Pipeline
    from remora.spec.pipeline_steps import check_steps
    from remora.spec.spec import JobSpec

    raw, folder, left = read_file(file)
    translation = translate(raw, folder, inputs or [], left)
    if translation is None:
        raise typer.BadParameter(f"{file} is no job of Azure ML or Kubeflow; submit takes it as it is")
    if as_json:
        output.print_json(dataclasses.asdict(translation))
    else:
        output.print_line(_text_of(translation).rstrip())
        print_remarks(translation)
    if translation.problems:
        raise SpecError(translation.problems)
    if isinstance(translation, Pipeline):
        check_steps(translation.steps)
    else:
        JobSpec.from_mapping(translation.spec)
    if strict and translation.unhonoured:
        count = len(translation.unhonoured)
        output.say(f"remora: {count} of its fields {'is' if count == 1 else 'are'} not honoured")
        raise typer.Exit(ExitCode.USAGE)


def read_file(name: str) -> tuple[dict[str, Any] | list[dict[str, Any]], Path, tuple[Remark, ...]]:
    """The mapping in a YAML or JSON file (- is standard input), and the folder that its paths start from.

    It is a list for a file with several manifests of jobs.  Beside it: what of the documents is left out.
    """
    from remora.errors import SpecError, SpecProblem
    from remora.job_formats import the_jobs
    from remora.spec.problems import read_documents
    from remora.spec.spec import MAX_SPEC_BYTES

    source = sys.stdin.read(MAX_SPEC_BYTES + 1) if name == "-" else Path(name)
    folder = Path.cwd() if isinstance(source, str) else source.resolve().parent
    documents = read_documents(source, MAX_SPEC_BYTES)
    raw, left = the_jobs(documents)
    if not isinstance(raw, dict) and not (len(documents) > 1 and isinstance(raw, list)):
        raise SpecError([SpecProblem("", f"{name} holds no mapping of keys to values")])
    return raw, folder, left


def translate(
    raw: dict[str, Any] | list[dict[str, Any]],
    folder: Path,
    inputs: Sequence[str],
    left: tuple[Remark, ...] = (),
) -> Translation | Pipeline | None:
    """The translation of a job written for others; None for a specification, which takes no `--input`."""
    from remora import job_formats

    given = {}
    for pair in inputs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise typer.BadParameter(f"--input {pair!r}: expected NAME=VALUE")
        given[name] = value
    translation = job_formats.translate(raw, folder, given)
    if given and (translation is None or not translation.source.startswith("an Azure ML")):
        raise typer.BadParameter("--input is for jobs of Azure ML; a specification has its values inside")
    if translation is None or not left:
        return translation
    return dataclasses.replace(translation, unhonoured=(*translation.unhonoured, *left))


def print_remarks(translation: Translation | Pipeline) -> None:
    """Print how each field was mapped, on standard error."""
    output.say(f"This is {translation.source}. What was mapped to what:")
    _print_remarks(translation.mapped, "->")
    if translation.unhonoured:
        output.say("Not honoured:")
        _print_remarks(translation.unhonoured, " ")


def _print_remarks(remarks: Sequence[Remark], sign: str) -> None:
    width = min(max((len(remark.field) for remark in remarks), default=0), 48)
    for remark in remarks:
        output.say(output.printable(f"  {remark.field.ljust(width)} {sign} {remark.text}"))


def _text_of(translation: Translation | Pipeline) -> str:
    """One specification, or one document for each step, in which names of steps stand for the ids of their jobs."""
    from remora.job_formats import Translation

    if isinstance(translation, Translation):
        return as_yaml(translation.spec)
    names = {step.name: step.name for step in translation.steps}
    documents = (f"# step {step.name}\n{as_yaml(step.spec_with(names))}" for step in translation.steps)
    return "---\n".join(documents)


def as_yaml(spec: dict[str, Any]) -> str:
    """A specification as a file of YAML, its fields in their usual order."""
    import yaml

    from remora.spec.spec import JobSpec

    ordered = {name: spec[name] for name in JobSpec.model_fields if name in spec}
    text: str = yaml.safe_dump(
        ordered, sort_keys=False, allow_unicode=True, width=110, default_flow_style=None
    )
    return text
