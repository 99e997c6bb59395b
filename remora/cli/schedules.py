"""Commands on schedules: `schedules`, `schedules show`, `schedules delete`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from remora.cli import output
from remora.cli.options import JsonOption, ServerOption
from remora.cli.session import connect

if TYPE_CHECKING:
    from remora.views import Schedule

app = typer.Typer(help="Schedules: jobs that are submitted again and again.", invoke_without_command=True)

ScheduleArgument = Annotated[
    str, typer.Argument(metavar="SCHEDULE", help="The id of a schedule.", show_default=False)
]


@app.callback()
def schedules(context: typer.Context, as_json: JsonOption = False, server: ServerOption = None) -> None:
    """List schedules, newest first."""
    if context.invoked_subcommand is not None:
        return
    with connect(server) as client:
        found = client.schedules()
    if as_json:
        output.print_json(found)
        return
    rows = (
        (
            one.id,
            one.name,
            f"{one.cron} {one.zone}",
            output.date(one.next_at) or "",
            "" if one.last_run is None else one.last_run.outcome,
        )
        for one in found
    )
    empty = "There are no schedules. Submit a specification with `schedule`."
    output.print_table(("id", "name", "time", "next", "last"), rows, empty)


@app.command()
def show(schedule: ScheduleArgument, as_json: JsonOption = False, server: ServerOption = None) -> None:
    """Show a schedule with its newest runs."""
    with connect(server) as client:
        found = client.schedule(schedule)
        runs = [] if as_json else client.runs(schedule, limit=50)
    if as_json:
        output.print_json(found)
        return
    rules = found.spec.get("schedule") or {}
    output.print_pairs(
        [
            ("id", found.id),
            ("name", found.name),
            ("project", found.project),
            ("time", f"{found.cron} {found.zone}"),
            ("missed", rules.get("missed")),
            ("overlap", rules.get("overlap")),
            ("next", output.date(found.next_at)),
            ("created", output.date(found.created_at)),
        ]
    )
    output.print_line("")
    rows = (
        (output.date(run.at) or "", run.outcome, run.job_id or run.array_id or "", run.message)
        for run in runs
    )
    output.print_table(("time", "outcome", "id", "message"), rows, "No time has come yet.")


@app.command()
def delete(schedule: ScheduleArgument, as_json: JsonOption = False, server: ServerOption = None) -> None:
    """Delete a schedule: it submits nothing any more; its jobs stay."""
    with connect(server) as client:
        answer = client.delete_schedule(schedule)
    output.print_result(answer, f"{answer.id}  {answer.name}  is deleted", as_json=as_json)


def summary(schedule: Schedule) -> str:
    """One line about a schedule."""
    return f"{schedule.id}  {schedule.name}  next at {output.date(schedule.next_at)}"
