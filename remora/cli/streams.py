"""Commands that print what happens: `logs` and `events`."""

from __future__ import annotations

from typing import Annotated

import typer

from remora.cli import output
from remora.cli.options import FollowOption, JobArgument, JsonOption, RawOption, ServerOption
from remora.cli.session import connect, detaching
from remora.neutral import neutral


def logs(
    job: JobArgument,
    follow: FollowOption = False,
    rank: Annotated[int | None, typer.Option("--rank", min=0, help="Only this worker.")] = None,
    attempt: Annotated[int | None, typer.Option("--attempt", min=1, help="Only this attempt.")] = None,
    tail: Annotated[int | None, typer.Option("--tail", min=1, help="Begin with the last N lines.")] = None,
    raw: RawOption = False,
    as_json: JsonOption = False,
    server: ServerOption = None,
) -> None:
    """Print what a job's workers printed, each line with its rank."""
    with connect(server) as client:
        job_id = client.find(job).id
        with detaching(job_id, "logs -f"):
            for line in client.logs(job_id, follow=follow, rank=rank, attempt=attempt, tail=tail):
                if as_json:
                    output.print_json_line(line)
                else:
                    origin = "remora" if line.stream == "remora" else str(line.rank)
                    shown = line.text if raw else neutral(line.text)
                    output.print_line(shown if rank is not None else f"[{origin}] {shown}", raw=raw)


def events(
    job: JobArgument,
    follow: FollowOption = False,
    raw: RawOption = False,
    as_json: JsonOption = False,
    server: ServerOption = None,
) -> None:
    """Print what happened to a job."""
    with connect(server) as client:
        job_id = client.find(job).id
        with detaching(job_id, "events -f"):
            for event in client.events(job_id, follow=follow):
                if as_json:
                    output.print_json_line(event)
                else:
                    shown = event.message if raw else neutral(event.message)
                    output.print_line(f"{output.clock(event.at)}  {event.kind:24}  {shown}", raw=raw)
