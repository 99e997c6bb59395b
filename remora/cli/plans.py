"""`remora plan`: what a trace would have cost under other policies; `remora trace`: recorded jobs and market for it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from remora.cli import output
from remora.cli.exits import ExitCode
from remora.cli.options import JsonOption, ServerOption
from remora.cli.session import connect
from remora.clusters import DEFAULT_CLUSTER
from remora.errors import ConfigurationError
from remora.spec.quantities import format_duration, parse_duration

if TYPE_CHECKING:
    from remora.views import ReplayReport


def plan(
    traces: Annotated[
        list[str],
        typer.Option(
            "--trace",
            metavar="FILE",
            help="A trace; OFFERING=FILE is the spot availability of an offering in SkyPilot's format. Repeat it.",
        ),
    ],
    policy: Annotated[
        Path, typer.Option("--policy", metavar="FILE", help="The policy (YAML) to replay it under.")
    ],
    against: Annotated[
        Path | None, typer.Option("--against", metavar="FILE", help="A second policy to compare it with.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the replay's random numbers.")] = 0,
    look: Annotated[
        float, typer.Option("--look", min=1, max=3600, help="Seconds between two looks of the planner.")
    ] = 60.0,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE.svg", help="Write a picture of nodes and waiting jobs."),
    ] = None,
    as_json: JsonOption = False,
    server: ServerOption = None,
) -> int:
    """Replay a trace under a policy, or under two, and print cost, waiting, goodput and preemptions."""
    policies = [policy] if against is None else [policy, against]
    with connect(server) as client:
        try:
            answer = client.what_if(traces, policies, seed=seed, look_s=look, on_progress=_progress())
        except KeyboardInterrupt:
            output.say("\nCancelled; the replay has ended.")
            return ExitCode.DETACHED
    if answer.state != "done":
        output.say(f"remora: {answer.message}")
        return ExitCode.ERROR
    if plot is not None:
        plot.write_text(answer.plot or "", encoding="utf-8")
    for note in answer.notes:
        output.say(note)
    if as_json:
        output.print_json(answer.model_dump(mode="json", exclude={"plot"}))
    else:
        _print(answer.reports)
    return ExitCode.OK


def _progress() -> Callable[[float], None] | None:
    """On a terminal the part that is done, on one line."""
    if not sys.stderr.isatty():
        return None

    def display(part: float) -> None:
        print(f"\r{part:4.0%}", end="" if part < 1 else "\r    \r", file=sys.stderr, flush=True)

    return display


def _print(reports: Sequence[ReplayReport]) -> None:
    columns = ["", *(report.policy for report in reports), *(["change"] if len(reports) == 2 else [])]
    rows = []
    for name, text, value in _ROWS:
        cells = [text(report) for report in reports]
        if len(reports) == 2:
            cells.append(_change(value(reports[0]), value(reports[1])))
        rows.append([name, *cells])
    output.print_table(columns, rows, "")


def _change(value: float, against: float) -> str:
    """How much the first is above or below the second."""
    if value == against:
        return "="
    return f"{(value - against) / against:+.1%}" if against else f"{value - against:+.4g}"


_Row = tuple[str, "Callable[[ReplayReport], str]", "Callable[[ReplayReport], float]"]


def _money(name: str, value: Callable[[ReplayReport], float]) -> _Row:
    return name, lambda report: f"{value(report):,.2f} USD", value


def _time(name: str, value: Callable[[ReplayReport], float]) -> _Row:
    return name, lambda report: format_duration(value(report)), value


def _part(name: str, value: Callable[[ReplayReport], float]) -> _Row:
    return name, lambda report: f"{value(report):.1%}", value


def _count(name: str, value: Callable[[ReplayReport], float]) -> _Row:
    return name, lambda report: f"{value(report):g}", value


_ROWS: tuple[_Row, ...] = (
    _money("cost", lambda report: report.cost_usd),
    _money("  spot", lambda report: report.spot_usd),
    _money("  on-demand", lambda report: report.on_demand_usd),
    _part("spot share", lambda report: report.spot_share),
    _time("wait p50", lambda report: report.wait_p50_s),
    _time("wait p95", lambda report: report.wait_p95_s),
    _time("completion p50", lambda report: report.completion_p50_s),
    _time("completion p95", lambda report: report.completion_p95_s),
    _time("makespan", lambda report: report.makespan_s),
    _part("goodput", lambda report: report.goodput),
    _part("capacity used", lambda report: report.used),
    _count("preemptions", lambda report: report.preemptions),
    _count("attempts lost", lambda report: report.losses),
    _count("times shrunk", lambda report: report.shrinks),
    _count("launches", lambda report: report.launches),
    _count("launches refused", lambda report: report.refused),
    _count("budget violations", lambda report: report.budget_violations),
    _count("  of projects", lambda report: report.project_budget_violations),
    _count("deadlines missed", lambda report: report.deadlines_missed),
    _count("jobs succeeded", lambda report: report.succeeded),
    _count("jobs failed", lambda report: report.failed),
    _count("  never ran", lambda report: report.never_ran),
)


trace_app = typer.Typer(help="What happened here, to be replayed under other policies.", no_args_is_help=True)


@trace_app.callback()
def _of_traces() -> None:
    """Keep `export` a command of its own although it is the only one."""


@trace_app.command()
def export(
    since: Annotated[
        str, typer.Option("--since", metavar="DURATION", help="How far back, such as 12h or 30d.")
    ] = "30d",
    to: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Where to write it; else standard output."),
    ] = None,
    cluster: Annotated[
        str, typer.Option("--cluster", metavar="NAME", help="Of which cluster, as a replay is of one.")
    ] = DEFAULT_CLUSTER,
    server: ServerOption = None,
) -> int:
    """Write the jobs of a cluster that were submitted and the market that they met as a trace for `remora plan`."""
    try:
        seconds = float(parse_duration(since))
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"--since {since}: {error}") from error
    with connect(server) as client:
        trace = client.export_trace(since=max(0.0, time.time() - seconds), cluster=cluster)
    if to is None:
        sys.stdout.write(trace.text)
    else:
        to.write_text(trace.text, encoding="utf-8")
    left = f"; {trace.left_out} that never trained are left out" if trace.left_out else ""
    output.say(f"{trace.jobs} job{'' if trace.jobs == 1 else 's'} of the last {since}{left}")
    return ExitCode.OK
