"""Policy documents that were made to cost much: checks are linear or bounded, and at most 50 problems are named."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cluster.policies.catalogue_conflicts import ClusterFacts
from cluster.policies.conflicts import MAX_WINDOWS
from cluster.policies.documents import MAX_DOCUMENT, read_document
from cluster.policies.offerings import CapacityType, Offering
from cluster.policies.policy_problems import PoliciesRefused
from remora.errors import MAX_PROBLEMS, MORE_PROBLEMS
from tests.steps import grows_linearly, steps_of, stopped_after

KNOWN = ClusterFacts(
    catalogue=tuple(
        Offering(size=f"Standard_NC{number}ads_A100_v4", zone="1", capacity=capacity, resources={"GPU": 1.0},
                 price_per_hour=1.0)
        for number in range(20) for capacity in CapacityType
    ),
)  # fmt: skip


def refusal(document: str) -> tuple[str, ...]:
    """What is said against it; nothing when it is accepted."""
    try:
        read_document(document, KNOWN)
    except PoliciesRefused as error:
        return tuple(map(str, error.problems))
    return ()


def judged(document: str) -> None:
    """Read it, whatever comes of that; a refusal is never long."""
    said = refusal(document)
    assert len(said) <= MAX_PROBLEMS
    assert sum(map(len, said)) < 60_000


def pools(count: int, *, schedules: int = 0, size: str = "Standard_NC1ads_A100_v4") -> str:
    """Pools with schedules, no two windows alike, each pair of schedules in conflict or not."""
    lines = ["pools:"]
    for pool in range(count):
        lines += [
            f"  p{pool}:",
            f"    sizes: [{size}]",
            "    schedules:" if schedules else "    max_nodes: 7",
        ]
        lines += [
            f"    - {{window: {{begins: '{one % 60} {pool % 24} * * *', lasts_s: 60}}, max_nodes: {one + 1}}}"
            for one in range(schedules)
        ]
    return "\n".join(lines)


DOCUMENTS: dict[str, Callable[[int], str]] = {
    "unknown keys": lambda n: "".join(f"k{i}: 1\n" for i in range(n)),
    "unknown keys of pools": lambda n: "pools:\n  a:\n" + "".join(f"    minnodes{i}: 1\n" for i in range(n)),
    "unknown sizes": lambda n: pools(n // 8, size="Standard_A100"),
    "projects": lambda n: "projects:\n" + "".join(f"  p{i}: {{share: 2}}\n" for i in range(n)),
    "projects above the budget": lambda n: (
        "budget: {usd_per_day: 1}\nprojects:\n" + "".join(f"  p{i}: {{usd_per_day: 2}}\n" for i in range(n))
    ),
    "rules": lambda n: "rules:\n" + "".join(f"- r{i}\n" for i in range(n)),
    "zones": lambda n: "pools: {a: {sizes: [x], zones: [" + ", ".join(map(str, range(n))) + "]}}",
    "words of cron": lambda n: (
        "pools: {a: {sizes: [x], maintenance: [{begins: '" + "* " * n + "', lasts_s: 60}]}}"
    ),
    "long keys": lambda n: "a" * n + ": {" + "b" * n + ": 1}",
    "one long key of many": lambda n: (
        "pools: {" + "a" * n + ": {" + "".join(f"k{i}: 1, " for i in range(n)) + "}}"
    ),
}


@pytest.mark.parametrize("made", DOCUMENTS.values(), ids=DOCUMENTS.keys())
def test_a_document_is_judged_in_steps_that_grow_with_it(made: Callable[[int], str]) -> None:
    assert grows_linearly(lambda n: steps_of(lambda: judged(made(n))), 240)


@pytest.mark.parametrize("made", DOCUMENTS.values(), ids=DOCUMENTS.keys())
def test_what_c_does_for_a_document_ends(made: Callable[[int], str]) -> None:
    document = made(20_000)[:MAX_DOCUMENT]
    with stopped_after(20.0):
        judged(document)


def test_more_windows_than_can_be_compared_are_refused() -> None:
    document = pools(MAX_WINDOWS // 64 + 1, schedules=64)
    steps = steps_of(lambda: judged(document))
    assert steps < 100 * len(document)
    (said,) = refusal(document)
    assert (
        said
        == f"pools (line 1): schedules and maintenance have 576 windows in all; write at most {MAX_WINDOWS}"
    )


def test_as_many_windows_as_may_be_are_compared() -> None:
    assert refusal(pools(MAX_WINDOWS // 64, schedules=60)) == ()


def test_more_problems_than_anybody_reads_are_not_all_named() -> None:
    said = refusal("".join(f"k{i}: 1\n" for i in range(1000)))
    assert len(said) == MAX_PROBLEMS
    assert said[0].startswith("k0 (line 1): unknown key")
    assert said[-1] == MORE_PROBLEMS
