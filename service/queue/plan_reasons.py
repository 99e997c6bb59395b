"""The reasons of a plan as they are stored: since when each has held, bounded in number and length (pure)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from cluster.scheduling.actions import Wait
from service.queue.rows import WaitKind, WaitRow

#: Reasons that are kept of one pool or node, and of all of them; those of pools come first.
MOST_OF_EACH = 5
MOST = 2000
#: Characters of a reason that are kept.
LONGEST = 500

_NUMBERS = re.compile(r"\d+")
#: Amounts of money change with every plan.
_AMOUNTS = re.compile(r"\d+\.\d+")


def renewed(before: Sequence[WaitRow], waits: Iterable[Wait], now: float) -> list[WaitRow]:
    """The rows after a plan with these reasons; a reason in which only numbers changed keeps its `since`.

    Where only amounts of money changed the old text stays, so that nothing is written while a budget is spent.
    """
    by_owner: defaultdict[tuple[WaitKind, str], list[WaitRow]] = defaultdict(list)
    for row in before:
        by_owner[row.kind, row.about].append(row)
    rows: list[WaitRow] = []
    for (kind, about), reasons in _by_owner(waits).items():
        for place, reason in enumerate(reasons[:MOST_OF_EACH]):
            known = _known(reason, by_owner[kind, about])
            since = now if known is None else known.since
            if known is not None and not is_news(known.reason, reason):
                reason = known.reason
            rows.append(WaitRow(kind=kind, about=about, place=place, since=since, reason=reason))
    return rows[:MOST]


def _by_owner(waits: Iterable[Wait]) -> Mapping[tuple[WaitKind, str], list[str]]:
    """Different reasons by what they are about, pools first."""
    pools: defaultdict[tuple[WaitKind, str], list[str]] = defaultdict(list)
    nodes: defaultdict[tuple[WaitKind, str], list[str]] = defaultdict(list)
    for wait in waits:
        if wait.pool is not None:
            mine = pools[WaitKind.POOL, wait.pool]
        elif wait.node_id is not None:
            mine = nodes[WaitKind.NODE, wait.node_id]
        else:
            continue
        if (reason := shortened(wait.reason)) not in mine:
            mine.append(reason)
    return pools | nodes


def _known(reason: str, known: Sequence[WaitRow]) -> WaitRow | None:
    """The row with the same reason: with equal text, else equal but for its numbers."""
    same = [row for row in known if row.reason == reason]
    alike = [row for row in known if _NUMBERS.sub("", row.reason) == _NUMBERS.sub("", reason)]
    return next(iter([*same, *alike]), None)


def shortened(reason: str) -> str:
    """The reason, cut to `LONGEST` characters."""
    return reason if len(reason) <= LONGEST else f"{reason[: LONGEST - 1]}\N{HORIZONTAL ELLIPSIS}"


def is_news(before: str | None, reason: str | None) -> bool:
    """Whether more than amounts of money changed."""
    if before is None or reason is None:
        return before is not reason
    return _AMOUNTS.sub("", before) != _AMOUNTS.sub("", reason)
