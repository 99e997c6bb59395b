"""The table of `remora pools` with what each pool may buy: prices, evictions, and what the cloud refuses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from remora.cli import output

if TYPE_CHECKING:
    from remora.views import Pool, SoldOffering

_COLUMNS = ("pool may buy", "offering", "USD per hour", "preempted in an hour", "the cloud")
#: Of each pool; `--json` has all.
_MOST = 12


def print_offerings(pools: Sequence[Pool]) -> None:
    """Print them below the pools, those that the cloud sells now first, then by price; nothing where none is known."""
    rows = [row for pool in pools for row in _rows(pool)]
    if rows:
        output.print_line("")
        output.print_table(_COLUMNS, rows, "")


def _rows(pool: Pool) -> Iterator[tuple[str, ...]]:
    ordered = sorted(
        pool.offerings, key=lambda one: (one.closed_until is not None, one.price_per_hour, one.offering)
    )
    for one in ordered[:_MOST]:
        yield pool.name, one.offering, _price(one), _evictions(one), _sells(one)
    if len(ordered) > _MOST:
        yield pool.name, f"and {len(ordered) - _MOST} more, which --json shows", "", "", ""


def _price(one: SoldOffering) -> str:
    return f"{one.price_per_hour:.4f}{' (assumed)' if one.is_price_assumed else ''}"


def _evictions(one: SoldOffering) -> str:
    return "never" if one.evictions_per_hour is None else f"{one.evictions_per_hour:.1%}"


def _sells(one: SoldOffering) -> str:
    return "sells it" if one.closed_until is None else f"refuses it until {output.date(one.closed_until)}"
