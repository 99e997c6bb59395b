"""Commands on arrays, of which each is many jobs: `arrays`, `arrays show`, `arrays cancel`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from remora.cli import output
from remora.cli.options import JsonOption, ServerOption
from remora.cli.session import connect

if TYPE_CHECKING:
    from remora.views import JobArray

app = typer.Typer(help="Arrays: many jobs that one specification describes.", invoke_without_command=True)

ArrayArgument = Annotated[
    str, typer.Argument(metavar="ARRAY", help="The id of an array, or `last`.", show_default=False)
]


@app.callback()
def arrays(context: typer.Context, as_json: JsonOption = False, server: ServerOption = None) -> None:
    """List arrays, newest first."""
    if context.invoked_subcommand is not None:
        return
    with connect(server) as client:
        found = client.arrays()
    if as_json:
        output.print_json(found)
        return
    rows = ((one.id, one.name, _states(one), output.age(one.created_at)) for one in found)
    empty = "There are no arrays. Submit a specification with `array`."
    output.print_table(("id", "name", "jobs", "age"), rows, empty)


@app.command()
def show(array: ArrayArgument, as_json: JsonOption = False, server: ServerOption = None) -> None:
    """Show an array with its jobs and their values."""
    with connect(server) as client:
        found = client.array(_id_of(client, array))
        jobs = [] if as_json else client.jobs(array=found.id)
    if as_json:
        output.print_json(found)
        return
    output.print_pairs(
        [
            ("id", found.id),
            ("name", found.name),
            ("project", found.project),
            ("jobs", _states(found)),
            ("most at once", None if found.most_at_once is None else str(found.most_at_once)),
            ("cost", None if found.cost is None else f"{found.cost:.2f} USD"),
            ("created", output.date(found.created_at)),
        ]
    )
    output.print_line("")
    elements = sorted((job.array.index, job) for job in jobs if job.array is not None)
    rows = (
        (
            str(index),
            " ".join(f"{name}={value}" for name, value in job.array.parameters.items()) if job.array else "",
            job.id,
            job.state,
            output.steps(job),
            job.message or job.reason or "",
        )
        for index, job in elements
    )
    output.print_table(("index", "values", "id", "state", "step", "message"), rows, "All jobs were deleted.")


@app.command()
def cancel(array: ArrayArgument, as_json: JsonOption = False, server: ServerOption = None) -> None:
    """Cancel all jobs of an array."""
    with connect(server) as client:
        answer = client.cancel_array(_id_of(client, array))
    output.print_result(answer, summary(answer), as_json=as_json)


def summary(array: JobArray) -> str:
    """One line about an array."""
    return f"{array.id}  {array.name}  {_states(array)}"


def _states(array: JobArray) -> str:
    return ", ".join(f"{count} {state}" for state, count in sorted(array.jobs.items()))


def _id_of(client: object, text: str) -> str:
    from remora.client.blocking import Client
    from remora.errors import NotFound

    assert isinstance(client, Client)
    if text != "last":
        return text
    newest = client.arrays()
    if not newest:
        raise NotFound(
            404, "array_not_found", "there is no array yet", hint="submit a specification with `array`"
        )
    return newest[0].id
