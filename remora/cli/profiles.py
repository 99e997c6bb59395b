"""`remora profile`: a trace of the next steps of a running job, for Perfetto or Chrome's trace viewer."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from remora.cli import output
from remora.cli.exits import ExitCode
from remora.cli.options import JobArgument, JsonOption, ServerOption
from remora.cli.session import connect
from remora.spec.quantities import format_size
from remora.terminal_text import neutral

if TYPE_CHECKING:
    from remora.client.blocking import Client
    from remora.views import Profile

#: Seconds between two looks at the profile.
_PAUSE_S = 0.5


def profile(
    job: JobArgument,
    steps: Annotated[int, typer.Option("--steps", min=1, help="How many of the next steps.")] = 10,
    rank: Annotated[int, typer.Option("--rank", min=0, help="Of which rank.")] = 0,
    file: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="New file; else JOB-profile-N.json.gz here."),
    ] = None,
    wait: Annotated[int, typer.Option("--wait", min=1, max=3600, help="Seconds to wait for it.")] = 600,
    as_json: JsonOption = False,
    server: ServerOption = None,
) -> None:
    """Profile the next steps of a rank of a running job, and write the trace to a file."""
    if file is not None and file.exists():
        raise typer.BadParameter(f"{file} is there already; name a file that is not there")
    with connect(server) as client:
        job_id = client.find(job).id
        number = client.request_profile(job_id, steps=steps, rank=rank).number
        output.say(f"Profile {number} of {job_id} was asked for: {steps} steps of rank {rank}.")
        made = _ended(client, job_id, number, time.monotonic() + wait)
        if made.state != "ready":
            output.say(_why(made, job_id, wait))
            raise typer.Exit(ExitCode.ERROR)
        target = file or Path(f"{job_id}-profile-{number}.json.gz")
        client.download_profile(job_id, number, target)
    shown = f"{made.profiled_steps} steps, {format_size(made.size_bytes or 0)}: {target}"
    output.print_result(
        made, f"{shown}\nOpen it in https://ui.perfetto.dev or chrome://tracing.", as_json=as_json
    )


def _ended(client: Client, job_id: str, number: int, deadline: float) -> Profile:
    """The profile once it has ended, or as it is at the deadline."""
    pause = threading.Event()
    while True:
        found = next(one for one in client.profiles(job_id) if one.number == number)
        if found.ended_at is not None or time.monotonic() >= deadline:
            return found
        pause.wait(_PAUSE_S)


def _why(made: Profile, job_id: str, wait_s: int) -> str:
    if made.ended_at is None:
        return f"It has not ended within {wait_s} s; it goes on, and the page of {job_id} has it when it has."
    return (
        f"There is no profile of rank {made.rank}: {neutral(made.message or 'its driver did not say why')}."
    )
