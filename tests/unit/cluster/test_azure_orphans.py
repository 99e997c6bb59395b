"""Which interfaces and disks are swept: those of ours that no machine has, after a while, and no other."""

from __future__ import annotations

import pytest

from cluster.azure.arm import SeenResource
from cluster.azure.body import CLUSTER_TAG
from cluster.azure.orphans import GRACE_S, orphans

NOW = 1_000.0


def part(name: str = "remora-c1-a-nic", cluster: str = "c1", is_attached: bool = False) -> SeenResource:
    return SeenResource(id=f"/ids/{name}", name=name, tags={CLUSTER_TAG: cluster}, is_attached=is_attached)


def test_what_is_alone_long_enough_goes() -> None:
    left, seen = orphans("c1", [part()], [], {}, NOW)
    assert left == []
    left, seen = orphans("c1", [part()], [], seen, NOW + GRACE_S - 1)
    assert left == []
    left, _ = orphans("c1", [part()], [], seen, NOW + GRACE_S)
    assert left == [part()]


@pytest.mark.parametrize(
    ("resource", "being_made"),
    [
        (part(cluster="other"), []),
        (SeenResource(id="/ids/x", name="x"), []),
        (part(is_attached=True), []),
        (part(), ["REMORA-C1-A"]),
    ],
    ids=["another cluster's", "without a tag", "attached", "of a machine that is being made"],
)
def test_what_is_not_an_orphan_stays_for_ever(resource: SeenResource, being_made: list[str]) -> None:
    left, seen = orphans("c1", [resource], being_made, {resource.id.lower(): 0.0}, NOW)
    assert (left, seen) == ([], {})


def test_one_that_found_a_machine_starts_again_when_it_loses_it() -> None:
    _, seen = orphans("c1", [part()], [], {}, NOW)
    _, seen = orphans("c1", [part(is_attached=True)], [], seen, NOW + 100)
    left, _ = orphans("c1", [part()], [], seen, NOW + GRACE_S)
    assert left == []
