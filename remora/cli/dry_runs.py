"""The option `--dry-run` of `submit`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from remora.cli import output
from remora.cli.conversion import as_yaml
from remora.cli.exits import ExitCode
from remora.cli.session import connect

if TYPE_CHECKING:
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
    if found.problems or found.never is not None:
        raise typer.Exit(ExitCode.USAGE)


def _print(found: DryRun) -> None:
    for one in found.problems:
        output.say(f"{one.field}: {one.message}" if one.field else one.message)
    if found.never is not None:
        output.say(f"It would never start: {found.never}")
    output.print_line(as_yaml(found.spec).rstrip())
    if not found.problems and found.never is None:
        jobs = "1 job" if found.jobs == 1 else f"{found.jobs} jobs"
        output.say(f"Nothing was submitted. It would be {jobs} of the project {found.project}.")
