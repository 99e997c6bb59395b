"""Every error of Azure that is known, with the text that it comes with, and what follows from it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cluster.azure.error_codes import CloudFailure, Reason, Scope, closes, judge, known_codes, to_error
from cluster.policies.offerings import CapacityType, Offering
from cluster.provider import (
    InsufficientCapacity,
    InvalidRequest,
    ProviderError,
    QuotaExceeded,
    Throttled,
    Unanswered,
    Unauthorized,
)

A100, H100 = "Standard_NC24ads_A100_v4", "Standard_NC40ads_H100_v5"
FAMILIES = {A100: "StandardNCADSA100v4Family", H100: "standardNCadsH100v5Family"}
SPOT, ON_DEMAND = CapacityType.SPOT, CapacityType.ON_DEMAND
NOW = 1_000_000.0

SPOT_QUOTA = (
    "Operation could not be completed as it results in exceeding approved LowPriorityCores quota. Additional details - "
    "Deployment Model: Resource Manager, Location: eastus, Current Limit: 48, Current Usage: 48, Additional Required: "
    "24, (Minimum) New Limit Required: 72."
)
FAMILY_QUOTA = SPOT_QUOTA.replace("LowPriorityCores", "StandardNCADSA100v4Family Cores")
FAMILY_QUOTA_ZERO = FAMILY_QUOTA.replace("Current Limit: 48", "Current Limit: 0")
REGION_QUOTA = SPOT_QUOTA.replace("LowPriorityCores", "Total Regional Cores")
TOO_MANY = (
    "The server rejected the request because too many requests have been received for this subscription."
)
SOLD_OUT = "Allocation failed. We do not have sufficient capacity for the requested VM size in this zone."
NOT_AVAILABLE = (
    f"The requested VM size for resource 'Following SKUs have failed for Capacity Restrictions: {A100}' is currently "
    "not available in location 'eastus'. Please try another size or deploy to a different location or zone."
)


def offering(size: str = A100, zone: str | None = "1", capacity: CapacityType = SPOT) -> Offering:
    return Offering(
        size=size,
        zone=zone,
        capacity=capacity,
        resources={"GPU": 1.0},
        price_per_hour=1.0,
        quota=FAMILIES[size] if capacity is ON_DEMAND else "lowPriorityCores",
    )


CATALOGUE = [
    offering(size, zone, capacity)
    for size in (A100, H100)
    for zone in ("1", None)
    for capacity in (SPOT, ON_DEMAND)
]


def failure(
    code: str, message: str = "", status: int | None = 409, wait: float | None = None
) -> CloudFailure:
    return CloudFailure(code=code, message=message, status=status, retry_after_s=wait)


@pytest.mark.parametrize(
    ("failed", "capacity", "error", "scope", "memory_s"),
    [
        (failure("SkuNotAvailable", NOT_AVAILABLE), SPOT, InsufficientCapacity, Scope.OFFERING, 3600),
        (failure("SkuNotAvailable", NOT_AVAILABLE), ON_DEMAND, InsufficientCapacity, Scope.OFFERING, 14_400),
        (failure("OperationNotAllowed", SPOT_QUOTA), SPOT, QuotaExceeded, Scope.SPOT, 600),
        (failure("QuotaExceeded", SPOT_QUOTA), SPOT, QuotaExceeded, Scope.SPOT, 600),
        (failure("OperationNotAllowed", FAMILY_QUOTA), ON_DEMAND, QuotaExceeded, Scope.FAMILY, 600),
        (failure("OperationNotAllowed", FAMILY_QUOTA_ZERO), ON_DEMAND, QuotaExceeded, Scope.FAMILY, 3600),
        (failure("QuotaExceeded", "exceeding a quota"), ON_DEMAND, QuotaExceeded, Scope.OFFERING, 600),
        (failure("OperationNotAllowed", REGION_QUOTA), ON_DEMAND, QuotaExceeded, Scope.ON_DEMAND, 600),
        (failure("ZonalAllocationFailed", SOLD_OUT, 200), SPOT, InsufficientCapacity, Scope.PLACE, 3600),
        (failure("AllocationFailed", SOLD_OUT, 200), ON_DEMAND, InsufficientCapacity, Scope.PLACE, 3600),
        (
            failure("OverconstrainedZonalAllocationRequest", "VM(s) with the following constraints", 200),
            *(SPOT, InsufficientCapacity, Scope.OFFERING, 3600),
        ),
        (
            failure("OverconstrainedAllocationRequest", "VM(s) with the following constraints", 200),
            *(SPOT, InsufficientCapacity, Scope.OFFERING, 3600),
        ),
        (failure("SomethingUnheardOf", status=400), SPOT, InvalidRequest, Scope.SIZE, 3600),
        (failure("SomethingUnheardOf", status=409), SPOT, ProviderError, Scope.OFFERING, 300),
        (failure("Forbidden", status=403), SPOT, Unauthorized, Scope.EVERYTHING, 300),
    ],
    ids=lambda value: value.code if isinstance(value, CloudFailure) else "",
)
def test_what_a_code_means_with_what_comes_with_it(
    failed: CloudFailure, capacity: CapacityType, error: type[ProviderError], scope: Scope, memory_s: float
) -> None:
    asked = offering(capacity=capacity)
    raised = to_error(failed, NOW, asked, CATALOGUE)
    assert type(raised) is error
    assert raised.until == NOW + memory_s
    assert set(raised.closes) == {one.id for one in CATALOGUE if closes(scope, asked, one)}


#: What each code of the table means with a status that says nothing, the text where one is needed, asked for as spot.
MEANINGS: dict[
    str, tuple[type[ProviderError], Scope, float] | tuple[type[ProviderError], Scope, float, str]
] = {
    "OperationNotAllowed": (Throttled, Scope.NOTHING, 60, TOO_MANY),
    "TooManyRequests": (Throttled, Scope.NOTHING, 60),
    "SubscriptionRequestsThrottled": (Throttled, Scope.NOTHING, 60),
    "QuotaExceeded": (QuotaExceeded, Scope.SPOT, 600, SPOT_QUOTA),
    "SkuNotAvailable": (InsufficientCapacity, Scope.OFFERING, 3600),
    "ZonalAllocationFailed": (InsufficientCapacity, Scope.PLACE, 3600),
    "AllocationFailed": (InsufficientCapacity, Scope.PLACE, 3600),
    "OverconstrainedAllocationRequest": (InsufficientCapacity, Scope.OFFERING, 3600),
    "OverconstrainedZonalAllocationRequest": (InsufficientCapacity, Scope.OFFERING, 3600),
    "SpotPriceGreaterThanProvidedMaxPrice": (InsufficientCapacity, Scope.OFFERING, 3600),
    "SubnetIsFull": (InsufficientCapacity, Scope.EVERYTHING, 600),
    "InsufficientSubnetSize": (InsufficientCapacity, Scope.EVERYTHING, 600),
    "OperationPreempted": (ProviderError, Scope.NOTHING, 0),
    "Conflict": (Unanswered, Scope.NOTHING, 15),
    "AnotherOperationInProgress": (Unanswered, Scope.NOTHING, 15),
    "RetryableErrorDueToAnotherOperation": (Unanswered, Scope.NOTHING, 15),
    "RetryableError": (Unanswered, Scope.NOTHING, 15),
    "NicReservedForAnotherVm": (Unanswered, Scope.NOTHING, 180),
    "PropertyChangeNotAllowed": (InvalidRequest, Scope.NOTHING, 0),
    "MaxPriceChangeNotAllowedForAllocatedVMs": (InvalidRequest, Scope.NOTHING, 0),
    "AuthorizationFailed": (Unauthorized, Scope.EVERYTHING, 300),
    "LinkedAuthorizationFailed": (Unauthorized, Scope.EVERYTHING, 300),
    "AuthenticationFailed": (Unauthorized, Scope.EVERYTHING, 300),
    "InvalidAuthenticationToken": (Unauthorized, Scope.EVERYTHING, 300),
    "ExpiredAuthenticationToken": (Unauthorized, Scope.EVERYTHING, 300),
    "InvalidAuthenticationTokenTenant": (Unauthorized, Scope.EVERYTHING, 300),
    "RequestDisallowedByPolicy": (InvalidRequest, Scope.EVERYTHING, 3600),
    "ResourceGroupNotFound": (InvalidRequest, Scope.EVERYTHING, 3600),
    "SubscriptionNotFound": (InvalidRequest, Scope.EVERYTHING, 3600),
    "MissingSubscriptionRegistration": (InvalidRequest, Scope.EVERYTHING, 3600),
    "SubscriptionNotRegistered": (InvalidRequest, Scope.EVERYTHING, 3600),
    "ScopeLocked": (InvalidRequest, Scope.EVERYTHING, 3600),
    "ReadOnlyDisabledSubscription": (InvalidRequest, Scope.EVERYTHING, 3600),
    "AzureSpotFeatureNotEnabledForSubscription": (InvalidRequest, Scope.SPOT, 3600),
    "AzureSpotIsNotSupportedForThisVMSize": (InvalidRequest, Scope.OFFERING, 86_400),
    "AzureSpotVMNotSupportedInAvailabilitySet": (InvalidRequest, Scope.OFFERING, 86_400),
    "VMSizeNotSupported": (InvalidRequest, Scope.SIZE, 86_400),
    "OSProvisioningTimedOut": (ProviderError, Scope.NOTHING, 0),
    "OSProvisioningClientError": (ProviderError, Scope.NOTHING, 0),
    "OSProvisioningInternalError": (ProviderError, Scope.NOTHING, 0),
    "VMStartTimedOut": (ProviderError, Scope.NOTHING, 0),
    "InvalidParameter": (InvalidRequest, Scope.SIZE, 3600),
    "BadRequest": (InvalidRequest, Scope.SIZE, 3600),
    "InvalidRequestContent": (InvalidRequest, Scope.SIZE, 3600),
    "InvalidResourceReference": (InvalidRequest, Scope.SIZE, 3600),
    "NotFound": (InvalidRequest, Scope.SIZE, 3600),
    "NotSupported": (InvalidRequest, Scope.SIZE, 3600),
    "VMSizeDoesntSupportHyperVGeneration": (InvalidRequest, Scope.SIZE, 3600),
    "PlatformImageNotFound": (InvalidRequest, Scope.SIZE, 3600),
    "GalleryImageNotFound": (InvalidRequest, Scope.SIZE, 3600),
    "ImageNotFound": (InvalidRequest, Scope.SIZE, 3600),
}


def test_every_code_of_the_table_has_its_meaning_written_down_here() -> None:
    assert {code.lower() for code in MEANINGS} == known_codes()


@pytest.mark.parametrize("code", MEANINGS)
def test_a_code_decides_whatever_the_status_says(code: str) -> None:
    error, scope, memory_s, *text = MEANINGS[code]
    failed = failure(code, *text, status=418)
    verdict = judge(failed, SPOT)
    assert (verdict.scope, verdict.memory_s) == (scope, memory_s)
    raised = to_error(failed, NOW, offering(), CATALOGUE)
    assert type(raised) is error
    assert set(raised.closes) == {one.id for one in CATALOGUE if closes(scope, offering(), one)}
    if isinstance(raised, Throttled | Unanswered):
        assert raised.retry_after_s == memory_s
    else:
        assert raised.until == NOW + memory_s


def test_throttling_and_a_used_up_quota_share_a_code_and_are_distinguished() -> None:
    assert judge(failure("OperationNotAllowed", TOO_MANY, 429)).reason is Reason.THROTTLED
    assert judge(failure("OperationNotAllowed", "", 429)).reason is Reason.THROTTLED
    assert judge(failure("OperationNotAllowed", TOO_MANY, 409)).reason is Reason.THROTTLED
    assert judge(failure("OperationNotAllowed", SPOT_QUOTA, 409)).reason is Reason.QUOTA


@pytest.mark.parametrize(("reported", "waits"), [(None, 60.0), (7.0, 7.0), (1200.0, 1200.0)])
def test_throttling_lasts_as_long_as_azure_says_and_a_minute_when_it_says_nothing(
    reported: float | None, waits: float
) -> None:
    error = to_error(failure("TooManyRequests", status=429, wait=reported), NOW)
    assert type(error) is Throttled
    assert error.retry_after_s == waits


def test_a_wait_that_azure_names_does_not_shorten_what_is_sold_out() -> None:
    error = to_error(failure("SkuNotAvailable", NOT_AVAILABLE, wait=5.0), NOW, offering(), CATALOGUE)
    assert error.until == NOW + 3600


@pytest.mark.parametrize(("reported", "waits"), [(None, 10.0), (2.5, 2.5), (120.0, 120.0)])
@pytest.mark.parametrize("status", [408, 500, 503])
def test_what_was_not_answered_is_asked_again_when_azure_says(
    reported: float | None, waits: float, status: int
) -> None:
    error = to_error(failure("ServiceUnavailable", status=status, wait=reported), NOW)
    assert type(error) is Unanswered
    assert error.retry_after_s == waits


@pytest.mark.parametrize("status", [None, 408, 500, 502, 503, 504])
def test_no_clear_answer_is_neither_a_refusal_nor_a_success(status: int | None) -> None:
    error = to_error(failure("GatewayTimeout", status=status), NOW, offering(), CATALOGUE)
    assert type(error) is Unanswered
    assert error.closes == ()


def test_an_operation_that_was_overtaken_closes_nothing() -> None:
    assert judge(failure("OperationPreempted", status=200)).reason is Reason.SUPERSEDED
    assert to_error(failure("OperationPreempted", status=200), NOW, offering(), CATALOGUE).closes == ()


def test_a_zone_that_is_sold_out_says_nothing_of_asking_without_a_zone() -> None:
    error = to_error(failure("ZonalAllocationFailed", SOLD_OUT, 200), NOW, offering(zone="1"), CATALOGUE)
    assert set(error.closes) == {f"{A100}/1/spot", f"{A100}/1/on-demand"}
    error = to_error(failure("AllocationFailed", SOLD_OUT, 200), NOW, offering(zone=None), CATALOGUE)
    assert set(error.closes) == {f"{A100}/any/spot", f"{A100}/any/on-demand"}


def test_the_spot_quota_closes_every_size_of_spot_and_no_on_demand() -> None:
    error = to_error(failure("OperationNotAllowed", SPOT_QUOTA), NOW, offering(), CATALOGUE)
    assert set(error.closes) == {one.id for one in CATALOGUE if one.capacity is SPOT}


def test_families_are_compared_without_regard_to_case() -> None:
    asked = offering(capacity=ON_DEMAND)
    shouted = replace(asked, zone="2", quota=asked.quota.upper())
    assert closes(Scope.FAMILY, asked, shouted)
    assert not closes(Scope.FAMILY, asked, offering(H100, capacity=ON_DEMAND))


def test_a_family_that_is_used_up_closes_its_on_demand_machines_and_no_spot() -> None:
    asked = offering(capacity=ON_DEMAND)
    error = to_error(failure("OperationNotAllowed", FAMILY_QUOTA), NOW, asked, CATALOGUE)
    assert set(error.closes) == {f"{A100}/1/on-demand", f"{A100}/any/on-demand"}
    assert not closes(Scope.FAMILY, asked, replace(offering(), quota=asked.quota)), (
        "spot has a quota of its own"
    )


def test_an_unknown_family_is_not_taken_for_a_known_one() -> None:
    asked, other = offering(capacity=ON_DEMAND), offering(H100, capacity=ON_DEMAND)
    unknown = [Offering(**{**vars(one), "quota": ""}) for one in (asked, other)]
    elsewhere = Offering(**{**vars(unknown[0]), "zone": "3"})
    error = to_error(failure("OperationNotAllowed", FAMILY_QUOTA), NOW, unknown[0], [*unknown, elsewhere])
    assert set(error.closes) == {unknown[0].id, elsewhere.id}


def test_a_code_means_the_same_in_whatever_case_it_is_written() -> None:
    error = to_error(failure("SKUNOTAVAILABLE", NOT_AVAILABLE), NOW, offering(), CATALOGUE)
    assert error.until == NOW + 3600


def test_the_message_says_what_it_means_and_what_azure_said_in_one_line() -> None:
    error = to_error(failure("SkuNotAvailable", NOT_AVAILABLE + "\nmore"), NOW, offering(), CATALOGUE)
    assert "sold out" in str(error)
    assert "SkuNotAvailable" in str(error)
    assert "\n" not in str(error)
