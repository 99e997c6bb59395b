"""Command that deletes what is old: `prune`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from remora.cli import output
from remora.cli.jobs import duration_option
from remora.cli.options import JsonOption, ServerOption
from remora.cli.session import connect


def prune(
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than",
            metavar="DURATION",
            help="What ended longer ago, e.g. 30d; else as REMORA_RETENTION_DAYS says.",
            show_default=False,
        ),
    ] = None,
    keep: Annotated[
        int | None,
        typer.Option(
            "--keep", min=0, metavar="N", help="Only the newest N ended jobs stay.", show_default=False
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")] = False,
    as_json: JsonOption = False,
    server: ServerOption = None,
) -> None:
    """Delete ended jobs, their logs, events and metrics, and nodes that are gone, once they are old."""
    seconds = None if older_than is None else duration_option(older_than, "--older-than")
    if not yes:
        if not sys.stdin.isatty():
            raise typer.BadParameter("there is no terminal to ask at; add --yes to do it")
        if not typer.confirm("Delete it for good?"):
            raise typer.Abort
    with connect(server) as client:
        found = client.prune(older_than_s=seconds, keep_jobs=keep)
    if as_json:
        output.print_json(found)
    else:
        output.print_line(f"Deleted {found.jobs} jobs, {found.nodes} nodes and {found.rows} rows of theirs.")
