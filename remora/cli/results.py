"""Commands for what a job learned and what it cost: `metrics`, `checkpoints`, `download`, `ledger`."""

from __future__ import annotations

import contextlib
import csv
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from remora.cli import output
from remora.cli.costs import CostForm, SinceOption, export_costs, show_costs
from remora.cli.options import FollowOption, JobArgument, JsonOption, ServerOption
from remora.cli.session import connect, detaching
from remora.errors import ConfigurationError
from remora.spec.quantities import format_duration, format_size
from remora.terminal_text import neutral

if TYPE_CHECKING:
    from remora.views import MetricPoint


def metrics(
    job: JobArgument,
    file: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write CSV to this file, or to - .")
    ] = None,
    most: Annotated[
        int | None,
        typer.Option(
            "--points",
            min=1,
            max=2000,
            metavar="N",
            help="At most N points for all steps; each has the last values, with --json also the least and greatest.",
        ),
    ] = None,
    follow: FollowOption = False,
    as_json: JsonOption = False,
    server: ServerOption = None,
) -> None:
    """Print the values that a job reported, by step."""
    if follow and (file is not None or most is not None):
        raise typer.BadParameter("--follow prints each step as it comes; leave out --output and --points")
    if follow:
        _follow(job, as_json=as_json, server=server)
        return
    with connect(server) as client:
        points = client.metrics(client.find(job).id, points=most)
    if file is not None:
        _write_csv(points, file)
    elif as_json:
        output.print_json(points)
    else:
        names = _names(points)
        rows = (
            (
                str(point.step),
                str(point.world_size),
                *("" if (value := point.values.get(name)) is None else f"{value:.6g}" for name in names),
            )
            for point in points
        )
        output.print_table(("step", "workers", *names), rows, "The job reported no values yet.")


def _follow(job: str, *, as_json: bool, server: str | None) -> None:
    """Print each step as it is reported, until the job has ended."""
    with connect(server) as client:
        job_id = client.find(job).id
        with detaching(job_id, "metrics -f"):
            for point in client.follow_metrics(job_id):
                if as_json:
                    output.print_json_line(point)
                    continue
                values = (
                    f"{neutral(name)} {value:.6g}"
                    for name, value in point.values.items()
                    if value is not None
                )
                output.print_line("  ".join((f"step {point.step}", f"workers {point.world_size}", *values)))


def _names(points: list[MetricPoint]) -> list[str]:
    """Names of all values, in the order of their first appearance."""
    return list(dict.fromkeys(name for point in points for name in point.values))


def _write_csv(points: list[MetricPoint], file: Path) -> None:
    names = _names(points)
    is_stdout = str(file) == "-"
    opened = contextlib.nullcontext(sys.stdout) if is_stdout else file.open("w", newline="", encoding="utf-8")
    with opened as target:
        writer = csv.writer(target)
        shown = map(neutral, names) if is_stdout else names
        writer.writerow(["step", "at", "attempt", "world_size", *shown])
        for point in points:
            values = ("" if (value := point.values.get(name)) is None else repr(value) for name in names)
            writer.writerow([point.step, repr(point.at), point.attempt, point.world_size, *values])
    output.say(f"{len(points)} steps written to {file}")


def checkpoints(job: JobArgument, as_json: JsonOption = False, server: ServerOption = None) -> None:
    """List a job's checkpoints."""
    with connect(server) as client:
        kept = client.checkpoints(client.find(job).id)
    if as_json:
        output.print_json(kept)
        return
    rows = (
        (
            str(one.step),
            str(one.attempt),
            str(one.world_size),
            format_size(one.size_bytes),
            output.date(one.committed_at) or "",
            one.location,
        )
        for one in kept
    )
    columns = ("step", "attempt", "workers", "size", "committed", "location")
    output.print_table(columns, rows, "The job has no checkpoint yet.")


def download(
    job: JobArgument,
    step: Annotated[int | None, typer.Option("--step", min=0, help="This step's; else the newest.")] = None,
    folder: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="Folder to make; else JOB-checkpoint here."),
    ] = None,
    as_json: JsonOption = False,
    server: ServerOption = None,
) -> None:
    """Copy a checkpoint's files into a folder."""
    with connect(server) as client:
        job_id = client.find(job).id
        target = folder or Path(f"{job_id}-checkpoint")
        got = client.download(job_id, target, step=step)
    output.print_result(
        got,
        f"step {got.step}, {len(got.files)} files, {format_size(got.size_bytes)}: {target}",
        as_json=as_json,
    )


def ledger(
    job: Annotated[
        str | None,
        typer.Argument(
            metavar="[JOB]",
            help="Job id, name, or `last`; without one, the whole cluster.",
            show_default=False,
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            "--by",
            metavar="NAMES",
            help="What paid time went into instead, by job, project, pool, capacity_type, cause or hour, or by several"
            " of them with commas between.",
            show_default=False,
        ),
    ] = None,
    since: SinceOption = None,
    form: Annotated[
        CostForm | None,
        typer.Option(
            "--format",
            help="CSV, with --by; or the columns of FOCUS 1.0 for each node, hour and cause.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
    server: ServerOption = None,
) -> None:
    """Show what a job has cost, by kind of node; or who pays for the whole cluster in the running month."""
    if form is CostForm.FOCUS:
        export_costs(job, since, server=server)
        return
    if by is not None:
        show_costs(by, job, since, as_csv=form is CostForm.CSV, as_json=as_json, server=server)
        return
    if since is not None or form is not None:
        raise ConfigurationError("--since and --format csv need --by, such as --by cause")
    if job is None:
        _cluster_ledger(as_json=as_json, server=server)
        return
    with connect(server) as client:
        found = client.ledger(client.find(job).id)
    if as_json:
        output.print_json(found)
        return
    columns = ("pool", "size", "zone", "capacity", "nodes", "node time", "USD")
    rows = [
        (
            line.pool,
            line.size or "-",
            line.zone or "any",
            line.capacity or "-",
            str(line.nodes),
            format_duration(line.node_s),
            f"{line.cost:.4f}",
        )
        for line in found.lines
    ]
    if rows:
        rows.append(("total", "", "", "", "", format_duration(found.node_s), f"{found.cost:.4f}"))
    output.print_table(columns, rows, "No worker of the job has been on a node yet.")
    if found.start_up_cost:
        spent = f"{format_duration(found.start_up_s)} and {found.start_up_cost:.4f} USD"
        output.say(f"Machines that were bought for it took {spent} to start.")
    if found.budget is not None:
        output.say(
            f"{max(0.0, found.budget - found.cost):.2f} of {found.budget:.2f} USD are left of its budget"
        )


def _cluster_ledger(*, as_json: bool, server: str | None) -> None:
    with connect(server) as client:
        found = client.cluster_ledger()
    if as_json:
        output.print_json(found)
        return
    columns = ("payer", "name", "for", "nodes", "node time", "USD")
    rows = [
        (
            line.payer,
            line.name or ("others" if line.payer == "job" else "-"),
            line.purpose,
            str(line.nodes),
            format_duration(line.node_s),
            f"{line.cost:.4f}",
        )
        for line in found.lines
    ]
    if rows:
        rows.append(("total", "", "", "", format_duration(found.node_s), f"{found.cost:.4f}"))
    output.print_table(columns, rows, f"No node has cost money since {output.date(found.since)}.")
