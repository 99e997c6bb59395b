"""The option `--dry-run` of `submit`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from remora.cli import output
from remora.cli.conversion import as_yaml
from remora.cli.exits import ExitCode
from remora.cli.session import connect

if TYPE_CHECKING:
    from remora.spec.pipeline_steps import PipelineStep
    from remora.spec.spec import JobSpec
    from remora.views import DryRun


def try_out(spec: JobSpec, *, as_json: bool, server: str | None) -> None:
    """Show what would become of it; the command fails where it would be refused, or could never start."""
    with connect(server, patient=False) as client:
        found = client.dry_run(spec)
    if as_json:
        output.print_json(found)
    else:
        _print(found)
        if _is_accepted(found):
            output.say(
                f"Nothing was submitted. It would be {_jobs(found.jobs)} of the project {found.project}."
            )
    _fail_unless_accepted([found])


def try_out_steps(steps: Sequence[PipelineStep], *, as_json: bool, server: str | None) -> None:
    """The same for each step of a pipeline, in the order of their submission."""
    with connect(server, patient=False) as client:
        found = client.dry_run_pipeline(steps)
    if as_json:
        output.print_json({"steps": {name: one.model_dump(mode="json") for name, one in found.items()}})
    else:
        for at, (name, one) in enumerate(found.items()):
            output.print_line(f"{'---' + chr(10) if at else ''}# step {name}")
            _print(one, f"jobs.{name}.")
        if all(map(_is_accepted, found.values())):
            jobs = sum(one.jobs for one in found.values())
            output.say(f"Nothing was submitted. They would be {_jobs(jobs)}.")
    _fail_unless_accepted(list(found.values()))


def _print(found: DryRun, prefix: str = "") -> None:
    for one in found.problems:
        field = f"{prefix}{one.field}".rstrip(".")
        output.say(f"{field}: {one.message}" if field else one.message)
    if found.never is not None:
        output.say(f"{prefix.rstrip('.') or 'It'} would never start: {found.never}")
    output.print_line(as_yaml(found.spec).rstrip())


def _is_accepted(found: DryRun) -> bool:
    return not found.problems and found.never is None


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count} jobs"


def _fail_unless_accepted(found: Sequence[DryRun]) -> None:
    if not all(map(_is_accepted, found)):
        raise typer.Exit(ExitCode.USAGE)
