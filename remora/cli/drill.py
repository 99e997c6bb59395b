"""The command that rehearses a preemption and prints what was lost: `drill`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from remora.cli import output
from remora.cli.exits import ExitCode
from remora.cli.jobs import duration_option
from remora.cli.options import JsonOption, ServerOption
from remora.cli.session import connect
from remora.states import DrillState

if TYPE_CHECKING:
    from remora.client.blocking import Client
    from remora.views import Drill, DrilledJob

#: Seconds between two looks at a drill that goes on.
LOOK_S = 0.5


def drill(
    node: Annotated[
        str | None, typer.Option("--node", metavar="NODE", help="Take this node; `remora nodes` lists them.")
    ] = None,
    pool: Annotated[
        str | None, typer.Option("--pool", metavar="POOL", help="Take every ready node of this pool at once.")
    ] = None,
    notice: Annotated[
        str | None,
        typer.Option(
            "--notice",
            metavar="DURATION",
            help="Length of the notice before the nodes go (30s by default; Azure gives its own).",
        ),
    ] = None,
    silent: Annotated[bool, typer.Option("--silent", help="Take the nodes without a notice.")] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Only start it, and print its id.")] = False,
    as_json: JsonOption = False,
    server: ServerOption = None,
) -> None:
    """Rehearse a preemption on the running service: nodes really go, and what that cost every job is printed."""
    if (node is None) == (pool is None):
        raise typer.BadParameter("name what shall go: either --node NODE or --pool POOL")
    if silent and notice is not None:
        raise typer.BadParameter("--silent means no notice: leave out --notice")
    notice_s = None if silent else duration_option(notice or "30s", "--notice")
    with connect(server, patient=True) as client:
        if node is not None:
            found = client.drill_node(node, notice_s=notice_s)
        else:
            found = client.drill_pool(pool or "", notice_s=notice_s)
        if not detach:
            found = _watch(client, found)
    if as_json:
        output.print_json(found)
    elif detach:
        output.print_line(found.id)
    else:
        _print(found)
    if found.state is DrillState.REFUSED:
        output.say(f"remora: {found.message}")
        raise typer.Exit(ExitCode.ERROR)


def _watch(client: Client, found: Drill) -> Drill:
    """Poll until the drill is over, and print its progress."""
    said = ""
    try:
        while found.ended_at is None:
            if (standing := _standing(found)) != said:
                output.say(standing)
                said = standing
            time.sleep(LOOK_S)
            found = client.drill(found.id)
    except KeyboardInterrupt:
        output.say(f"\nDetached; the drill goes on: GET /v1/drills/{found.id} shows its state.")
        raise typer.Exit(ExitCode.DETACHED) from None
    return found


def _standing(found: Drill) -> str:
    names = ", ".join(found.node_ids)
    if found.struck_at is None:
        return f"Waiting for the controller to take {names} ..."
    if found.taken_at is None and found.notice_s is None:
        return f"Taking {names} ..."
    if found.taken_at is None:
        return f"{names} will be gone {found.notice_s:g} s after the notice ..."
    return f"{names} gone; waiting until every job has its workers back ..."


def _print(found: Drill) -> None:
    if found.state is DrillState.REFUSED:
        return
    rows = [_row(job) for job in found.jobs]
    columns = ("job", "name", "steps repeated", "next step", "longest pause", "workers", "full size")
    output.print_table(columns, rows, "No job lost a worker.")
    if found.message:
        output.say(found.message)


def _row(job: DrilledJob) -> tuple[str, ...]:
    full = "not yet" if job.full_after_s is None else f"after {job.full_after_s:.1f} s"
    return (
        job.job_id,
        job.name,
        str(job.repeated_steps),
        _after(job.next_step_s),
        _seconds(job.pause_s),
        f"{job.workers_before} -> {job.workers_least} -> {job.workers}",
        "never less" if job.full_after_s == 0 else full,
    )


def _after(seconds: float | None) -> str:
    return "none" if seconds is None else f"after {seconds:.1f} s"


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.1f} s"
