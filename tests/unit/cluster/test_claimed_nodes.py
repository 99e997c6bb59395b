"""Nodes of a Ray cluster that Remora did not start: claimed once, released, and never more of them than there are."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import pytest

from cluster.existing.owner import owner_of
from cluster.existing.provider import NODE, ClaimDrains, ExistingProvider
from cluster.existing.sentences import (
    NodeFacts,
    SortedOut,
    address_problem,
    head_notes,
    made_by_remora,
    node_notes,
    node_problems,
    sorted_out,
    version_problems,
)
from cluster.provider import InsufficientCapacity, NodeRequest, ProviderError
from cluster.ray.node_claims import Claim, parsed, unclaimed, written
from remora.ray_labels import CLAIM, NODE_LABEL, claims_in, drains_in
from tests.existing_nodes import FewNodes, node


def request(node_id: str) -> NodeRequest:
    return NodeRequest(node_id=node_id, pool="existing", resources={}, offering="node/any/on-demand")


def test_a_node_is_claimed_once_and_by_one_row_alone() -> None:
    cluster = FewNodes([node(1), node(2)])
    provider = ExistingProvider(cluster, lambda: 100.0)
    for name in ("node_a", "node_a", "node_b"):
        provider.create(request(name))
    assert {one.node_id: one.address for one in provider.list()} == {
        "node_a": "10.0.0.1",
        "node_b": "10.0.0.2",
    }
    with pytest.raises(InsufficientCapacity, match="in use already") as refused:
        provider.create(request("node_c"))
    assert refused.value.until == 110.0
    provider.delete("node_a")
    provider.delete("node_a")
    provider.create(request("node_c"))
    assert {one.node_id for one in provider.list()} == {"node_b", "node_c"}


def test_another_controller_that_is_faster_has_the_node() -> None:
    cluster = FewNodes([node(1), node(2)])
    slow = FewNodes(cluster.seen, cluster.entries)
    # What the slow one sees is older than the claim of the other.
    slow.claims = list  # type: ignore[method-assign]
    ExistingProvider(cluster, lambda: 100.0).create(request("node_a"))
    ExistingProvider(slow, lambda: 100.0).create(request("node_b"))
    assert {one.node_id: one.ray_node_id for one in cluster.claims()} == {
        "node_a": node(1).id,
        "node_b": node(2).id,
    }


def test_only_nodes_that_stay_and_have_something_are_used() -> None:
    head, member = node(1, memory=1e9), node(2, **{"node:10.0.0.2": 1.0})
    going = replace(node(3), is_draining=True)
    dead = replace(node(4), is_alive=False)
    remoras = replace(node(5), labels={NODE_LABEL: "node_of_another_service"})
    assert unclaimed([head, member, going, dead, remoras, node(6, GPU=1.0)], []) == [node(6, GPU=1.0)]


def test_a_dead_node_is_listed_as_one_that_does_not_run_and_one_that_ray_forgot_too() -> None:
    cluster = FewNodes([node(1), node(2)])
    provider = ExistingProvider(cluster, lambda: 100.0)
    provider.create(request("node_a"))
    provider.create(request("node_b"))
    cluster.seen = [replace(node(1), is_alive=False)]
    assert [(one.node_id, one.is_running) for one in provider.list()] == [
        ("node_a", False),
        ("node_b", False),
    ]


def test_what_is_offered_is_what_is_there() -> None:
    cluster = FewNodes([node(1, CPU=4.0), node(2, CPU=8.0, GPU=2.0), node(3, CPU=2.0)])
    provider = ExistingProvider(cluster, lambda: 100.0)
    provider.create(request("node_a"))
    provider.list()
    (offering,) = provider.offerings()
    assert (offering.size, offering.resources) == (NODE, {"CPU": 8.0, "GPU": 2.0})
    assert offering.price_per_hour == 0.0
    assert dict(provider.quota_limits()) == {offering.quota: 3}
    assert dict(provider.quota_left()) == {offering.quota: 2}


def test_a_head_without_an_answer_is_no_empty_cluster() -> None:
    cluster = FewNodes([node(1)])
    provider = ExistingProvider(cluster, lambda: 100.0)
    provider.create(request("node_a"))
    cluster.answers = False
    for ask in (provider.list, lambda: provider.create(request("node_b")), lambda: provider.delete("node_a")):
        with pytest.raises(ProviderError, match="the head does not answer"):
            ask()


def test_a_claim_says_until_when_its_node_drains_and_the_first_deadline_stays() -> None:
    cluster = FewNodes([node(1), node(2)])
    provider, drains = ExistingProvider(cluster, lambda: 100.0), ClaimDrains(cluster)
    for name in ("node_a", "node_b"):
        provider.create(request(name))
    for deadline_at in (300.0, 200.5, 400.0):
        drains.drain("node_a", "the pool shrinks", deadline_at)
    drains.drain("node_of_none", "the pool shrinks", 200.0)
    assert {one.node_id: one.drains_until for one in cluster.claims()} == {"node_a": 200.5, "node_b": None}
    (claim, _) = cluster.claims()
    entries = {CLAIM + claim.ray_node_id.encode(): written(claim), CLAIM + b"cd": b"node_b p 1.0"}
    assert drains_in(entries) == {claim.ray_node_id: 200.5}
    assert parsed(claim.ray_node_id, written(claim)) == claim


def test_a_sick_node_is_not_claimed_again_until_ray_calls_it_dead() -> None:
    cluster = FewNodes([node(1), node(2)])
    provider = ExistingProvider(cluster, lambda: 100.0)
    provider.create(request("node_a"))
    provider.withhold("node_a")
    assert cluster.withheld == {node(1).id}
    provider.list()
    assert sum(provider.quota_limits().values()) == 2, (
        "it counts as long as it is claimed, so that no other one goes"
    )
    provider.delete("node_a")
    provider.create(request("node_b"))
    assert {one.node_id: one.address for one in provider.list()} == {"node_b": "10.0.0.2"}
    assert (sum(provider.quota_limits().values()), sum(provider.quota_left().values())) == (1, 0)
    with pytest.raises(InsufficientCapacity):
        provider.create(request("node_c"))
    cluster.seen[0] = replace(node(1), is_alive=False)
    provider.list()
    assert cluster.withheld == set()


def test_a_claim_reads_back_and_what_is_none_is_passed_over() -> None:
    claim = Claim("ab" * 28, "node_a", "existing", 1790000000.25)
    assert parsed(claim.ray_node_id, written(claim)) == claim
    assert [
        parsed("ab", text)
        for text in (b"", b"node_a", b"a b c d", b"a b 1 soon", b"a b 1 2 3", b"\xff\xff 1 2")
    ] == [None] * 6
    entries = {CLAIM + b"ab": written(claim), b"driver:att_1": b"driver-1", CLAIM + b"cd": b""}
    assert claims_in(entries) == {"ab": "node_a"}


def test_what_is_no_address_of_a_head_is_refused_with_one_sentence() -> None:
    for good in ("10.0.0.4:6379", "ray-head.default.svc:6379", "[fd00::4]:6379"):
        assert address_problem(good) is None
    for bad in ("10.0.0.4", "auto", "10.0.0.4:0", "10.0.0.4:99999", "a b:1", "x" * 10_000, "h:6379\n"):
        assert "HOST:PORT" in (address_problem(bad) or ""), bad
        assert len(address_problem(bad) or "") < 200
    assert "Ray Client" in (address_problem("ray://10.0.0.4:10001") or "")


def test_ray_has_to_be_the_same_and_python_in_its_first_two_numbers() -> None:
    ours = {"ray_version": "2.60.0", "python_version": "3.11.2"}
    assert version_problems(ours, {**ours, "python_version": "3.11.9"}) == []
    ray, python = version_problems(ours, {"ray_version": "2.53.0", "python_version": "3.12.2"})
    assert ray.startswith("the cluster runs Ray 2.53.0 and Remora Ray 2.60.0")
    assert python.startswith("the cluster runs Python 3.12.2 and Remora Python 3.11.2")
    assert len(version_problems(ours, {})) == 2


def test_each_thing_that_nodes_lack_is_said_once_with_the_nodes_that_lack_it() -> None:
    lacks = "ModuleNotFoundError: No module named 'torch'"
    nodes = [NodeFacts(address=f"10.0.0.{n}", python="3.11.2", lacks=lacks) for n in range(1, 6)]
    (said,) = node_problems(nodes, "/srv/remora", "3.11.4")
    assert said.startswith("each of the nodes 10.0.0.1, 10.0.0.2, 10.0.0.3 and 2 more cannot import")
    assert lacks in said
    alone = [
        NodeFacts(address="10.0.0.1", python="3.11.2", storage="what the service wrote there is missing")
    ]
    (said,) = node_problems(alone, "/srv/remora", "3.11.4")
    assert said.startswith("the node 10.0.0.1 does not see the storage /srv/remora")
    assert "REMORA_STORAGE_URL" in said
    assert "no node with CPUs or GPUs" in node_problems([], "/srv/remora", "3.11.4")[0]
    (said,) = node_problems([NodeFacts(address="10.0.0.1", python="3.12.1")], "/s", "3.11.4")
    assert "runs Python 3.12.1" in said
    (said,) = node_problems([NodeFacts(address="10.0.0.1", silence="there was no answer")], "/s", "3.11.4")
    assert "did not carry out" in said


def test_where_commands_are_not_kept_apart_is_said() -> None:
    nodes = [
        NodeFacts(address="10.0.0.1", isolation="it has not the rights of root"),
        NodeFacts(address="10.0.0.2"),
    ]
    (isolation,) = node_notes(nodes)
    assert "on the node 10.0.0.1 run as the user of Ray's processes" in isolation
    assert node_notes(nodes[1:]) == []


GOOD = NodeFacts(address="10.0.0.1", python="3.11.2")
BAD = NodeFacts(address="10.0.0.2", python="3.11.2", silence="there was no answer")


def test_one_bad_node_is_a_note_and_is_not_used_and_only_without_a_good_one_nothing_begins() -> None:
    found = sorted_out({"aa": GOOD, "bb": BAD, "cc": BAD}, "/srv/remora", "3.11.4")
    assert (found.problems, found.unfit) == ([], ["bb", "cc"])
    (said,) = found.notes
    assert "10.0.0.2 did not carry out" in said
    assert "not used until the next `remora up`" in said
    none = sorted_out({"bb": BAD}, "/srv/remora", "3.11.4")
    assert none.problems == node_problems([BAD], "/srv/remora", "3.11.4") != []
    assert "no node with CPUs or GPUs" in sorted_out({}, "/srv/remora", "3.11.4").problems[0]
    assert sorted_out({"aa": GOOD}, "/srv/remora", "3.11.4") == SortedOut([], [], [])


def test_a_head_with_cpus_and_nodes_of_a_remora_are_named() -> None:
    assert "--num-cpus=0" in head_notes(["10.0.0.1"])[0]
    assert head_notes([]) == []
    assert made_by_remora(["10.0.0.3"]).startswith("the node 10.0.0.3 was made by a Remora")


def test_a_home_has_an_id_that_is_its_own_and_stays_when_the_home_moves(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    first, second = owner_of(tmp_path / "a"), owner_of(tmp_path / "b")
    assert first.partition(" ")[0] != second.partition(" ")[0]
    assert first == owner_of(tmp_path / "a")
    assert str(tmp_path / "a") in first
    (tmp_path / "a").rename(tmp_path / "c")
    assert owner_of(tmp_path / "c").partition(" ")[0] == first.partition(" ")[0]
    assert stat.S_IMODE((tmp_path / "c/service.id").stat().st_mode) == 0o600
    (tmp_path / "c/service.id").write_bytes(b"\xff half")
    assert len(owner_of(tmp_path / "c").partition(" ")[0]) == 32
