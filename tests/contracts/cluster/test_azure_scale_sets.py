"""Traps of scale sets: nodes that InfiniBand joins, each trap with Azure's own clients before the emulator."""

from __future__ import annotations

from base64 import b64decode
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from cluster.azure.scale_sets.nodes import EMPTY_S
from cluster.provider import (
    InsufficientCapacity,
    InvalidRequest,
    NodeRequest,
    ProviderError,
    QuotaExceeded,
    Throttled,
    Unanswered,
)
from tests.contracts.cluster.azure_rig import CPU_SIZE, IB_SIZE, AzureRig, settings

SPOT, ON_DEMAND = f"{IB_SIZE}/1/spot", f"{IB_SIZE}/1/on-demand"
SOLD_OUT = {"size": IB_SIZE, "zone": "1", "capacity": "spot"}


@pytest.fixture
def rig() -> Iterator[AzureRig]:
    with AzureRig(manual_clock=True) as rig:
        yield rig


def node_request(node_id: str = "node_a", offering: str = SPOT, fabric: str = "gpu-job_1") -> NodeRequest:
    return NodeRequest(node_id=node_id, pool="gpu", resources={"GPU": 8.0}, offering=offering, fabric=fabric)


def running(rig: AzureRig) -> dict[str, bool]:
    return {node.node_id: node.is_running for node in rig.list()}


def machines(rig: AzureRig) -> dict[str, str | None]:
    """The node of every machine that exists, by the machine's name."""
    return {name: one["node"] for name, one in rig.state()["machines"].items()}


def only_set(rig: AzureRig) -> dict[str, Any]:
    (one,) = rig.state()["sets"].values()
    found: dict[str, Any] = one
    return found


def refusal(rig: AzureRig, request: NodeRequest | None = None) -> ProviderError:
    with pytest.raises(ProviderError) as raised:
        rig.create(request or node_request())
    return raised.value


# One domain is one set.


def test_an_ephemeral_disk_that_instances_cannot_have_is_refused(rig: AzureRig) -> None:
    rig.offerings = [replace(one, labels={"azure-disk-placement": "CacheDisk"}) for one in rig.offerings]
    assert type(refusal(rig)) is InvalidRequest
    assert rig.state()["sets"] == {}


def test_nodes_of_a_domain_are_instances_of_one_set_and_know_who_they_are(rig: AzureRig) -> None:
    for name in ("node_a", "node_b"):
        rig.create(node_request(name))
    rig.settle()
    assert running(rig) == {"node_a": True, "node_b": True}
    (name, seen), *more = rig.state()["sets"].items()
    assert (more, seen["capacity"]) == ([], 2)
    assert machines(rig) == {f"{name}_0": "node_a", f"{name}_1": "node_b"}
    assert {one["capacity"] for one in rig.state()["machines"].values()} == {"spot"}
    tags = rig.server.cloud.machines[f"{name}_0"].body["tags"]
    assert (tags["remora:fabric"], tags["remora:pool"], tags["remora:offering"]) == ("gpu-job_1", "gpu", SPOT)


def test_many_nodes_at_once_are_few_requests_and_one_machine_each(rig: AzureRig) -> None:
    names = [f"node_{number:02}" for number in range(32)]
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda name: rig.create(node_request(name)), names))
    raised = [one for one in rig.server.cloud.operations.values() if one.kind == "scale"]
    assert len(raised) <= 4
    assert sorted(running(rig)) == names, "those that wait for their machine are listed as well"
    rig.settle()
    assert sorted(str(node) for node in machines(rig).values()) == names


def test_two_domains_are_two_sets(rig: AzureRig) -> None:
    rig.create(node_request("node_a"))
    rig.create(node_request("node_b", fabric="gpu-job_2"))
    rig.settle()
    assert [one["capacity"] for one in rig.state()["sets"].values()] == [1, 1]
    assert len({one["set"] for one in rig.state()["machines"].values()}) == 2


def test_spot_and_on_demand_are_never_in_one_set_nor_in_one_domain_at_a_time(rig: AzureRig) -> None:
    rig.create(node_request("node_a"))
    error = refusal(rig, node_request("node_b", ON_DEMAND))
    assert type(error) is Unanswered, "it is asked for again later"
    assert "gpu-job_1" in str(error)
    rig.delete("node_a")
    rig.settle()
    rig.create(node_request("node_b", ON_DEMAND))
    rig.settle()
    assert [one["capacity"] for one in rig.state()["machines"].values()] == ["on-demand"]


def test_machines_that_infiniband_does_not_join_are_refused_for_a_domain(rig: AzureRig) -> None:
    assert type(refusal(rig, node_request(offering=f"{CPU_SIZE}/1/spot"))) is InvalidRequest
    assert rig.state()["sets"] == {}


def test_a_domain_ends_where_its_placement_group_does(rig: AzureRig) -> None:
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda number: rig.create(node_request(f"node_{number}")), range(100)))
    assert "100 is the most" in str(refusal(rig, node_request("node_more")))
    assert len(rig.list()) == 100


def test_of_nodes_that_come_together_only_those_that_are_too_many_are_refused(rig: AzureRig) -> None:
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda number: rig.create(node_request(f"node_{number}")), range(98)))
        asked = [threads.submit(rig.create, node_request(f"node_more_{number}")) for number in range(4)]
    refused = [one.exception() for one in asked if one.exception() is not None]
    assert [type(one) for one in refused] == [InvalidRequest, InvalidRequest]
    assert len(rig.list()) == 100


def test_sets_of_other_clusters_are_left_alone(rig: AzureRig) -> None:
    other = rig.another(cluster="other")
    other.create(node_request())
    rig.clock.passed_s = EMPTY_S + 1
    rig.settle()
    assert rig.list() == []
    rig.delete("node_a")
    assert [node.node_id for node in other.list()] == ["node_a"]


def test_a_set_whose_tags_were_replaced_is_still_ours_after_a_restart(rig: AzureRig) -> None:
    rig.create(node_request())
    rig.settle()
    ((name, _),) = rig.state()["sets"].items()
    rig.replace_tags(name, owner="finance")
    after = rig.another()
    assert [one.node_id for one in after.list()] == ["node_a"]
    after.delete("node_a")
    assert after.list() == []
    assert machines(rig) == {}


def test_nodes_that_come_after_the_head_has_moved_are_made_to_join_the_new_one(rig: AzureRig) -> None:
    rig.create(node_request("node_a"))
    rig.settle()
    rig.head = "10.0.0.9:6379"
    rig.azure = rig.another(image=settings(rig.server.url).image.replace("1.0.0", "1.0.1"))
    rig.create(node_request("node_b"))
    rig.settle()
    rig.create(node_request("node_c"))
    rig.settle()
    assert len(rig.state()["sets"]) == 1
    made = rig.server.cloud.machines
    heads = {one: made[rig.machine_of(one).lower()].custom_data for one in ("node_a", "node_b", "node_c")}
    assert ["10.0.0.9:6379" in b64decode(text).decode() for text in heads.values()] == [False, True, True]
    image = made[rig.machine_of("node_b").lower()].body["properties"]["storageProfile"]["imageReference"]
    assert image["id"].endswith("1.0.1")
    assert running(rig) == {"node_a": True, "node_b": True, "node_c": True}


# Refused.


def test_a_set_for_which_there_is_no_capacity_refuses_its_nodes_and_is_set_back(rig: AzureRig) -> None:
    rig.knobs(most_machines=[{**SOLD_OUT, "machines": 0}])
    for name in ("node_a", "node_b"):
        rig.create(node_request(name))
    rig.list()
    nodes = rig.list()
    assert [node.is_running for node in nodes] == [False, False]
    for node in nodes:
        assert isinstance(node.refusal, InsufficientCapacity)
        assert SPOT in node.refusal.closes
    assert only_set(rig)["capacity"] == 0
    for node in nodes:
        rig.delete(node.node_id)
    assert rig.list() == []
    assert rig.left() == 0


def test_part_of_the_capacity_becomes_nodes_and_the_rest_is_refused(rig: AzureRig) -> None:
    rig.knobs(most_machines=[{**SOLD_OUT, "machines": 2}])
    for name in ("node_a", "node_b", "node_c"):
        rig.create(node_request(name))
    rig.settle()
    assert running(rig) == {"node_a": True, "node_b": True, "node_c": False}
    assert only_set(rig)["capacity"] == 2
    assert sorted(map(str, machines(rig).values())) == ["node_a", "node_b"]


def test_a_controller_that_started_again_still_learns_why_a_set_failed(rig: AzureRig) -> None:
    rig.fault("create-later", code="AllocationFailed", message="no capacity")
    rig.create(node_request())
    (node,) = rig.another().list()
    assert isinstance(node.refusal, InsufficientCapacity)


def test_a_reason_that_cannot_be_read_is_waited_for(rig: AzureRig) -> None:
    rig.fault("create-later", code="AllocationFailed", message="no capacity")
    rig.create(node_request())
    rig.fault("poll", status=500, times=0)
    rig.fault("view", status=500)
    assert running(rig) == {"node_a": True}
    assert running(rig) == {"node_a": False}


def test_a_set_whose_operation_is_not_known_any_more_still_refuses_its_nodes(rig: AzureRig) -> None:
    rig.fault("create-later", code="", message="")
    rig.create(node_request())
    for at in ("poll", "view"):
        rig.fault(at, status=404, code="NotFound", times=0)
    (node,) = rig.list()
    assert not node.is_running
    assert "does not say why" in str(node.refusal)
    assert only_set(rig)["capacity"] == 0


def test_a_set_that_does_not_say_why_it_failed_still_refuses_its_nodes(rig: AzureRig) -> None:
    rig.fault("create-later", code="", message="")
    rig.create(node_request())
    rig.azure = rig.another()
    rig.list()
    (node,) = rig.list()
    assert (node.is_running, node.refusal is not None) == (False, True)


def test_a_refused_set_takes_nodes_again_when_there_is_capacity(rig: AzureRig) -> None:
    rig.fault("create-later", code="AllocationFailed", message="no capacity")
    rig.create(node_request("node_a"))
    rig.create(node_request("node_b"))
    rig.settle()
    assert running(rig) == {"node_a": False, "node_b": True}
    assert only_set(rig)["capacity"] == 1


def test_a_full_quota_is_not_even_asked_for_and_azures_own_refusal_is_heard(rig: AzureRig) -> None:
    rig.knobs(limits={"lowPriorityCores": 96})
    rig.create(node_request("node_a"))
    assert type(refusal(rig, node_request("node_b"))) is QuotaExceeded
    rig.fault(
        "update-set", status=409, code="OperationNotAllowed", message="exceeding LowPriorityCores quota"
    )
    rig.knobs(limits={"lowPriorityCores": 960})
    rig.clock.passed_s = 601.0
    assert type(refusal(rig, node_request("node_b"))) is QuotaExceeded
    assert running(rig) == {"node_a": True}
    assert only_set(rig)["capacity"] == 1


def test_asking_again_and_again_uses_up_no_quota(rig: AzureRig) -> None:
    rig.knobs(limits={"lowPriorityCores": 3 * 96})
    rig.create(node_request("node_a"))
    rig.fault("update-set", status=409, code="Conflict", message="in progress", times=6)
    for _ in range(6):
        assert type(refusal(rig, node_request("node_b"))) is Unanswered
    rig.create(node_request("node_b"))
    with ThreadPoolExecutor(3) as threads:
        asked = [threads.submit(rig.create, node_request(f"node_{name}")) for name in "cde"]
    assert [type(one.exception()) for one in asked if one.exception()] == [QuotaExceeded, QuotaExceeded]
    assert sorted(running(rig))[:2] == ["node_a", "node_b"]
    assert len(running(rig)) == 3, "those that come together are counted before Azure has answered"


def test_an_instance_that_goes_does_not_wait_for_its_system_to_shut_down(rig: AzureRig) -> None:
    rig.create(node_request())
    rig.settle()
    rig.knobs(shut_down_s=1e6)
    rig.delete("node_a")
    rig.list()
    assert machines(rig) == {}


def test_a_throttled_change_of_a_set_does_not_delay_looks_or_ends(rig: AzureRig) -> None:
    rig.create(node_request("node_a"))
    rig.settle()
    rig.fault("update-set", status=429, code="TooManyRequests", retry_after=3600)
    assert type(refusal(rig, node_request("node_b"))) is Throttled
    assert running(rig) == {"node_a": True}
    rig.delete("node_a")
    assert running(rig) == {}


def test_throttling_is_waited_out_without_asking_again(rig: AzureRig) -> None:
    rig.fault(
        "update-set", status=429, code="OperationNotAllowed", message="too many requests", retry_after=7
    )
    assert type(refusal(rig)) is Throttled
    assert type(refusal(rig)) is Throttled, "the pause is kept without a request"
    assert rig.fired() == [1]
    rig.clock.passed_s = 8.0
    rig.create(node_request())
    assert running(rig) == {"node_a": True}


# Crashes, lost answers, and two who change the same set.


def test_a_crash_after_the_raise_and_before_the_claim_loses_no_node_and_makes_none_twice(
    rig: AzureRig,
) -> None:
    rig.create(node_request("node_a"))
    rig.create(node_request("node_b"))
    rig.azure = rig.another()
    assert running(rig) == {"node_a": True, "node_b": True}
    rig.create(node_request("node_a"))
    rig.settle()
    assert sorted(map(str, machines(rig).values())) == ["node_a", "node_b"]


def test_a_crash_after_the_claim_and_before_the_name_is_struck_out_counts_the_node_once(
    rig: AzureRig,
) -> None:
    rig.create(node_request())
    rig.list()
    assert "node_a@" in str(only_set(rig)["tags"])
    assert list(machines(rig).values()) == ["node_a"]
    rig.azure = rig.another()
    assert [node.node_id for node in rig.list()] == ["node_a"]
    rig.settle()
    assert "node_a@" not in str(only_set(rig)["tags"])
    assert (only_set(rig)["capacity"], len(machines(rig))) == (1, 1)


def test_a_crash_while_a_machine_is_deleted_leaves_nothing(rig: AzureRig) -> None:
    rig.create(node_request("node_a"))
    rig.create(node_request("node_b"))
    rig.settle()
    rig.knobs(delete_s=1e6)
    rig.delete("node_a")
    rig.azure = rig.another()
    rig.list()
    rig.azure.delete("node_a")
    rig.knobs(skew_s=1e6 + 1)
    rig.settle()
    assert list(machines(rig).values()) == ["node_b"]


@pytest.mark.parametrize("at", ["update-set", "create"])
@pytest.mark.parametrize("effect", ["done-but-refuse", "lose-answer", "refuse"])
def test_a_request_whose_answer_is_lost_makes_one_machine(rig: AzureRig, at: str, effect: str) -> None:
    for name in ("node_a", "node_b"):
        rig.fault(at, effect=effect, status=500)
        assert type(refusal(rig, node_request(name))) is Unanswered
        assert (name in running(rig)) == (effect != "refuse")
        rig.create(node_request(name))
    rig.settle()
    assert sorted(map(str, machines(rig).values())) == ["node_a", "node_b"]


def test_a_document_that_another_client_changed_meanwhile_is_read_again(rig: AzureRig) -> None:
    rig.create(node_request("node_a"))
    rig.fault("update-set", status=412, code="ConditionNotMet")
    rig.create(node_request("node_b"))
    assert rig.fired() == [1]
    assert running(rig) == {"node_a": True, "node_b": True}
    rig.fault("update-set", status=412, code="ConditionNotMet", times=0)
    assert type(refusal(rig, node_request("node_c"))) is Unanswered


def test_an_operation_that_is_not_finished_is_waited_for(rig: AzureRig) -> None:
    rig.create(node_request("node_a"))
    rig.fault("update-set", status=409, code="Conflict", message="another operation is in progress")
    assert type(refusal(rig, node_request("node_b"))) is Unanswered
    rig.create(node_request("node_b"))
    rig.settle()
    assert sorted(map(str, machines(rig).values())) == ["node_a", "node_b"]


def test_two_controllers_that_ask_for_the_same_node_get_one_machine(rig: AzureRig) -> None:
    other = rig.another()
    rig.create(node_request("node_a"))
    other.create(node_request("node_a"))
    other.create(node_request("node_b"))
    rig.create(node_request("node_c"))
    for _ in range(2):
        rig.list()
        other.list()
    assert sorted(map(str, machines(rig).values())) == ["node_a", "node_b", "node_c"]
    assert sorted(running(rig)) == ["node_a", "node_b", "node_c"]


def test_a_claim_that_is_refused_is_made_at_the_next_look(rig: AzureRig) -> None:
    rig.create(node_request())
    rig.fault("claim", status=409, code="Conflict")
    assert running(rig) == {"node_a": True}
    assert list(machines(rig).values()) == [None]
    rig.list()
    assert list(machines(rig).values()) == ["node_a"]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_claim_whose_answer_is_lost_is_made_again_for_the_same_machine(
    rig: AzureRig, is_restarted: bool
) -> None:
    rig.create(node_request("node_a"))
    (first,) = machines(rig)
    rig.server.cloud.machines[first].state = "Updating"
    rig.create(node_request("node_b"))
    (second,) = machines(rig).keys() - {first}
    rig.fault("claim", status=500)
    rig.list()
    # Whether Azure did it is not known, and the other machine is ready by now.
    rig.server.cloud.machines[first].state = "Succeeded"
    if is_restarted:
        rig.azure = rig.another()
    rig.settle()
    assert machines(rig) == {first: "node_b", second: "node_a"}


def test_no_machine_gets_its_node_before_that_is_written_down(rig: AzureRig) -> None:
    rig.create(node_request())
    rig.fault("update-set", status=409, code="Conflict")
    assert running(rig) == {"node_a": True}
    assert list(machines(rig).values()) == [None]
    rig.settle()
    assert list(machines(rig).values()) == ["node_a"]


# Going.


def test_deleting_a_node_ends_its_own_machine_and_no_other(rig: AzureRig) -> None:
    for name in ("node_a", "node_b", "node_c"):
        rig.create(node_request(name))
    rig.settle()
    rig.delete("node_b")
    assert sorted(running(rig)) == ["node_a", "node_c"]
    rig.delete("node_b")
    rig.settle()
    assert sorted(map(str, machines(rig).values())) == ["node_a", "node_c"]
    assert only_set(rig)["capacity"] == 2


def test_many_nodes_that_go_at_once_are_few_requests(rig: AzureRig) -> None:
    names = [f"node_{number:02}" for number in range(16)]
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda name: rig.create(node_request(name)), names))
        # Some have their machine by the document only, some by their tag, and one domain is another one.
        rig.create(node_request("node_other", fabric="gpu-job_2"))
        rig.settle()
        list(threads.map(lambda name: rig.create(node_request(name)), ["node_x", "node_y"]))
        before = len(rig.server.cloud.operations)
        list(threads.map(rig.delete, [*names[1:], "node_x", "node_other"]))
    kinds = Counter(one.kind for one in list(rig.server.cloud.operations.values())[before:])
    assert kinds["delete-instances"] <= 6
    assert kinds["scale"] <= 3
    rig.settle()
    assert running(rig) == {"node_00": True, "node_y": True}
    assert sorted(map(str, machines(rig).values())) == ["node_00", "node_y"]


def test_a_deletion_that_is_refused_is_none_of_another_domains(rig: AzureRig) -> None:
    rig.create(node_request("node_a"))
    rig.create(node_request("node_b", fabric="gpu-job_2"))
    rig.settle()
    rig.fault("delete", status=500)
    with ThreadPoolExecutor(2) as threads:
        asked = [threads.submit(rig.delete, name) for name in ("node_a", "node_b")]
    assert sorted(type(one.exception()) for one in asked if one.exception()) == [Unanswered]
    assert len(running(rig)) == 1


def test_a_node_that_was_refused_stays_so_until_its_deletion_has_succeeded(rig: AzureRig) -> None:
    rig.knobs(most_machines=[{**SOLD_OUT, "machines": 0}])
    rig.create(node_request())
    rig.fault("update-set", status=409, code="Conflict", times=2)
    assert running(rig) == {"node_a": False}
    with pytest.raises(Unanswered):
        rig.delete("node_a")
    rig.knobs(most_machines=[])
    assert running(rig) == {"node_a": False}, "it is not bought after all"
    rig.delete("node_a")
    rig.settle()
    assert (rig.list(), machines(rig)) == ([], {})


def test_a_node_that_waits_is_deleted_with_its_part_of_the_capacity(rig: AzureRig) -> None:
    rig.knobs(create_s=1e6)
    rig.create(node_request("node_a"))
    rig.create(node_request("node_b"))
    rig.delete("node_a")
    assert running(rig) == {"node_b": True}
    rig.knobs(skew_s=1e6 + 1)
    rig.settle()
    assert list(machines(rig).values()) == ["node_b"]
    assert only_set(rig)["capacity"] == 1


def test_a_machine_that_no_node_row_waits_for_is_deleted(rig: AzureRig) -> None:
    rig.create(node_request("node_a"))
    rig.create(node_request("node_b"))
    # Both machines are there by now, and neither has been given to a node.
    rig.delete("node_a")
    rig.settle()
    assert list(machines(rig).values()) == ["node_b"]
    assert only_set(rig)["capacity"] == 1


def test_an_evicted_machine_is_gone_and_its_node_gets_no_other(rig: AzureRig) -> None:
    rig.create(node_request("node_a"))
    rig.create(node_request("node_b"))
    rig.list()
    assert "node_a@" in str(only_set(rig)["tags"]), "it has its machine, and the document still names it"
    rig.evict("node_a")
    rig.settle()
    assert running(rig) == {"node_b": True}
    assert list(machines(rig).values()) == ["node_b"]


def test_a_machine_that_is_evicted_before_it_was_anybodys_is_bought_again(rig: AzureRig) -> None:
    rig.fault("create-later", effect="evict")
    rig.create(node_request())
    rig.settle()
    assert list(machines(rig).values()) == ["node_a"]
    assert only_set(rig)["capacity"] == 1


def test_a_deletion_that_fails_later_is_shown_again(rig: AzureRig) -> None:
    rig.create(node_request())
    rig.settle()
    rig.fault("delete-later", code="InternalOperationError", message="try again")
    rig.delete("node_a")
    rig.list()
    assert running(rig) == {"node_a": False}
    assert only_set(rig)["capacity"] == 1, "it is there, and counts"
    rig.delete("node_a")
    rig.settle()
    assert rig.left() == 0
    assert only_set(rig)["capacity"] == 0


def test_a_set_without_nodes_goes_after_a_while_and_not_before(rig: AzureRig) -> None:
    rig.create(node_request())
    rig.settle()
    rig.delete("node_a")
    rig.settle()
    assert only_set(rig)["capacity"] == 0
    rig.clock.passed_s = EMPTY_S - 1
    rig.list()
    assert len(rig.state()["sets"]) == 1
    rig.create(node_request("node_b"))
    rig.settle()
    rig.delete("node_b")
    rig.settle()
    rig.clock.passed_s = 3 * EMPTY_S
    rig.list()
    assert rig.state()["sets"] == {}
    assert rig.list() == []


def test_a_simulated_eviction_takes_an_instance_after_its_notice(rig: AzureRig) -> None:
    rig.create(node_request("node_a"))
    with pytest.raises(InvalidRequest, match="node_a"):
        rig.azure.simulate_eviction("node_a")
    rig.settle()
    rig.azure.simulate_eviction("node_a")
    assert running(rig) == {"node_a": True}
    rig.knobs(skew_s=31.0)
    assert rig.list() == []
    assert rig.left() == 0


def delete_empty_set(rig: AzureRig, controller: Any) -> None:
    """Let a controller find the only set empty for so long that it deletes it."""
    for _ in range(3):
        rig.clock.passed_s += EMPTY_S
        controller.list()
    assert rig.state()["sets"] == {}


def test_what_is_known_of_a_set_ends_with_it(rig: AzureRig) -> None:
    rig.create(node_request("node_a"))
    rig.settle()
    (name,) = machines(rig)
    other = rig.another()
    other.delete("node_a")
    delete_empty_set(rig, other)
    # Its first instance has the number of the one that was node_a's.
    rig.create(node_request("node_b"))
    rig.settle()
    assert machines(rig) == {name: "node_b"}
    assert running(rig) == {"node_b": True}


def test_a_set_that_another_controller_recreated_is_not_the_one_that_was_known(rig: AzureRig) -> None:
    """A paused controller remembers the node of the old set's first instance; the new set has one of that number."""
    rig.create(node_request("node_a"))
    rig.settle()
    (name,) = machines(rig)
    other = rig.another()
    other.delete("node_a")
    delete_empty_set(rig, other)
    other.create(node_request("node_b"))
    assert machines(rig) == {name: None}
    assert "node_a" not in running(rig)
    rig.settle()
    assert machines(rig) == {name: "node_b"}
    assert running(rig) == {"node_b": True}


def test_a_deletion_that_is_recorded_late_is_of_the_old_set(rig: AzureRig) -> None:
    """The response to a deletion arrives after another controller has recreated the set."""
    rig.create(node_request("node_a"))
    rig.settle()
    other, requests = rig.another(), rig.azure._sets._requests
    end, made = requests._arm.sets.delete_instances, []

    async def answered_late(name: str, numbers: Any) -> None:
        await end(name, numbers)
        with ThreadPoolExecutor(1) as elsewhere:
            elsewhere.submit(recreate).result()

    def recreate() -> None:
        delete_empty_set(rig, other)
        other.create(node_request("node_b"))
        made.append("node_b")

    requests._arm.sets.delete_instances = answered_late  # type: ignore[method-assign]
    rig.delete("node_a")
    assert made == ["node_b"]
    rig.list()
    assert rig.azure._sets._memory.going == {}
    rig.settle()
    assert running(rig) == {"node_b": True}


def test_memory_of_claims_ends_with_their_machines(rig: AzureRig) -> None:
    for number in range(3):
        rig.create(node_request(f"node_{number}"))
        rig.settle()
        rig.delete(f"node_{number}")
        rig.settle()
    rig.create(node_request("node_last"))
    rig.settle()
    memory = rig.azure._sets._memory
    assert [node.node_id for node in memory.claims.values()] == ["node_last"]


# Lists.


@pytest.mark.parametrize(("at", "page"), [("list-sets", 1), ("list-sets", 2), ("list-instances", 2)])
def test_a_look_that_lacks_any_part_is_no_look(rig: AzureRig, at: str, page: int) -> None:
    rig.knobs(page_size=1)
    rig.create(node_request("node_a"))
    rig.create(node_request("node_b"))
    rig.create(node_request("node_c", fabric="gpu-job_2"))
    rig.settle()
    rig.fault(at, page=page, status=500)
    with pytest.raises(Unanswered):
        rig.list()
    assert rig.fired() == [1]
    assert sorted(running(rig)) == ["node_a", "node_b", "node_c"]
    assert len(machines(rig)) == 3


def test_a_set_that_is_listed_is_not_asked_about_by_itself(rig: AzureRig) -> None:
    rig.create(node_request())
    rig.settle()
    rig.fault("get", status=500)
    assert running(rig) == {"node_a": True}
    assert rig.fired() == [0]
    rig.server.cloud.unlisted.add(rig.machine_of("node_a"))
    with pytest.raises(Unanswered):
        rig.list()


def test_an_instance_that_the_list_forgot_is_asked_about_before_it_is_given_up(rig: AzureRig) -> None:
    rig.create(node_request())
    rig.settle()
    rig.server.cloud.unlisted.add(rig.machine_of("node_a"))
    assert running(rig) == {"node_a": True}
    assert only_set(rig)["capacity"] == 1
    rig.evict("node_a")
    assert rig.list() == []
