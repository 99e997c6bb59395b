"""Commands on the service and its nodes: `up`, `down`, `demo`, `nodes`, `pools`, `prune`, `version`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer

import remora
from remora.cli import output
from remora.cli.jobs import duration_option
from remora.cli.offerings import print_offerings
from remora.cli.options import JsonOption, ServerOption
from remora.cli.session import connect
from remora.installation import server_command

if TYPE_CHECKING:
    from remora.views import Pool, RayRequest, RefusedOffering


HomeOption = Annotated[
    Path | None,
    typer.Option(
        "--home",
        metavar="DIR",
        help="Folder of the service's data; else REMORA_HOME or the user's data folder.",
    ),
]


RayAddressOption = Annotated[
    str | None,
    typer.Option(
        "--ray-address",
        metavar="HOST:PORT",
        help="Head of a Ray cluster that exists already.",
        show_default=False,
    ),
]


def up(
    home: HomeOption = None,
    port: Annotated[
        int | None, typer.Option("--port", min=0, max=65535, help="Port of the API; 0 takes a free one.")
    ] = None,
    nodes: Annotated[
        int | None, typer.Option("--nodes", min=0, max=64, help="Local nodes to keep alive.")
    ] = None,
    node_cpus: Annotated[
        int | None, typer.Option("--node-cpus", min=1, help="CPUs that each node announces.")
    ] = None,
    node_gpus: Annotated[
        int | None, typer.Option("--node-gpus", min=0, help="GPUs that each node announces.")
    ] = None,
    cloud: Annotated[
        Literal["local", "azure-emulated", "azure"] | None,
        typer.Option(
            "--cloud",
            help="Where nodes are made; azure-emulated runs an emulator of Azure here, with nodes as the policies say.",
        ),
    ] = None,
    cluster: Annotated[
        list[str] | None,
        typer.Option(
            "--cluster",
            metavar="NAME",
            help="One more Ray cluster, for the pools and projects that the policies put there; repeat it.",
        ),
    ] = None,
    ray_address: RayAddressOption = None,
) -> None:
    """Start the embedded service and a cluster of local nodes; Ctrl-C ends both.

    With --ray-address it uses the nodes of that cluster, and leaves the cluster as it was.
    """
    options = {
        "--port": port,
        "--nodes": nodes,
        "--node-cpus": node_cpus,
        "--node-gpus": node_gpus,
        "--cloud": cloud,
        "--ray-address": ray_address,
    }
    given = [text for name, value in options.items() if value is not None for text in (name, str(value))]
    given += [text for name in cluster or [] for text in ("--cluster", name)]
    _become_service([*_home_arguments(home), *given])


def demo(
    example: Annotated[
        Literal["elastic", "digits", "bytegpt"],
        typer.Option(
            "--example",
            help="What is trained: elastic goes on in place after the loss of a node, the others start again.",
        ),
    ] = "elastic",
    home: Annotated[
        Path | None,
        typer.Option("--home", metavar="DIR", help="New folder of the demo's data, by default ./.demo ."),
    ] = None,
) -> None:
    """Train on a real Ray cluster on this machine, kill a node, and watch the run recover."""
    _become("examples.demo", ["--example", example, *_home_arguments(home)], trains=True)


def down(home: HomeOption = None, ray_address: RayAddressOption = None) -> None:
    """End what an interrupted `remora up` left running; with --ray-address what any left in that Ray cluster."""
    there = [] if ray_address is None else ["--ray-address", ray_address]
    _become_service(["--down", *there, *_home_arguments(home)])


def _home_arguments(home: Path | None) -> list[str]:
    return [] if home is None else ["--home", str(home.expanduser().absolute())]


def _become_service(arguments: list[str]) -> NoReturn:
    """Replace this process, so that signals and the exit code are the service's own."""
    _become("service.up", arguments)


def _become(module: str, arguments: list[str], *, trains: bool = False) -> NoReturn:
    command, variables = server_command(module, *arguments, trains=trains)
    sys.stdout.flush()
    os.execve(sys.executable, command, variables)  # noqa: S606 - no shell wanted


def nodes(
    node: Annotated[
        str | None,
        typer.Argument(metavar="NODE", help="One node's id: print what happened to it.", show_default=False),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Also those that are gone or failed.")
    ] = False,
    as_json: JsonOption = False,
    server: ServerOption = None,
) -> None:
    """List the cluster's nodes, or print the events of one."""
    if node is not None:
        _print_node_events(node, as_json=as_json, server=server)
        return
    with connect(server) as client:
        found = [node for node in client.nodes() if everything or node.state not in ("gone", "failed")]
    if as_json:
        output.print_json(found)
        return
    rows = (
        (
            node.id,
            node.pool,
            node.state,
            node.offering,
            node.address or "",
            " ".join(f"{name}={amount:g}" for name, amount in sorted(node.resources.items())),
            output.age(node.created_at),
            node.message or node.reason or "",
        )
        for node in found
    )
    columns = ("id", "pool", "state", "offering", "address", "resources", "age", "message")
    output.print_by_cluster(columns, rows, [node.cluster for node in found], "There are no nodes.")


def _print_node_events(node_id: str, *, as_json: bool, server: str | None) -> None:
    with connect(server) as client:
        found = client.node_events(node_id)
        node = None if as_json else client.node(node_id)
    if as_json:
        output.print_json(found)
        return
    for event in found:
        output.print_line(f"{output.clock(event.at)}  {event.kind:24}  {output.printable(event.message)}")
    if node is not None and node.reason is not None and node.reason_since is not None:
        said = f"{output.printable(node.reason)} (since {output.clock(node.reason_since)})"
        output.print_line(f"{output.clock(time.time())}  {'now':24}  {said}")


def _show_version(is_asked: bool) -> None:
    if is_asked:
        version()
        raise typer.Exit


def options(
    is_version_asked: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the client's version."),
    ] = False,
) -> None:
    """Options that are given before every command."""


def version(as_json: JsonOption = False) -> None:
    """Print the client's version."""
    output.print_result({"version": remora.__version__}, f"remora {remora.__version__}", as_json=as_json)


pools_app = typer.Typer(help="The node pools: their nodes, their limits now, and what holds them up.")


@pools_app.callback(invoke_without_command=True)
def pools(context: typer.Context, as_json: JsonOption = False, server: ServerOption = None) -> None:
    """List the node pools: nodes, limits now, what holds them up, and what they may buy and are refused."""
    if context.invoked_subcommand is not None:
        return
    with connect(server) as client:
        found = client.pools()
        asked = [] if as_json else client.ray_requests()
    if as_json:
        output.print_json(found)
        return
    rows = [(pool.cluster, row) for pool in found for row in _rows(pool)]
    columns = ("pool", "nodes", "limits", "since", "what holds it up")
    clusters = [cluster if row[0] else None for cluster, row in rows]
    output.print_by_cluster(columns, [row for _, row in rows], clusters, "There are no pools.")
    print_offerings(found)
    if asked:
        output.print_line("")
        output.print_table(
            ("Ray programs ask for", "of each", "since", "why they wait"), [_asked(one) for one in asked], ""
        )


@pools_app.command("ray")
def ray_requests(as_json: JsonOption = False, server: ServerOption = None) -> None:
    """List what Ray programs that are no jobs ask for and do not have yet."""
    with connect(server) as client:
        found = client.ray_requests()
    if as_json:
        output.print_json(found)
        return
    output.print_table(
        ("Ray programs ask for", "of each", "since", "why they wait"),
        [_asked(one) for one in found],
        "Ray programs wait for nothing.",
    )


@pools_app.command()
def reopen(
    pool: Annotated[str, typer.Argument(metavar="POOL", help="The pool's name.", show_default=False)],
    as_json: JsonOption = False,
    server: ServerOption = None,
) -> None:
    """Ask again at once for what the cloud refused a pool, or whose machines failed there."""
    with connect(server) as client:
        found = client.reopen_pool(pool)
    output.print_result(
        found,
        f"{output.printable(found.name)} asks again at the next tick for all that it may buy.",
        as_json=as_json,
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


def _asked(one: RayRequest) -> tuple[str, ...]:
    """One row for what a program asks for."""
    what = {"tasks": "tasks, actors", "minimum": "request_resources"}.get(one.kind, one.strategy or one.kind)
    each = ", ".join(f"{amount:g} {name}" for name, amount in sorted(one.resources.items()))
    said = f"refused: {one.reason}" if one.is_refused else one.reason
    return f"{one.count} {what}", each, output.clock(one.since), said


def _refused(one: RefusedOffering, pool: str) -> str:
    again = f", refused {one.tries} times in a row" if one.tries > 1 else ""
    why = f": {one.reason}" if one.reason else ""
    until = f"before {output.date(one.until)} (`remora pools reopen {pool}` asks at once)"
    return f"{one.offering} is not asked for {until}{again}{why}"


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
    output.print_result(
        found,
        f"Deleted {found.jobs} jobs, {found.nodes} nodes and {found.rows} rows of theirs.",
        as_json=as_json,
    )
