"""`remora budgets`: what is spent of each budget, and until when it lasts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remora.cli import output
from remora.cli.options import JsonOption, ServerOption
from remora.cli.session import connect

if TYPE_CHECKING:
    from remora.budget_views import Budget


def budgets(as_json: JsonOption = False, server: ServerOption = None) -> None:
    """Show what is spent of each budget, which step comes next, and until when it lasts at the present pace."""
    with connect(server) as client:
        found = client.budgets()
    if as_json:
        output.print_json(found)
        return
    rows = [
        (
            one.project or "(the cluster)",
            one.period,
            f"{one.spent:.2f} of {one.limit:.2f}",
            "-" if one.fraction is None else f"{100 * one.fraction:.0f} %",
            one.step_in_force or "-",
            "-" if one.next_step is None else f"{one.next_step} at {one.next_step_at:.2f}",
            f"{one.usd_per_hour:.2f}",
            _lasts(one),
        )
        for one in found
    ]
    columns = ("budget of", "per", "USD", "spent", "step", "next step", "USD per hour", "lasts until")
    output.print_table(columns, rows, "The policies have no budget.")


def _lasts(one: Budget) -> str:
    if one.spent >= one.limit:
        return "used up"
    return f"the {one.period} ends" if one.runs_out_at is None else output.date(one.runs_out_at) or "-"
