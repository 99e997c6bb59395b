"""`remora top`: jobs, pools and nodes on the terminal, drawn again every few seconds."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from remora.cli import output
from remora.cli.jobs import duration_option
from remora.cli.options import JsonOption, ServerOption
from remora.cli.session import connect
from remora.spec.quantities import format_duration

if TYPE_CHECKING:
    from rich.console import RenderableType

    from remora.client.blocking import Client
    from remora.views import Job, Node, Pool

_ACTIVE, _OVER = "running,admitted,queued,paused", "succeeded,failed,cancelled"
_LIVING = "requested,launched,joined,ready,draining,terminating"


@dataclass(frozen=True)
class Overview:
    """What one look shows."""

    jobs: Sequence[Job]
    pools: Sequence[Pool]
    nodes: Sequence[Node]

    def document(self) -> dict[str, Any]:
        """For `--json`."""
        parts = {"jobs": self.jobs, "pools": self.pools, "nodes": self.nodes}
        return {name: [one.model_dump(mode="json") for one in part] for name, part in parts.items()}


def top(
    every: Annotated[str, typer.Option("--every", metavar="DURATION", help="Time between two looks.")] = "2s",
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=1000, help="At most this many jobs.")
    ] = 20,
    as_json: JsonOption = False,
    server: ServerOption = None,
) -> None:
    """Show jobs, pools and nodes on the terminal until Ctrl-C; in a pipe, and with --json, once."""
    pause_s = duration_option(every, "--every")
    with connect(server, patient=True) as client:
        if as_json:
            output.print_json(look(client, limit).document())
        elif sys.stdout.isatty():
            _keep_drawing(client, limit, max(0.5, pause_s))
        else:
            seen = look(client, limit)
            output.print_table(JOB_COLUMNS, job_rows(seen.jobs, time.time()), "There are no jobs.")
            output.print_table(POOL_COLUMNS, pool_rows(seen, time.time()), "There are no pools.")


def look(client: Client, limit: int) -> Overview:
    """The jobs that have not ended, the newest of the others as far as they fit, the pools, and living nodes."""
    jobs: list[Job] = list(client.jobs(state=_ACTIVE, limit=limit))
    if len(jobs) < limit:
        jobs += client.jobs(state=_OVER, limit=limit - len(jobs))
    return Overview(jobs=jobs, pools=client.pools(), nodes=client.nodes(state=_LIVING))


JOB_COLUMNS = ("job", "name", "state", "step", "left", "workers", "project", "why")
POOL_COLUMNS = ("pool", "nodes", "USD/h", "why not more")


def job_rows(jobs: Sequence[Job], now: float) -> list[tuple[str, ...]]:
    """A row for each job, with JOB_COLUMNS."""
    return [
        (
            job.id,
            job.name,
            job.state,
            output.steps(job),
            left(job, now),
            _workers(job),
            job.project,
            job.why_short or job.message or job.reason or "",
        )
        for job in jobs
    ]


def pool_rows(seen: Overview, now: float) -> list[tuple[str, ...]]:
    """A row for each pool, with POOL_COLUMNS."""
    rows: list[tuple[str, ...]] = []
    for pool in seen.pools:
        nodes = ", ".join(f"{count} {state}" for state, count in sorted(pool.nodes.items()))
        price = sum(node.price_per_hour for node in seen.nodes if node.pool == pool.name)
        waits = "; ".join(
            f"{one.reason} ({format_duration(max(0, int(now - one.since)))})" for one in pool.waits
        )
        rows.append((pool.name, f"{nodes or 'none'} of {pool.max_nodes}", f"{price:.2f}", waits))
    return rows


def left(job: Job, now: float) -> str:
    """The time until the last step at the mean pace so far; empty where that is not known."""
    if job.state != "running" or not job.step or not job.total_steps or job.started_at is None:
        return ""
    seconds = (now - job.started_at) / job.step * max(0, job.total_steps - job.step)
    return format_duration(max(0, int(seconds)))


def _workers(job: Job) -> str:
    sizes = job.spec.get("workers")
    most = sizes.get("max") if isinstance(sizes, dict) else None
    return f"{job.world_size} of {most}" if most is not None else str(job.world_size)


def _keep_drawing(client: Client, limit: int, pause_s: float) -> None:
    from rich.live import Live

    stop = threading.Event()
    with Live(console=output.console(), screen=True, auto_refresh=False) as live:
        try:
            while not stop.is_set():
                live.update(_drawn(look(client, limit), time.time()), refresh=True)
                stop.wait(pause_s)
        except KeyboardInterrupt:
            return


def _drawn(seen: Overview, now: float) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    active = sum(not job.terminal for job in seen.jobs)
    price = sum(node.price_per_hour for node in seen.nodes)
    clock = time.strftime("%H:%M:%S", time.localtime(now))
    head = f"remora  {clock}  {active} jobs that have not ended, {len(seen.nodes)} nodes, {price:.2f} USD/h"
    tables = [
        output.drawn_table(JOB_COLUMNS, job_rows(seen.jobs, now)),
        output.drawn_table(POOL_COLUMNS, pool_rows(seen, now)),
    ]
    return Group(Text(head, style="bold"), *tables, Text("Ctrl-C ends it.", style="dim"))
