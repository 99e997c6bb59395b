"""Commands for what paid time went into: `goodput`, and `ledger` with `--by`."""

from __future__ import annotations

import csv
import sys
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from remora.cli import output
from remora.cli.options import JsonOption, ServerOption
from remora.cli.session import connect
from remora.errors import ConfigurationError
from remora.spec.quantities import format_duration, parse_duration
from remora.terminal_text import neutral

if TYPE_CHECKING:
    from remora.views import CostReport

SinceOption = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="DURATION",
        help="How far back, such as 12h or 7d; the running month unless given.",
        show_default=False,
    ),
]


class CostForm(StrEnum):
    """How lines are printed, other than as a table."""

    CSV = "csv"
    FOCUS = "focus"


def since_of(duration: str | None) -> float | None:
    """When the range of time begins, in seconds since 1970; None: at its default.  Raises ConfigurationError."""
    if duration is None:
        return None
    try:
        return max(0.0, time.time() - float(parse_duration(duration)))
    except ValueError as error:
        raise ConfigurationError(f"--since {neutral(duration)}: {error}") from error


def show_costs(
    by: str, job: str | None, since: str | None, *, as_csv: bool, as_json: bool, server: str | None
) -> None:
    """Print what nodes were paid for, by the names in `by`, with commas between them."""
    names = [one.strip() for one in by.split(",") if one.strip()]
    begins_at = since_of(since)
    with connect(server) as client:
        job_id = None if job is None else client.find(job).id
        found = client.costs(names, job_id=job_id, since=begins_at)
    if as_json:
        output.print_json(found)
    elif as_csv:
        _write_csv(found)
    else:
        rows = [
            (
                *(line.of[name] or "-" for name in found.by),
                format_duration(line.node_s),
                format_duration(line.gpu_s),
                f"{line.cost:.4f}",
            )
            for line in found.lines
        ]
        if rows:
            blanks = ("",) * (len(found.by) - 1)
            figures = (format_duration(found.node_s), format_duration(found.gpu_s), f"{found.cost:.4f}")
            rows.append(("total", *blanks, *figures))
        columns = (*(name.replace("_", " ") for name in found.by), "node time", "GPU time", "USD")
        output.print_table(columns, rows, "No node was paid for in this time.")
        if rows:
            output.say(found.sentence)


def export_costs(job: str | None, since: str | None, *, server: str | None) -> None:
    """Print what nodes were paid for, as CSV in the form of FOCUS."""
    begins_at = since_of(since)
    with connect(server) as client:
        job_id = None if job is None else client.find(job).id
        text = client.export_costs(job_id=job_id, since=begins_at)
    for line in text.splitlines():
        output.print_line(neutral(line), raw=True)


def _write_csv(found: CostReport) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([*found.by, "node_s", "gpu_s", "usd"])
    for line in found.lines:
        named = [f"'{text}" if text[:1] in ("=", "+", "-", "@") else text for text in line.of.values()]
        writer.writerow([*map(neutral, named), f"{line.node_s:.3f}", f"{line.gpu_s:.3f}", f"{line.cost:.6f}"])


def goodput(
    job: Annotated[
        str | None,
        typer.Argument(
            metavar="[JOB]", help="Job id, name, or `last`; without one, all jobs.", show_default=False
        ),
    ] = None,
    since: SinceOption = None,
    as_json: JsonOption = False,
    server: ServerOption = None,
) -> None:
    """Show which part of paid time trained, what the rest cost, and what would have saved some of it."""
    begins_at = since_of(since)
    with connect(server) as client:
        found = client.goodput(None if job is None else client.find(job).id, since=begins_at)
    if as_json:
        output.print_json(found)
        return
    output.print_pairs(
        [
            ("goodput", _percent(found.goodput)),
            ("scheduling", _percent(found.scheduling)),
            ("runtime", _percent(found.runtime)),
            ("program", _percent(found.program)),
            ("paid", f"{format_duration(found.node_s)} of nodes, {found.cost:.4f} USD"),
        ]
    )
    rows = [
        (
            one.cause.replace("_", " "),
            format_duration(one.node_s),
            f"{one.cost:.4f}",
            f"{one.saved_cost:.4f}" if found.cost else format_duration(one.saved_node_s),
            one.by,
        )
        for one in found.losses
    ]
    if rows:
        columns = ("lost to", "node time", "USD", "saved", "by")
        output.print_table(columns, rows, "")
    output.say(found.sentence)


def _percent(part: float | None) -> str:
    return "not known" if part is None else f"{part:.1%}"
