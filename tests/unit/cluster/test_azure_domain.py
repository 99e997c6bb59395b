"""What becomes of a fabric domain, given what Azure shows of its scale set."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cluster.azure.fabric_domain import (
    MOST_NODES,
    Decision,
    SeenInstance,
    SeenSet,
    Waiting,
    decide,
    read_waiting,
    waiting_tags,
)
from cluster.scheduling.fitting import FABRIC_NODES


def waits(*names: str) -> list[Waiting]:
    return [Waiting(node_id=name, since=float(at)) for at, name in enumerate(names)]


def seen(*names: str, capacity: int | None = None, state: str = "Succeeded") -> SeenSet:
    tags = waiting_tags({"remora:cluster": "c"}, waits(*names))
    return SeenSet(name="s", tags=tags, state=state, capacity=len(names) if capacity is None else capacity)


def instance(number: int, node: str | None = None, state: str = "Succeeded") -> SeenInstance:
    return SeenInstance(id=str(number), tags={"remora:node": node} if node else {}, state=state)


def names(nodes: tuple[Waiting, ...]) -> list[str]:
    return [one.node_id for one in nodes]


def given(decision: Decision) -> dict[str, str]:
    return {one.id: node.node_id for one, node in decision.claims}


def test_the_one_that_has_waited_longest_gets_the_first_instance_that_runs() -> None:
    decision = decide(seen("a", "b"), [instance(10), instance(9), instance(2, state="Creating")])
    assert given(decision) == {"9": "a", "10": "b"}
    assert [one.instance for one in decision.named] == ["9", "10"], "written down before they are sent"
    assert [one.id for one in decision.surplus] == ["2"]


def test_a_node_that_has_an_instance_waits_no_longer() -> None:
    decision = decide(seen("a", "b", capacity=2), [instance(0, "a"), instance(1, state="Creating")])
    assert (names(decision.waiting), decision.capacity, decision.is_news) == (["b"], 2, True)


def test_a_node_stays_named_until_its_instance_shows_its_tag() -> None:
    # It is given again, as the first time may have failed, and is no reason for another machine.
    untagged = replace(instance(0, "a"), is_tagged=False)
    decision = decide(seen("a", "b", capacity=2), [untagged, instance(1, state="Creating")])
    assert (names(decision.waiting), names(decision.named)) == (["b"], ["a", "b"])
    assert (given(decision), decision.capacity) == ({"0": "a"}, 2)
    written = replace(seen(), tags=waiting_tags({}, decision.named), capacity=2)
    assert not decide(written, [untagged, instance(1, state="Creating")]).is_news
    assert names(decide(seen("a", capacity=1), [untagged], leaving={"a"}).named) == []
    assert given(decide(seen("a", capacity=1), [replace(untagged, state="Updating")])) == {}


def test_joining_raises_the_capacity_by_those_that_are_new() -> None:
    decision = decide(seen("a", capacity=2), [instance(0, "x")], joining=waits("a", "x", "y"))
    assert (names(decision.waiting), decision.capacity, decision.nodes) == (["a", "y"], 3, 3)


def test_leaving_never_lets_azure_choose_which_machine_ends() -> None:
    instances = [instance(0, "x"), instance(1), instance(2)]
    decision = decide(seen("a", "b", capacity=3), instances, leaving={"a"})
    assert names(decision.waiting) == ["b"]
    assert decision.capacity == 3, "the machine too many is deleted by its number, which lowers the capacity"
    assert [one.id for one in decision.surplus] == ["2"]


def test_what_did_not_come_is_refused_once_the_set_has_failed() -> None:
    there = [instance(0, "x"), instance(1)]
    assert decide(seen("a", "b", "c", capacity=4, state="Updating"), there).refused == ()
    decision = decide(seen("a", "b", "c", capacity=4, state="Failed"), there, joining=waits("d"))
    assert names(decision.refused) == ["b", "c"]
    assert (names(decision.waiting), decision.capacity) == (["a", "d"], 3)


def test_a_broken_instance_refuses_one_node_and_goes() -> None:
    decision = decide(seen("a", "b"), [instance(0, state="Failed"), instance(1)])
    assert (names(decision.refused), names(decision.waiting)) == (["b"], ["a"])
    assert [one.id for one in decision.surplus] == ["0"]
    assert decision.capacity == 2, "until it is gone it counts"


def test_a_node_that_lost_its_unclaimed_instance_gets_another() -> None:
    assert decide(seen("a", "b", capacity=1), [instance(1)]).capacity == 2


def test_nothing_is_bought_for_what_is_only_counted_less() -> None:
    # Azure has lowered the capacity for a deletion, and shows the instance as before.
    decision = decide(seen(capacity=1), [instance(0, "x"), instance(1, "y")])
    assert (decision.capacity, decision.is_news) == (1, False)


def test_a_capacity_that_no_node_needs_is_lowered() -> None:
    decision = decide(seen(capacity=5), [instance(0, "x")])
    assert (decision.capacity, decision.is_news) == (1, True)


def test_no_capacity_is_lowered_while_a_machine_is_leaving() -> None:
    # Azure may lower it by itself when the machine is gone: one machine more would have to go.
    there = [instance(0, "x"), instance(1, "y", state="Deleting")]
    assert (decide(seen(capacity=2), there).capacity, decide(seen(capacity=1), there).capacity) == (2, 1)
    assert decide(seen(capacity=1), there, joining=waits("z")).capacity == 2


@pytest.mark.parametrize("length", [6, 31, 64])
def test_as_many_nodes_can_wait_as_a_domain_has_within_azures_limits_of_tags(length: int) -> None:
    nodes = [
        Waiting(node_id=f"{at:03}".rjust(length, "n"), since=1763832000.123 + at, instance=str(100 + at))
        for at in range(MOST_NODES)
    ]
    tags = waiting_tags({}, nodes)
    assert list(read_waiting(tags)) == nodes
    assert len(tags) <= 43, "fifty at most, and seven are others"
    assert max(len(value) for value in tags.values()) <= 256
    emptied = waiting_tags(tags, [])
    assert read_waiting(emptied) == ()
    assert emptied.keys() == tags.keys(), "a request that only adds tags empties them, too"


def test_words_that_another_program_wrote_are_passed_over() -> None:
    assert names(read_waiting({"remora:waits-0": "a@1.0 nonsense b@x c@2.0"})) == ["a", "c"]


def test_the_planner_and_the_cloud_agree_on_how_large_a_domain_is() -> None:
    assert MOST_NODES == FABRIC_NODES
