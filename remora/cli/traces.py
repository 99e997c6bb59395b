"""`remora trace`: recorded jobs and market, for `remora plan`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from remora.cli import output
from remora.cli.exits import ExitCode
from remora.cli.options import ServerOption
from remora.cli.session import connect
from remora.errors import ConfigurationError
from remora.spec.quantities import parse_duration

app = typer.Typer(help="What happened here, to be replayed under other policies.", no_args_is_help=True)


@app.callback()
def _of_traces() -> None:
    """Keep `export` a command of its own although it is the only one."""


@app.command()
def export(
    since: Annotated[
        str, typer.Option("--since", metavar="DURATION", help="How far back, such as 12h or 30d.")
    ] = "30d",
    to: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Where to write it; else standard output."),
    ] = None,
    server: ServerOption = None,
) -> int:
    """Write the jobs that were submitted and the market that they met as a trace for `remora plan`."""
    try:
        seconds = float(parse_duration(since))
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"--since {since}: {error}") from error
    with connect(server) as client:
        trace = client.export_trace(since=max(0.0, time.time() - seconds))
    if to is None:
        sys.stdout.write(trace.text)
    else:
        to.write_text(trace.text, encoding="utf-8")
    left = f"; {trace.left_out} that never trained are left out" if trace.left_out else ""
    output.say(f"{trace.jobs} job{'' if trace.jobs == 1 else 's'} of the last {since}{left}")
    return ExitCode.OK
