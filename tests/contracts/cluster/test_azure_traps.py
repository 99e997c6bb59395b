"""What real clouds do to those who ask them: each trap of Azure by name, before the emulator and its books."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cluster.azure import catalogue
from cluster.azure.body import machine_body, machine_name
from cluster.azure.emulator.faults import EmulatorFault, FaultPoint
from cluster.azure.emulator.server import REGION
from cluster.azure.rehearsal import AzureRehearsal
from cluster.provider import (
    InsufficientCapacity,
    InvalidRequest,
    NodeRequest,
    ProvidedNode,
    ProviderError,
    QuotaExceeded,
    Throttled,
    Unanswered,
    Unauthorized,
)
from service.interfaces import Rehearsal
from tests.contracts.cluster.azure_rig import A100, CLUSTER, CPU_SIZE, AzureRig

SPOT = f"{A100}/1/spot"
ON_DEMAND = f"{A100}/1/on-demand"
#: A node id as the service makes them.
NODE = "node_01M7Y8NRHRW6ZK2C8GF7JR4CXR"


@pytest.fixture
def rig() -> Iterator[AzureRig]:
    with AzureRig() as rig:
        yield rig


def node_request(node_id: str = "node_a", offering: str = SPOT) -> NodeRequest:
    return NodeRequest(node_id=node_id, pool="gpu", resources={"GPU": 1.0}, offering=offering)


def only(nodes: list[ProvidedNode]) -> ProvidedNode:
    (node,) = nodes
    return node


def refusal(rig: AzureRig, request: NodeRequest | None = None) -> ProviderError:
    with pytest.raises(ProviderError) as raised:
        rig.create(request or node_request())
    return raised.value


# Refused at once.


def test_a_size_that_is_not_available_comes_as_resource_exists_and_closes_its_offering(rig: AzureRig) -> None:
    rig.fault("create", status=409, code="SkuNotAvailable", message="Following SKUs have failed for Capacity")
    error = refusal(rig)
    assert type(error) is InsufficientCapacity
    assert error.closes == (SPOT,)
    assert error.until == pytest.approx(rig.clock() + 3600, abs=60)
    assert rig.list() == []
    assert rig.left() == 0


def test_a_full_spot_quota_comes_as_resource_exists_and_closes_all_spot(rig: AzureRig) -> None:
    rig.fault(
        "create",
        status=409,
        code="OperationNotAllowed",
        message="exceeding approved LowPriorityCores quota. Current Limit: 24, Current Usage: 24",
    )
    error = refusal(rig)
    assert type(error) is QuotaExceeded
    assert f"{CPU_SIZE}/any/spot" in error.closes
    assert ON_DEMAND not in error.closes


def test_a_quota_that_is_full_is_not_even_asked_for(rig: AzureRig) -> None:
    rig.knobs(limits={"lowPriorityCores": 24})
    rig.create(node_request("node_a"))
    rig.fault("create", times=0)
    error = refusal(rig, node_request("node_b"))
    assert type(error) is QuotaExceeded
    assert "24 are used" in str(error)
    assert rig.fired() == [0], "no request was sent"


def test_a_quota_is_read_again_after_a_node_gave_its_part_back(rig: AzureRig) -> None:
    rig.knobs(limits={"lowPriorityCores": 24})
    rig.create(node_request("node_a"))
    refusal(rig, node_request("node_b"))
    rig.delete("node_a")
    rig.clock.passed_s = 31.0
    rig.create(node_request("node_b"))
    assert only(rig.list()).node_id == "node_b"


def test_a_machine_whose_answer_was_lost_counts_for_the_quota_once(rig: AzureRig) -> None:
    rig.knobs(limits={"lowPriorityCores": 48})
    rig.azure.quota_left()
    rig.fault("create", effect="lose-answer")
    assert type(refusal(rig, node_request("node_a"))) is Unanswered
    assert rig.azure.quota_known() == {"lowprioritycores": 24}
    rig.create(node_request("node_a"))
    rig.create(node_request("node_b"))
    assert rig.azure.quota_known() == {"lowprioritycores": 0}
    assert {node.node_id for node in rig.list()} == {"node_a", "node_b"}


def test_a_machine_that_was_not_made_after_all_gives_its_part_of_the_quota_back_once(rig: AzureRig) -> None:
    rig.knobs(limits={"lowPriorityCores": 24})
    rig.fault("create", status=500)
    assert type(refusal(rig, node_request("node_a"))) is Unanswered
    assert rig.azure.quota_known() == {"lowprioritycores": 0}
    assert rig.list() == []
    assert rig.azure.quota_known() == {"lowprioritycores": 24}
    # Once the quotas are read again there is no part of it to give back.
    rig.fault("create", status=500)
    assert type(refusal(rig, node_request("node_a"))) is Unanswered
    rig.clock.passed_s = 31.0
    rig.azure.quota_left()
    rig.list()
    assert rig.azure.quota_known() == {"lowprioritycores": 24}
    rig.create(node_request("node_a"))
    assert only(rig.list()).is_running


def test_the_planner_knows_within_half_a_minute_that_a_quota_has_capacity_again(rig: AzureRig) -> None:
    rig.knobs(limits={"lowPriorityCores": 24})
    rig.create(node_request("node_a"))
    assert rig.azure.quota_left() == {"lowprioritycores": 0}
    rig.evict("node_a")
    rig.clock.passed_s = 31.0
    assert rig.azure.quota_left() == {"lowprioritycores": 24}


def test_a_quota_that_cannot_be_read_stops_nothing(rig: AzureRig) -> None:
    rig.fault("usages", status=500, times=0)
    rig.create(node_request())
    assert only(rig.list()).is_running
    assert rig.azure.quota_left() == {}


def test_machines_that_were_not_made_give_their_part_back_while_the_quotas_cannot_be_read(
    rig: AzureRig,
) -> None:
    rig.knobs(limits={"lowPriorityCores": 48})
    rig.azure.quota_left()
    rig.fault("usages", status=500, times=0)
    rig.fault("create", status=500, times=2)
    assert [type(refusal(rig, node_request(node_id))) for node_id in ("node_a", "node_b")] == [Unanswered] * 2
    rig.clock.passed_s = 31.0
    assert rig.azure.quota_left() == {"lowprioritycores": 0}, (
        "what was read last, with what was asked for since"
    )
    assert rig.list() == []
    assert rig.azure.quota_known() == {"lowprioritycores": 48}
    rig.create(node_request("node_c"))
    assert only(rig.list()).node_id == "node_c"


def test_a_quota_that_was_full_when_it_could_be_read_last_stops_nothing(rig: AzureRig) -> None:
    rig.knobs(limits={"lowPriorityCores": 24})
    rig.create(node_request("node_a"))
    rig.delete("node_a")
    rig.fault("usages", status=500, times=0)
    rig.clock.passed_s = 31.0
    rig.create(node_request("node_b"))
    assert only(rig.list()).node_id == "node_b"


def test_quotas_that_cannot_be_read_are_asked_for_no_more_often_than_others(rig: AzureRig) -> None:
    rig.azure.quota_left()
    rig.fault("usages", status=500, times=0)
    rig.clock.passed_s = 31.0
    for node_id in ("node_a", "node_b"):
        rig.azure.quota_left()
        rig.create(node_request(node_id))
    assert rig.fired() == [1]
    rig.clock.passed_s = 62.0
    rig.azure.quota_left()
    assert rig.fired() == [2]


def test_azures_own_refusal_of_a_quota_is_heard_when_others_used_it_up(rig: AzureRig) -> None:
    rig.knobs(limits={"lowPriorityCores": 48})
    rig.create(node_request("node_a"))
    other = rig.another(cluster="other")
    other.create(node_request("node_x"))
    # Our last reading is from before the other cluster's machine.
    assert type(refusal(rig, node_request("node_b"))) is QuotaExceeded
    assert rig.azure.quota_known() == {}
    assert rig.azure.quota_left() == {"lowprioritycores": 0}, "it is read again at once"


@pytest.mark.parametrize("reported", [None, 7.0])
def test_throttling_is_waited_out_without_asking_again(rig: AzureRig, reported: float | None) -> None:
    rig.fault(
        "create", status=429, code="OperationNotAllowed", message="too many requests", retry_after=reported
    )
    error = refusal(rig)
    assert type(error) is Throttled
    assert error.retry_after_s == (reported or 60.0)
    assert type(refusal(rig)) is Throttled, "the pause is kept without a request"
    rig.clock.passed_s = error.retry_after_s + 1
    rig.create(node_request())
    assert only(rig.list()).is_running


@pytest.mark.parametrize("retry_after", [None, 90.0])
def test_a_cloud_that_cannot_answer_is_given_the_pause_that_it_asks_for(
    rig: AzureRig, retry_after: float | None
) -> None:
    rig.fault("create", status=503, code="ServerBusy", message="later", retry_after=retry_after, times=0)
    assert type(refusal(rig)) is Unanswered
    second = refusal(rig)
    assert type(second) is (Throttled if retry_after else Unanswered)
    assert rig.fired() == [1 if retry_after else 2], "the pause is kept without a request"
    rig.clock.passed_s = 91.0
    assert type(refusal(rig)) is Unanswered, "it is asked again afterwards"


@pytest.mark.parametrize(
    ("reported", "kept_s"), [(1e9, 3600.0), (math.inf, 60.0), (math.nan, 60.0), (-5.0, 60.0), (0.0, 0.0)]
)
def test_a_pause_that_is_no_time_or_never_ends_is_not_kept(
    rig: AzureRig, reported: float, kept_s: float
) -> None:
    rig.cloud.faults.all.append(
        EmulatorFault(at=FaultPoint.CREATE, status=429, code="TooManyRequests", retry_after=reported)
    )
    error = refusal(rig)
    assert isinstance(error, Throttled)
    assert error.retry_after_s == kept_s
    rig.clock.passed_s = kept_s + 1
    rig.create(node_request())


@pytest.mark.parametrize("place", ["usages", "skus", "scores", "evictions", "parts", "poll", "create"])
def test_a_pause_of_one_kind_of_request_leaves_the_machines_visible(rig: AzureRig, place: str) -> None:
    """For an hour that Azure asked for on one side, the rest of it goes on."""
    rig.create(node_request())
    rig.fault(place, status=429, code="TooManyRequests", retry_after=3600.0, times=0)
    ask: dict[str, Callable[[], object]] = {
        "usages": rig.azure.quota_left,
        "skus": rig.azure.skus,
        "scores": lambda: rig.azure.scores([A100]),
        "evictions": rig.azure.evictions,
        "parts": rig.azure.sweep,
        "poll": lambda: (rig.fault("create-later"), rig.create(node_request("node_b")), rig.list()),
        "create": lambda: rig.create(node_request("node_b")),
    }
    # What was read of the quotas for the first machine is old.
    rig.clock.passed_s = 31.0
    with contextlib.suppress(Throttled):
        ask[place]()
    assert rig.fired()[0] == 1
    assert "node_a" in {node.node_id for node in rig.list()}
    if place != "create":
        rig.create(node_request("node_c"))
    rig.delete("node_a")
    assert "node_a" not in {node.node_id for node in rig.list()}
    assert rig.fired()[0] == 1, "the pause itself is kept"


def test_a_throttled_delete_lets_machines_be_bought(rig: AzureRig) -> None:
    rig.create(node_request())
    rig.fault("delete", status=429, code="TooManyRequests", retry_after=3600.0)
    for _ in range(2):
        with pytest.raises(Throttled):
            rig.delete("node_a")
    assert rig.fired() == [1]
    rig.create(node_request("node_b"))
    assert {node.node_id for node in rig.list()} == {"node_a", "node_b"}


def test_a_retry_after_on_a_refusal_is_not_slept_in_the_call(rig: AzureRig) -> None:
    # The client's own policy would sleep an hour and then try again.
    rig.fault("create", status=409, code="SkuNotAvailable", retry_after=3600.0)
    assert type(refusal(rig)) is InsufficientCapacity
    assert rig.fired() == [1]


OPERATORS = {
    "MissingSubscriptionRegistration": "az provider register",
    "SubscriptionNotRegistered": "az provider register",
    "ScopeLocked": "lock",
    "ReadOnlyDisabledSubscription": "enable it again",
}


@pytest.mark.parametrize("code", OPERATORS)
def test_what_an_operator_has_to_change_closes_everything_and_says_what_to_do(
    rig: AzureRig, code: str
) -> None:
    rig.fault("create", status=409, code=code, message="Azure's own words.")
    error = refusal(rig)
    assert type(error) is InvalidRequest
    assert OPERATORS[code] in str(error)
    assert set(error.closes) == {one.id for one in rig.offerings}
    assert rig.fired() == [1], "a provider is registered by people, and nothing is tried again in the call"


def test_a_lock_keeps_a_machine_from_being_deleted_and_it_stays_listed(rig: AzureRig) -> None:
    rig.create(node_request())
    rig.fault("delete", status=409, code="ScopeLocked", message="The scope is locked.")
    with pytest.raises(InvalidRequest, match="take it away"):
        rig.delete("node_a")
    assert only(rig.list()).node_id == "node_a"


def test_ordinary_subscriptions_refuse_the_security_type_standard(
    rig: AzureRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asks_for_it(*arguments: Any) -> dict[str, Any]:
        body = machine_body(*arguments)
        body["properties"]["securityProfile"] = {"securityType": "Standard"}
        return body

    rig.create(node_request("node_plain"))
    monkeypatch.setattr("cluster.azure.provider.machine_body", asks_for_it)
    error = refusal(rig)
    assert "Microsoft.Compute/UseStandardSecurityType" in str(error)
    rig.knobs(features=["Microsoft.Compute/UseStandardSecurityType"])
    rig.create(node_request())
    assert len(rig.list()) == 2


def test_a_missing_role_says_what_to_do(rig: AzureRig) -> None:
    rig.fault("create", status=403, code="AuthorizationFailed", message="does not have authorization")
    error = refusal(rig)
    assert type(error) is Unauthorized
    assert "role" in str(error)


def test_no_token_is_unauthorized_and_no_traceback_of_the_identity(rig: AzureRig) -> None:
    rig.fault("token", status=400, code="invalid_request", times=0)
    with pytest.raises(Unauthorized):
        rig.list()


def test_a_resource_group_that_is_missing_is_not_an_empty_list(rig: AzureRig) -> None:
    lost = rig.another(resource_group="gone")
    with pytest.raises(InvalidRequest, match="resource group"):
        lost.list()
    with pytest.raises(InvalidRequest, match="resource group"):
        lost.delete("node_a")


def test_an_offering_that_is_not_sold_is_refused_before_anything_is_asked(rig: AzureRig) -> None:
    assert type(refusal(rig, node_request(offering="Standard_Nothing/1/spot"))) is InvalidRequest


def test_the_disk_of_an_a100_node_is_one_that_azure_takes(rig: AzureRig) -> None:
    rig.create(node_request())
    (machine,) = rig.server.cloud.machines.values()
    made = machine.body["properties"]["storageProfile"]["osDisk"]
    assert (made["diskSizeGB"], made["diffDiskSettings"]["placement"]) == (128, "CacheDisk")


def test_a_disk_that_the_placement_is_too_small_for_is_refused(rig: AzureRig) -> None:
    large = rig.another(disk_gb=512)
    with pytest.raises(InvalidRequest, match="greater than 256 GB") as refused:
        large.create(node_request())
    assert {SPOT, ON_DEMAND} <= set(refused.value.closes)
    assert rig.left() == 0


def test_a_disk_that_fits_no_placement_is_a_managed_one(rig: AzureRig) -> None:
    rig.offerings = catalogue.offerings(REGION, disk_gb=512)
    large = rig.another(disk_gb=512)
    large.create(node_request())
    assert only(large.list()).is_running
    assert len(rig.state()["disks"]) == 1


# No clear answer.


@pytest.mark.parametrize("effect", ["done-but-refuse", "lose-answer"])
def test_a_create_whose_answer_is_lost_is_listed_and_not_made_twice(rig: AzureRig, effect: str) -> None:
    rig.fault("create", effect=effect, status=500)
    assert type(refusal(rig)) is Unanswered
    assert only(rig.list()).node_id == "node_a"
    rig.create(node_request())
    assert len(rig.state()["machines"]) == 1


def test_a_create_that_met_a_500_is_asked_for_again(rig: AzureRig) -> None:
    rig.fault("create", status=500)
    assert type(refusal(rig)) is Unanswered
    assert rig.list() == []
    rig.create(node_request())
    assert only(rig.list()).is_running


def test_a_cloud_that_does_not_listen_is_unanswered(rig: AzureRig) -> None:
    away = rig.another(endpoint="http://127.0.0.1:9")
    with pytest.raises(Unanswered):
        away.list()


def test_the_same_node_asked_for_by_two_controllers_is_one_machine(rig: AzureRig) -> None:
    rig.create(node_request())
    rig.another().create(node_request(offering=f"{A100}/2/spot"))
    (machine,) = rig.state()["machines"].values()
    assert machine["zone"] == "1", "the second request changed nothing"


def test_a_machine_that_a_controller_makes_after_another_has_deleted_its_namesake_is_seen(
    rig: AzureRig,
) -> None:
    """A controller that stood still before it asked for a node that was given up meanwhile: its machine would stay."""
    rig.create(node_request())
    rig.settle()
    assert only(rig.list()).node_id == "node_a"
    rig.delete("node_a")
    rig.settle()
    assert rig.list() == []
    rig.another().create(node_request())
    assert only(rig.list()).node_id == "node_a"
    rig.delete("node_a")
    assert rig.list() == []
    rig.settle()
    assert rig.left() == 0


# Answers that cannot be parsed: a status that is well, and a body that a proxy, or a bad day of Azure, put there.

ODD_PAGES = [
    "<html>busy</html>",
    "",
    "null",
    "[]",
    '"busy"',
    '{"value": null}',
    '{"value": 7}',
    '{"value": [null]}',
    '{"value": [{"name": null, "properties": []}]}',
]


@pytest.mark.parametrize("body", ODD_PAGES)
def test_a_list_that_cannot_be_read_is_unanswered_and_no_list(rig: AzureRig, body: str) -> None:
    rig.create(node_request())
    for place in ("list", "list-sets", "get"):
        rig.server.cloud.unlisted = {machine_name(CLUSTER, "node_a")}
        rig.fault(place, status=200, body=body)
        with pytest.raises(Unanswered):
            rig.list()
    rig.fault("parts", status=200, body=body)
    with pytest.raises(Unanswered):
        rig.azure.sweep()
    assert rig.fired() == [1, 1, 1, 1]
    assert only(rig.list()).node_id == "node_a"


def test_a_list_without_its_machines_is_made_up_for_one_by_one(rig: AzureRig) -> None:
    rig.create(node_request())
    rig.fault("list", status=200, body="{}")
    assert only(rig.list()).node_id == "node_a"


@pytest.mark.parametrize("effect", ["refuse", "done-but-refuse"])
@pytest.mark.parametrize("body", ["<html>busy</html>", "", "null", "[]"])
def test_a_create_or_delete_with_an_answer_that_cannot_be_read_is_settled_by_the_next_looks(
    rig: AzureRig, body: str, effect: str
) -> None:
    rig.fault("create", status=200, body=body, effect=effect)
    with contextlib.suppress(Unanswered):
        rig.create(node_request())
    assert len(rig.list()) == (1 if effect == "done-but-refuse" else 0)
    rig.create(node_request())
    assert only(rig.list()).is_running
    rig.fault("delete", status=200, body=body, effect=effect)
    rig.delete("node_a")
    rig.clock.passed_s = 301.0
    if effect == "refuse":
        assert only(rig.list()).is_running, "after a while it is shown again"
        rig.delete("node_a")
    rig.list()
    assert rig.left() == 0


@pytest.mark.parametrize("status", [202, 206])
def test_a_status_that_is_no_error_and_means_nothing_here_is_no_refusal(rig: AzureRig, status: int) -> None:
    rig.fault("create", status=status, body="{}", effect="done-but-refuse")
    error = refusal(rig)
    assert (type(error), error.closes) == (Unanswered, ())
    assert only(rig.list()).is_running
    rig.fault("list", status=status, body='{"value": []}')
    with pytest.raises(Unanswered):
        rig.list()


@pytest.mark.parametrize("body", [*ODD_PAGES, "{}"])
def test_quotas_that_cannot_be_read_stop_nothing(rig: AzureRig, body: str) -> None:
    rig.fault("usages", status=200, body=body, times=0)
    rig.create(node_request())
    assert only(rig.list()).is_running
    assert rig.azure.quota_left() == {}


def test_one_quota_that_cannot_be_read_takes_no_other_with_it(rig: AzureRig) -> None:
    odd: list[dict[str, object] | None] = [
        {"name": {"value": "lowPriorityCores"}, "currentValue": None, "limit": None},
        {"name": None, "currentValue": 1, "limit": 2},
        {"name": {"value": None}, "currentValue": 1, "limit": 2},
        None,
    ]
    whole = {"name": {"value": "cores"}, "currentValue": 4, "limit": 10}
    rig.fault("usages", status=200, body=json.dumps({"value": [*odd, whole]}), times=0)
    assert rig.azure.quota_left() == {"cores": 6}


@pytest.mark.parametrize("body", ["<html>", "", "null", "[]", '{"error": "no"}'])
def test_why_a_machine_failed_is_asked_for_again_when_the_answer_cannot_be_read(
    rig: AzureRig, body: str
) -> None:
    rig.fault("create-later", code="AllocationFailed", message="no capacity")
    rig.create(node_request())
    rig.fault("poll", status=200, body=body)
    rig.fault("get", status=200, body="[]")
    unknown = only(rig.list())
    assert (unknown.is_running, unknown.refusal) == (False, None)
    assert isinstance(only(rig.list()).refusal, InsufficientCapacity)


def test_an_error_without_a_code_is_a_reason_that_is_new(rig: AzureRig) -> None:
    rig.fault("create-later", code="AllocationFailed", message="no capacity")
    rig.create(node_request())
    rig.fault("poll", status=200, body='{"error": {"code": null, "message": 7}}')
    refused = only(rig.list()).refusal
    assert type(refused) is ProviderError
    assert refused.closes == (SPOT,)


@pytest.mark.parametrize("place", ["skus", "evictions", "scores"])
@pytest.mark.parametrize("body", ["<html>", "", "null", "[]", '{"value": null, "data": null}'])
def test_a_side_source_that_cannot_be_read_is_an_error_that_the_market_knows(
    rig: AzureRig, place: str, body: str
) -> None:
    rig.fault(place, status=200, body=body)
    ask = {
        "skus": rig.azure.skus,
        "evictions": rig.azure.evictions,
        "scores": lambda: rig.azure.scores([A100]),
    }[place]
    with pytest.raises(Unanswered):
        ask()


# Refused later.


def test_an_operation_that_fails_after_201_leaves_a_machine_that_is_shown_and_deleted(rig: AzureRig) -> None:
    rig.fault("create-later", code="ZonalAllocationFailed", message="We do not have sufficient capacity")
    rig.create(node_request())
    rig.list()
    node = only(rig.list())
    assert not node.is_running
    assert isinstance(node.refusal, InsufficientCapacity)
    assert set(node.refusal.closes) == {SPOT, ON_DEMAND}
    assert "ZonalAllocationFailed" in str(node.message)
    rig.delete("node_a")
    assert rig.list() == []
    assert rig.left() == 0


def test_a_limited_capacity_refuses_only_the_machine_beyond_it(rig: AzureRig) -> None:
    rig.knobs(most_machines=[{"size": A100, "zone": "1", "capacity": "spot", "machines": 2}])
    for name in ("node_a", "node_b", "node_c"):
        rig.create(node_request(name))
    rig.list()
    assert [node.is_running for node in rig.list()] == [True, True, False]


def test_a_controller_that_started_again_still_learns_why_a_machine_failed(rig: AzureRig) -> None:
    rig.fault("create-later", code="AllocationFailed", message="no capacity")
    rig.create(node_request())
    rig.list()
    node = only(rig.another().list())
    assert isinstance(node.refusal, InsufficientCapacity)


def test_a_poll_that_fails_is_made_up_for_by_what_the_machine_says(rig: AzureRig) -> None:
    rig.fault("create-later", code="AllocationFailed", message="no capacity")
    rig.fault("poll", status=500, times=0)
    rig.fault("get", status=500)
    rig.create(node_request())
    rig.list()
    assert not only(rig.list()).is_running, "that it failed is known; why, is not yet"
    assert isinstance(only(rig.list()).refusal, InsufficientCapacity)


def test_a_machine_evicted_while_it_is_created_is_simply_gone(rig: AzureRig) -> None:
    rig.fault("create-later", effect="evict")
    rig.create(node_request())
    rig.list()
    assert rig.list() == []
    assert rig.left() == 0


def test_a_delete_overtakes_a_create_that_is_not_finished(rig: AzureRig) -> None:
    rig.knobs(create_s=1e6)
    rig.create(node_request())
    rig.delete("node_a")
    rig.list()
    assert rig.left() == 0


def test_a_delete_does_not_wait_for_a_system_that_does_not_shut_down(rig: AzureRig) -> None:
    rig.create(node_request())
    rig.knobs(shut_down_s=1e6)
    rig.delete("node_a")
    rig.list()
    assert rig.left() == 0


def test_a_delete_that_fails_later_is_shown_again(rig: AzureRig) -> None:
    rig.create(node_request())
    rig.fault("delete-later", code="InternalOperationError", message="try again")
    rig.delete("node_a")
    rig.list()
    assert not only(rig.list()).is_running
    rig.delete("node_a")
    rig.list()
    assert rig.left() == 0


# Lists.


def test_a_list_that_fails_on_page_two_is_no_list(rig: AzureRig) -> None:
    rig.knobs(page_size=2)
    for name in ("node_a", "node_b", "node_c"):
        rig.create(node_request(name))
    rig.fault("list", page=2, status=500)
    with pytest.raises(Unanswered):
        rig.list()
    assert rig.fired() == [1]
    assert len(rig.list()) == 3


def test_a_throttled_list_is_no_list_and_is_not_asked_for_again_at_once(rig: AzureRig) -> None:
    rig.create(node_request())
    rig.fault("list", status=429, code="TooManyRequests", retry_after=20.0)
    for _ in range(2):
        with pytest.raises(Throttled):
            rig.list()
    assert rig.fired() == [1]
    rig.clock.passed_s = 21.0
    assert only(rig.list()).is_running


def test_machines_of_other_clusters_and_of_none_are_not_ours(rig: AzureRig) -> None:
    other = rig.another(cluster="other")
    other.create(node_request("node_theirs"))
    rig.create(node_request("node_ours"))
    assert only(rig.list()).node_id == "node_ours"
    assert only(other.list()).node_id == "node_theirs"
    rig.delete("node_theirs")
    assert len(rig.state()["machines"]) == 2


def test_a_machine_that_the_list_forgot_is_asked_about_before_it_is_given_up(rig: AzureRig) -> None:
    rig.create(node_request())
    rig.list()
    cloud = rig.server.cloud
    hidden = cloud.machines[machine_name(CLUSTER, "node_a")]
    cloud.unlisted.add(hidden.name)
    assert only(rig.list()).node_id == "node_a"
    rig.fault("get", status=500)
    with pytest.raises(Unanswered):
        rig.list()
    rig.evict("node_a")
    assert rig.list() == []


def test_a_hundred_evictions_at_once_leave_nothing(rig: AzureRig) -> None:
    names = [f"node_{number}" for number in range(100)]
    for name in names:
        rig.create(node_request(name))
    assert len(rig.list()) == 100
    for name in names:
        rig.evict(name)
    assert rig.list() == []
    assert rig.left() == 0


def test_a_clock_that_is_wrong_does_not_age_machines(rig: AzureRig) -> None:
    rig.knobs(skew_s=7200.0)
    rig.create(node_request())
    assert only(rig.list()).created_at == pytest.approx(rig.clock(), abs=60)


# Names and tags.


def test_a_machine_whose_tags_were_replaced_is_still_its_node(rig: AzureRig) -> None:
    for node_id in ("node_a", NODE):
        rig.create(node_request(node_id))
        rig.list()
        rig.replace_tags(machine_name(CLUSTER, node_id), owner="finance")
    assert {one.node_id: one.pool for one in rig.list()} == {"node_a": "gpu", NODE: "gpu"}


def test_after_a_restart_a_machine_whose_tags_were_replaced_is_found_by_its_name_and_deleted(
    rig: AzureRig,
) -> None:
    rig.create(node_request(NODE))
    rig.replace_tags(machine_name(CLUSTER, NODE), owner="finance")
    after = rig.another()
    assert [one.node_id for one in after.list()] == [NODE]
    after.delete(NODE)
    assert after.list() == []
    assert rig.left() == 0


def test_what_a_machine_without_its_tags_left_behind_is_swept(rig: AzureRig) -> None:
    rig.create(node_request(NODE))
    rig.replace_tags(machine_name(CLUSTER, NODE), owner="finance")
    rig.fault("delete", effect="leak")
    rig.delete(NODE)
    rig.list()
    rig.azure.sweep()
    rig.clock.passed_s = 301.0
    assert len(rig.azure.sweep()) == 1
    assert rig.left() == 0


def test_another_clusters_machine_with_our_tags_is_left_alone_and_reported_once(
    rig: AzureRig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.another(cluster="rig-b").create(node_request(NODE))
    theirs = machine_name("rig-b", NODE)
    tags = {"remora:cluster": CLUSTER, "remora:node": "node_01M7Y8NRHRW6ZK2C8GF7JR4CXS"}
    rig.replace_tags(theirs, **tags)
    for _ in range(2):
        assert rig.list() == []
    reported = [one for one in caplog.messages if theirs in one]
    assert len(reported) == 1
    assert "delete it, or take the tag remora:cluster from it" in reported[0]


# Rehearsals.


def test_a_simulated_eviction_takes_a_spot_machine_after_its_notice(rig: AzureRig) -> None:
    rig.create(node_request())
    reported: list[str] = []
    rig.server.cloud.on_notice.append(lambda machine, _at: reported.append(machine.name))
    rig.azure.simulate_eviction("node_a")
    assert reported == [machine_name(CLUSTER, "node_a")]
    assert only(rig.list()).is_running, "the notice is not over"
    rig.knobs(skew_s=31.0)
    assert rig.list() == []
    assert rig.left() == 0


@pytest.mark.parametrize("node_id", ["node_a", "node_never"])
def test_what_cannot_be_evicted_is_said_in_a_sentence(rig: AzureRig, node_id: str) -> None:
    rig.create(node_request("node_a", ON_DEMAND))
    with pytest.raises(InvalidRequest, match=node_id):
        rig.azure.simulate_eviction(node_id)


def test_a_rehearsed_notice_is_azures_own_and_may_be_asked_for_again(rig: AzureRig) -> None:
    rig.create(node_request())
    rehearsal: Rehearsal = AzureRehearsal(rig.azure)
    rehearsal.notify("node_a", rig.clock() + 3600)
    (reported,) = rig.state()["machines"].values()
    assert reported["evicts_at"] == pytest.approx(rig.clock() + 30, abs=20), "Azure sets the deadline"
    rehearsal.notify("node_a", rig.clock() + 3600)
    assert list(rig.state()["machines"].values()) == [reported]


def test_a_rehearsed_end_takes_the_machine_at_once(rig: AzureRig) -> None:
    rig.create(node_request())
    rehearsal: Rehearsal = AzureRehearsal(rig.azure)
    for _ in range(2):
        rehearsal.take("node_a")
        assert rig.list() == []
        assert rig.left() == 0


# What is left behind.


def test_what_a_machine_left_behind_is_swept_after_a_while_and_nothing_else_is(rig: AzureRig) -> None:
    other = rig.another(cluster="other")
    for provider in (rig.azure, other):
        provider.create(node_request())
    rig.create(node_request("node_alive"))
    rig.fault("delete", effect="leak", times=2)
    rig.delete("node_a")
    other.delete("node_a")
    rig.list()
    before = rig.state()
    assert rig.azure.sweep() == (), "not at once: it may belong to a machine that is being made"
    rig.clock.passed_s = 301.0
    swept = rig.azure.sweep()
    after = rig.state()
    assert len(swept) == 1
    assert set(before["interfaces"]) - set(after["interfaces"]) == set(swept)
    assert all(name.startswith("remora-rig-node-a") for name in swept)


def test_what_an_earlier_machine_of_the_same_name_left_behind_is_swept(rig: AzureRig) -> None:
    rig.create(node_request())
    rig.fault("delete", effect="leak")
    rig.control(f"machines/{machine_name(CLUSTER, 'node_a')}/evict", {})
    assert rig.list() == []
    rig.create(node_request())
    assert only(rig.list()).is_running
    assert len(rig.state()["interfaces"]) == 2
    rig.azure.sweep()
    rig.clock.passed_s = 301.0
    assert len(rig.azure.sweep()) == 1
    assert len(rig.state()["interfaces"]) == 1
    assert only(rig.list()).is_running


def test_a_sweep_that_cannot_see_everything_deletes_nothing(rig: AzureRig) -> None:
    rig.create(node_request())
    rig.fault("delete", effect="leak")
    rig.delete("node_a")
    rig.list()
    rig.azure.sweep()
    rig.clock.passed_s = 301.0
    rig.fault("list", status=500)
    with pytest.raises(Unanswered):
        rig.azure.sweep()
    assert len(rig.state()["interfaces"]) == 1


# Identity.


def test_a_token_that_was_taken_away_is_unauthorized(rig: AzureRig) -> None:
    rig.create(node_request())
    rig.knobs(forget_tokens=True)
    with pytest.raises(Unauthorized):
        rig.list()


def test_names_and_sizes_go_over_the_wire_as_they_are_meant(rig: AzureRig) -> None:
    rig.create(node_request(offering=ON_DEMAND))
    (name,) = rig.state()["machines"]
    machine = rig.state()["machines"][name]
    assert name == machine_name(CLUSTER, "node_a")
    assert (machine["size"], machine["zone"], machine["capacity"]) == (A100, "1", "on-demand")
    assert machine["node"] == "node_a"
