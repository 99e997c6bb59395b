"""Commands on node pools: `pools` and `pools reopen`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from remora.cli import output
from remora.cli.options import JsonOption, ServerOption
from remora.cli.session import connect

if TYPE_CHECKING:
    from remora.views import Pool, RefusedOffering

app = typer.Typer(help="The node pools: their nodes, their limits now, and what holds them up.")


@app.callback(invoke_without_command=True)
def pools(context: typer.Context, as_json: JsonOption = False, server: ServerOption = None) -> None:
    """List the node pools: their nodes, their limits now, what holds them up, and what the cloud refuses them."""
    if context.invoked_subcommand is not None:
        return
    with connect(server) as client:
        found = client.pools()
    if as_json:
        output.print_json(found)
        return
    rows = [row for pool in found for row in _rows(pool)]
    output.print_table(("pool", "nodes", "limits", "since", "what holds it up"), rows, "There are no pools.")


@app.command()
def reopen(
    pool: Annotated[str, typer.Argument(metavar="POOL", help="The pool's name.", show_default=False)],
    as_json: JsonOption = False,
    server: ServerOption = None,
) -> None:
    """Ask again at once for what the cloud refused a pool, or whose machines failed there."""
    with connect(server) as client:
        found = client.reopen_pool(pool)
    if as_json:
        output.print_json(found)
    else:
        output.print_line(
            f"{output.printable(found.name)} asks again at the next turn for all that it may buy."
        )


def _rows(pool: Pool) -> Iterator[tuple[str, ...]]:
    """One row for each thing that holds the pool up, and one where nothing does."""
    nodes = ", ".join(f"{number} {state}" for state, number in pool.nodes.items()) or "none"
    limits = f"{pool.min_nodes} to {pool.max_nodes}"
    if pool.warm_nodes:
        limits += f", {pool.warm_nodes} warm"
    said = [(output.clock(wait.since), wait.reason) for wait in pool.waits]
    said += [(output.clock(one.at), _refused(one, pool.name)) for one in pool.refused]
    first, *more = said or [("", "")]
    yield pool.name, nodes, limits, *first
    for wait in more:
        yield "", "", "", *wait


def _refused(one: RefusedOffering, pool: str) -> str:
    again = f", refused {one.tries} times in a row" if one.tries > 1 else ""
    why = f": {one.reason}" if one.reason else ""
    until = f"before {output.date(one.until)} (`remora pools reopen {pool}` asks at once)"
    return f"{one.offering} is not asked for {until}{again}{why}"
