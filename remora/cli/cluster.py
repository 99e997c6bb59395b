"""Commands on the service and its machines: `up`, `down`, `nodes`, `version`."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer

import remora
from remora.cli import output
from remora.cli.options import JsonOption, ServerOption
from remora.cli.session import connect
from remora.errors import ConfigurationError

HomeOption = Annotated[
    Path | None,
    typer.Option(
        "--home",
        metavar="DIR",
        help="Folder of the service's data; else REMORA_HOME or the user's data folder.",
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
    cloud: Annotated[
        Literal["local", "azure-emulated", "azure"] | None,
        typer.Option(
            "--cloud",
            help="Where nodes are made; azure-emulated runs an emulator of Azure here, with nodes as the policies say.",
        ),
    ] = None,
) -> None:
    """Start the embedded service and a cluster of local nodes; Ctrl-C ends both."""
    options = {"--port": port, "--nodes": nodes, "--node-cpus": node_cpus, "--cloud": cloud}
    given = [text for name, value in options.items() if value is not None for text in (name, str(value))]
    _become_service([*_home_arguments(home), *given])


def down(home: HomeOption = None) -> None:
    """End what an interrupted `remora up` left running."""
    _become_service(["--down", *_home_arguments(home)])


def _home_arguments(home: Path | None) -> list[str]:
    return [] if home is None else ["--home", str(home.expanduser().absolute())]


def _become_service(arguments: list[str]) -> NoReturn:
    """Replace this process, so that signals and the exit code are the service's own."""
    root = Path(remora.__file__).resolve().parent.parent
    if not (root / "service" / "up.py").is_file():
        raise ConfigurationError(
            "this installation has only the client; run `remora up` from a checkout of Remora's repository,"
            " or name a running service with --server or REMORA_SERVER"
        )
    path = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))
    # -P: a folder of the user's that is named `service` must not be taken for ours
    command = [sys.executable, "-P", "-m", "service.up", *arguments]
    sys.stdout.flush()
    os.execve(sys.executable, command, {**os.environ, "PYTHONPATH": path})  # noqa: S606 - no shell wanted


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
    output.print_table(columns, rows, "There are no nodes.")


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
    if as_json:
        output.print_json({"version": remora.__version__})
    else:
        output.print_line(f"remora {remora.__version__}")
