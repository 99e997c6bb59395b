"""Which ranks have not entered a collective that others wait in (pure)."""

from __future__ import annotations

from collections.abc import Mapping

from trainers.driver.verdict import name_ranks
from trainers.last_collectives import LastCollective

#: PyTorch's name of the group of all ranks.
_ALL_RANKS = "0"
#: By rank; None: the rank has not said.
Collectives = Mapping[int, tuple[LastCollective, ...] | None]


def explain(found: Collectives) -> str | None:
    """One sentence on a collective that cannot end and why; None where no rank waits in one, or none is to blame.

    Of several groups with such a collective the one counts in which most ranks wait.
    """
    by_group: dict[str, dict[int, LastCollective]] = {}
    for rank, collectives in found.items():
        for one in collectives or ():
            by_group.setdefault(one.group, {})[rank] = one
    silent = tuple(sorted(rank for rank, collectives in found.items() if collectives is None))
    answered = {rank for rank, collectives in found.items() if collectives is not None}
    sentences = [
        (len(waiting), sentence)
        for group, ranks in by_group.items()
        if (waiting := tuple(rank for rank, one in ranks.items() if one.waits))
        and (sentence := _of_group(group, ranks, waiting, answered, silent)) is not None
    ]
    return max(sentences, key=lambda one: one[0])[1] if sentences else None


def _of_group(
    group: str,
    ranks: Mapping[int, LastCollective],
    waiting: tuple[int, ...],
    answered: set[int],
    silent: tuple[int, ...],
) -> str | None:
    furthest = max((ranks[rank] for rank in waiting), key=lambda one: one.number)
    there = tuple(rank for rank in waiting if ranks[rank].number == furthest.number)
    others = tuple(rank for rank in there if ranks[rank].what != furthest.what)
    if others:
        same = tuple(rank for rank in there if ranks[rank].what == furthest.what)
        return (
            f"{_ranks(same)} {_wait(same)} in {furthest.name} and {_ranks(others)} in"
            f" {ranks[others[0]].name} of the same process group: all ranks have to call the same collectives in the"
            " same order"
        )
    missing = {rank for rank, one in ranks.items() if one.number < furthest.number}
    if group.partition(":")[2] == _ALL_RANKS:
        missing |= answered - ranks.keys()
    if missing:
        late = tuple(sorted(missing))
        return f"{_ranks(late)} {_have(late)} not entered {furthest.name}, which {_ranks(there)} {_wait(there)} in"
    if silent:
        return f"{_ranks(there)} {_wait(there)} in {furthest.name}, and {_ranks(silent)} {_have(silent)} not said"
    return (
        f"all ranks that have said wait in {furthest.name}: their network may be cut"
        if len(there) > 1
        else None
    )


def _ranks(ranks: tuple[int, ...]) -> str:
    """The ranks for people, in ranges."""
    ordered = sorted(ranks)
    if len(ordered) < 3 or ordered[-1] - ordered[0] != len(ordered) - 1:
        return name_ranks(tuple(ordered))
    return f"ranks {ordered[0]}-{ordered[-1]}"


def _wait(ranks: tuple[int, ...]) -> str:
    return "waits" if len(ranks) == 1 else "wait"


def _have(ranks: tuple[int, ...]) -> str:
    return "has" if len(ranks) == 1 else "have"
