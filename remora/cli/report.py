"""`remora report --week`: what the last week cost and what became of it, as one page that can be sent."""

from __future__ import annotations

import time
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from remora.cli import output
from remora.cli.options import ServerOption
from remora.cli.session import connect
from remora.errors import ConfigurationError
from remora.spec.quantities import format_duration
from remora.terminal_text import neutral

if TYPE_CHECKING:
    from remora.views import CostReport, GoodputReport

WEEK_S = 7 * 86_400.0
#: Lines of a table; the rest is one line.
_MOST = 25

_STYLE = """\
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; width: 100%; margin-bottom: 2rem }
th, td { text-align: right; padding: .2rem .6rem; border-bottom: 1px solid #8884 }
th:first-child, td:first-child { text-align: left; overflow-wrap: anywhere }
meter { width: 8rem }
@page { size: A4; margin: 18mm 16mm }
@media print {
  :root { color-scheme: light }
  body { font-size: 10pt; max-width: none; margin: 0; padding: 0; print-color-adjust: exact }
  h2 { break-after: avoid }
  tr { break-inside: avoid }
}
"""


def report(
    week: Annotated[bool, typer.Option("--week", help="Of the last seven days.")] = False,
    file: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write the page to this file: HTML, or PDF by the name *.pdf.",
        ),
    ] = Path("remora-report.html"),
    server: ServerOption = None,
) -> None:
    """Write a page about what the last week cost: by cause, project and pool, with goodput."""
    if not week:
        raise ConfigurationError("say of which time: --week")
    until = time.time()
    since = until - WEEK_S
    with connect(server) as client:
        goodput = client.goodput(since=since, until=until)
        names = ("cause", "project", "pool", "job")
        tables = [client.costs([name], since=since, until=until) for name in names]
    _write(page_of(goodput, tables), file)
    output.say(f"{goodput.sentence} Written to {neutral(str(file))}.")


def _write(page: str, file: Path) -> None:
    if file.suffix.lower() == ".pdf":
        from remora.cli.printing import print_page

        print_page(page, file)
        return
    try:
        file.write_text(page, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{neutral(str(file))} cannot be written: {error.strerror}") from error


def page_of(goodput: GoodputReport, tables: list[CostReport]) -> str:
    """The page: complete, without anything that it would load."""
    shown = ("goodput", goodput.goodput), ("scheduling", goodput.scheduling), ("runtime", goodput.runtime)
    parts = "".join(
        f"<tr><td>{name}</td><td>{'not known' if part is None else f'{part:.1%}'}</td>"
        f"<td><meter min=0 max=1 value={part or 0.0:.4f}></meter></td></tr>"
        for name, part in shown
    )
    lost = "".join(
        f"<tr><td>{_words(one.cause)}</td><td>{one.cost:.2f}</td><td>{format_duration(one.node_s)}</td>"
        f"<td>{one.saved_cost:.2f}</td><td>{escape(one.by)}</td></tr>"
        for one in goodput.losses
    )
    begins, ends = output.date(goodput.since), output.date(goodput.until)
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>Remora: {begins} to {ends}</title><style>{_STYLE}</style>"
        f"<h1>{begins} to {ends}</h1><p>{escape(goodput.sentence)}</p>"
        f"<h2>Goodput</h2><table>{parts}</table>"
        "<h2>What was lost</h2><table><thead><tr><th>to</th><th>USD</th><th>node time</th><th>saved USD</th><th>by</th>"
        f"</tr></thead>{lost}</table>" + "".join(map(_table, tables)) + "</html>\n"
    )


def _table(found: CostReport) -> str:
    (name,) = found.by
    lines = sorted(found.lines, key=lambda line: (-line.cost, -line.node_s))
    first, rest = lines[:_MOST], lines[_MOST:]
    of = _words if name == "cause" else escape
    rows = [(of(line.of[name]) or "none", line.cost, line.node_s, line.gpu_s) for line in first]
    if rest:
        sums = (
            sum(one.cost for one in rest),
            sum(one.node_s for one in rest),
            sum(one.gpu_s for one in rest),
        )
        rows.append((f"{len(rest)} others", *sums))
    rows.append(("total", found.cost, found.node_s, found.gpu_s))
    body = "".join(
        f"<tr><td>{label}</td><td>{cost:.2f}</td><td>{format_duration(node_s)}</td><td>{format_duration(gpu_s)}</td>"
        "</tr>"
        for label, cost, node_s, gpu_s in rows
    )
    # A table that goes on on the next sheet repeats its head.
    heading = "<thead><tr><th></th><th>USD</th><th>node time</th><th>GPU time</th></tr></thead>"
    return f"<h2>By {name}</h2><table>{heading}{body}</table>"


def _words(text: str) -> str:
    return escape(text.replace("_", " "))
