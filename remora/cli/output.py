"""What commands print: rich on a terminal, plain columns in a pipe, JSON when asked."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from remora.clusters import DEFAULT_CLUSTER
from remora.spec.quantities import format_duration
from remora.terminal_text import neutral, neutral_json
from remora.terminal_text import printable as printable

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.console import Console
    from rich.table import Table

    from remora.views import Job

STATE_STYLES = {
    "queued": "yellow",
    "admitted": "yellow",
    "running": "cyan",
    "paused": "yellow",
    "succeeded": "green",
    "failed": "red",
    "cancelled": "magenta",
    "ready": "green",
    "draining": "yellow",
    "gone": "dim",
}


def console() -> Console:
    """A console on standard output."""
    from rich.console import Console

    return Console(highlight=False, markup=False, soft_wrap=True)


def say(text: str) -> None:
    """A remark for people, on standard error so that it never mixes with data."""
    print(neutral(text), file=sys.stderr, flush=True)


def print_line(text: str, *, raw: bool = False) -> None:
    """A line of data, whatever stands in it; `raw` leaves to the terminal what it makes of that."""
    print(text if raw else neutral(text), flush=True)


def print_json(value: BaseModel | Sequence[BaseModel] | dict[str, Any]) -> None:
    """One JSON document."""
    if isinstance(value, dict):
        document: Any = value
    elif isinstance(value, Sequence):
        document = [one.model_dump(mode="json") for one in value]
    else:
        document = value.model_dump(mode="json")
    print(neutral_json(json.dumps(document, indent=2, ensure_ascii=False)), flush=True)


def print_result(found: BaseModel | dict[str, Any], line: str, *, as_json: bool) -> None:
    """What a command found or did: a JSON document, or one line for people."""
    if as_json:
        print_json(found)
    else:
        print_line(line)


def print_json_line(value: BaseModel) -> None:
    """One line of a JSON stream."""
    print(neutral_json(value.model_dump_json()), flush=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], empty: str) -> None:
    """A table; on standard error the sentence `empty` when there are no rows."""
    # Metrics, for one, are columns that scripts name.
    columns, *rows = ([printable(cell) for cell in row] for row in (columns, *rows))
    if not rows:
        say(empty)
    elif sys.stdout.isatty():
        _print_rich(columns, rows)
    else:
        widths = [max(len(row[at]) for row in [columns, *rows]) for at in range(len(columns))]
        for row in [[column.upper() for column in columns], *rows]:
            print_line("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def print_by_cluster(
    columns: Sequence[str], rows: Iterable[Sequence[str]], clusters: Sequence[str | None], empty: str
) -> None:
    """`print_table` with a last but one column for the cluster of each row where there is more than the usual one."""
    if not {*clusters} - {DEFAULT_CLUSTER, None}:
        print_table(columns, rows, empty)
        return
    shown = [[*row[:-1], cluster or "", row[-1]] for row, cluster in zip(rows, clusters, strict=True)]
    print_table((*columns[:-1], "cluster", columns[-1]), shown, empty)


def _print_rich(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    console().print(drawn_table(columns, rows), soft_wrap=False)


def drawn_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table for a terminal, with the colours of states; whatever its cells hold is plain text."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for at, column in enumerate(columns):
        table.add_column(column, overflow="fold" if at else "ignore", no_wrap=at == 0)
    for row in rows:
        cells = map(printable, row)
        table.add_row(*(Text(cell, style=STATE_STYLES.get(cell, "")) for cell in cells))
    return table


def print_pairs(pairs: Iterable[tuple[str, str | None]]) -> None:
    """Names and values, one per line; those without a value are left out."""
    shown = [(name, printable(value)) for name, value in pairs if value is not None]
    width = max(len(name) for name, _ in shown)
    for name, value in shown:
        print_line(f"{name.ljust(width)}  {value}")


def clock(at: float) -> str:
    """A time for people, with its date where that is not today's."""
    there, here = time.localtime(at), time.localtime()
    is_today = (there.tm_year, there.tm_yday) == (here.tm_year, here.tm_yday)
    return time.strftime("%H:%M:%S" if is_today else "%Y-%m-%d %H:%M:%S", there)


def date(at: float | None) -> str | None:
    """A date and time for people."""
    return None if at is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def age(at: float) -> str:
    """How long ago."""
    return format_duration(time.time() - at)


def steps(job: Job) -> str:
    """Steps done of steps in all."""
    if job.step is None:
        return "-"
    return str(job.step) if job.total_steps is None else f"{job.step}/{job.total_steps}"


def summary(job: Job) -> str:
    """One line on the state of a job."""
    detail = job.message or job.reason
    return f"{job.id} {job.name}: {job.state}{f', {printable(detail)}' if detail else ''}"
