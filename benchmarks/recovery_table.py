"""The table of `docs/benchmarks.md` that says where the time of a recovery goes (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.recovery_parts import PAUSED

#: Between these lines of the page the table stands.
BEGIN, END = "<!-- made by make bench-recovery -->", "<!-- end of what it made -->"
#: What each of the three is, in words, and what its goal is compared with.
TITLES = {
    "loss": "SIGKILL of one of three nodes, to the next step of the others",
    "growth": "a third node is ready, to the first step with a worker on it",
    "submission": "`remora submit`, to the first step that the client sees",
}


def with_table(page: str, document: Mapping[str, Any]) -> str:
    """The page with this document's table in place of the one before.  Raises ValueError on a page without a place."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no line {BEGIN!r} followed by {END!r}")
    return f"{before}{BEGIN}\n\n" + "\n".join(lines(document)) + f"\n\n{END}{after}"


def lines(document: Mapping[str, Any]) -> Iterator[str]:
    """The lines of the table."""
    rounds, goals, floors = document["rounds"], document["goals_ms"], document["floors_ms"]
    yield f"Medians in milliseconds, on {document['cores']} cores with a load of {document['load']:g} meanwhile:"
    yield ""
    yield "| part | milliseconds | alone | goal |"
    yield "|---|---|---|---|"
    for name, parts in document["recovery_ms"].items():
        yield f"| **{TITLES[name]}** (rounds: {rounds[name]}) | | | |"
        for part, value in parts.items():
            if part != "total":
                alone = f" {floors[part]:.0f}" if part in floors else ""
                yield f"| {part} | {value:.0f} |{alone} | |"
        yield _whole(name, parts, document, goals[name])


def _whole(name: str, parts: Mapping[str, float], document: Mapping[str, Any], goal: float) -> str:
    if name != "growth":
        return f"| *in all* | {parts['total']:.0f} | | {goal:.0f} |"
    paused = (
        f'| *of it the others pause, from "{PAUSED[0]}" on* | {document["pause_ms"]:.0f} | | {goal:.0f} |'
    )
    return f"| *in all* | {parts['total']:.0f} | | |\n{paused}"
