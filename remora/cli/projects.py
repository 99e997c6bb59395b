"""`remora projects`: what the service keeps of each project, beside its limits."""

from __future__ import annotations

from remora.cli import output
from remora.cli.options import JsonOption, ServerOption
from remora.cli.session import connect
from remora.spec.quantities import format_size


def projects(as_json: JsonOption = False, server: ServerOption = None) -> None:
    """Show what each project has of everything that is limited, and its limits."""
    with connect(server) as client:
        found = client.projects()
    if as_json:
        output.print_json(found)
        return
    rows = (
        (project.name, kind, _amount(kind, use.used), "" if use.limit is None else _amount(kind, use.limit))
        for project in found
        for kind, use in project.uses.items()
        if use.used or use.limit is not None
    )
    output.print_table(("project", "of", "used", "limit"), rows, "There are no projects yet.")


def _amount(kind: str, amount: int) -> str:
    return format_size(amount) if kind.endswith("_bytes") else str(amount)
