"""`remora projects`: what the service keeps of each project, beside its limits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from remora.cli import output
from remora.cli.options import JsonOption, ServerOption
from remora.cli.session import connect
from remora.spec.quantities import format_size

if TYPE_CHECKING:
    from remora.views import Project


def projects(as_json: JsonOption = False, server: ServerOption = None) -> None:
    """Show each project's share and what it holds, what it has of everything that is limited, and its limits."""
    with connect(server) as client:
        found = client.projects()
    if as_json:
        output.print_json(found)
        return
    rows = [row for project in found for row in _rows(project)]
    output.print_table(
        ("project", "share", "holds", "of", "used", "limit"), rows, "There are no projects yet."
    )


def _rows(project: Project) -> Iterator[tuple[str, ...]]:
    """One row for each thing that it has or that is limited, and one where there is none."""
    part = "" if project.share_held is None else f"{project.share_held:.1%}"
    whose = (project.name, f"{project.share:g}", part)
    kinds = [(kind, use) for kind, use in project.uses.items() if use.used or use.limit is not None]
    for kind, use in kinds:
        limit = "" if use.limit is None else _amount(kind, use.limit)
        yield *whose, kind, _amount(kind, use.used), limit
    if not kinds:
        yield *whose, "", "", ""


def _amount(kind: str, amount: int) -> str:
    return format_size(amount) if kind.endswith("_bytes") else str(amount)
