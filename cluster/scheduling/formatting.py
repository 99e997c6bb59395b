"""Formats times and counts for people (pure)."""

from __future__ import annotations

from datetime import UTC, datetime


def clock(at: float) -> str:
    """`2026-07-01 12:05:10 UTC`: with the date, as it may be of another day."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def count(number: int, thing: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
