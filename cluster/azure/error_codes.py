"""What an error of Azure means: one table from its codes and messages to the errors of `cluster.provider` (pure).

The code decides, never the status: an operation that failed is reported with status 200, a quota that is used up and a
size that is sold out both come as 409, and throttling by the compute service has the same code as a used-up quota.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

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


@dataclass(frozen=True, kw_only=True)
class CloudFailure:
    """One error as Azure reported it, of a request or of an operation that failed later."""

    code: str
    message: str = ""
    #: HTTP status; None when no answer came, 200 for an operation that failed.
    status: int | None = None
    #: Seconds of its Retry-After header.
    retry_after_s: float | None = None


class Reason(StrEnum):
    """What kind of trouble it is."""

    CAPACITY = "capacity"
    QUOTA = "quota"
    THROTTLED = "throttled"
    #: It is not known whether it was done.
    UNANSWERED = "unanswered"
    #: It will never work as it is.
    INVALID = "invalid"
    UNAUTHORIZED = "unauthorized"
    #: Another operation on the same machine came first or later; what is there now counts.
    SUPERSEDED = "superseded"
    #: The machine itself failed; another one may do better.
    BROKEN = "broken"


class Scope(StrEnum):
    """Which offerings of the region a refusal closes."""

    NOTHING = "nothing"
    #: This size in this zone with this capacity type.
    OFFERING = "offering"
    #: This size in this zone with every capacity type.
    PLACE = "place"
    #: This size everywhere.
    SIZE = "size"
    #: All on-demand machines of this quota family.
    FAMILY = "family"
    SPOT = "spot"
    ON_DEMAND = "on-demand"
    EVERYTHING = "everything"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What follows from a failure."""

    reason: Reason
    scope: Scope
    #: Seconds for which what it closes need not be asked for, at most, or after which to ask again.
    memory_s: float
    #: One sentence for people: what it means and what to do.
    says: str


@dataclass(frozen=True)
class _Rule:
    """One line of the table: it fits when the code is one of `codes` and the rest, where given, fits as well."""

    codes: frozenset[str]
    verdict: Verdict
    text: re.Pattern[str] | None = None
    status: int | None = None

    def fits(self, failure: CloudFailure) -> bool:
        return (
            failure.code.lower() in self.codes
            and (self.status is None or failure.status == self.status)
            and (self.text is None or self.text.search(failure.message) is not None)
        )


MINUTE_S = 60.0
HOUR_S = 3600.0
DAY_S = 24 * HOUR_S


def _rule(
    codes: str,
    reason: Reason,
    scope: Scope,
    memory_s: float,
    says: str,
    text: str | None = None,
    status: int | None = None,
) -> _Rule:
    pattern = re.compile(text, re.IGNORECASE) if text else None
    verdict = Verdict(reason=reason, scope=scope, memory_s=memory_s, says=says)
    return _Rule(frozenset(codes.lower().split()), verdict, pattern, status)


_QUOTA_CODES = "OperationNotAllowed QuotaExceeded"
#: The limits of the compute service are refilled every minute, so a minute is the least that helps.
_THROTTLED_S = MINUTE_S
#: Capacity moves as others come and go, over tens of minutes.  An hour is what Karpenter, which asks in the same
#: way for many clusters, settled on; the other zones and sizes are free to be tried meanwhile.
_CAPACITY_S = HOUR_S
#: Quota comes back as soon as machines of the account end, so it is worth a look every ten minutes.
_QUOTA_S = 10 * MINUTE_S
#: The same code says that a size is sold out, which passes, and that it is closed to a subscription, which people open
#: in days: asked for seldom, and not so seldom that a morning's stock-out lasts until the next day.
_RESTRICTED_S = 4 * HOUR_S
#: Roles that were just assigned take some minutes to be seen everywhere.
_ROLE_S = 5 * MINUTE_S
#: For what only an operator can change: often enough to notice that it was changed, seldom enough to stay quiet.
_OPERATOR_S = HOUR_S
#: Another change of the same resource ends within seconds.
_BUSY_S = 15.0
#: A network interface stays reserved for the machine that failed with it for three minutes.
_RESERVED_S = 180.0
#: A server that stumbled mostly answers at the next try.
_STUMBLED_S = 10.0
#: For an unknown code: it neither stops a pool for long nor is tried in a loop.
_UNKNOWN_S = 5 * MINUTE_S

#: The first line that fits decides.
_TABLE = (
    _rule(
        "OperationNotAllowed TooManyRequests SubscriptionRequestsThrottled",
        *(Reason.THROTTLED, Scope.NOTHING, _THROTTLED_S),
        "Azure was asked too often",
        status=429,
    ),
    _rule(
        "OperationNotAllowed",
        *(Reason.THROTTLED, Scope.NOTHING, _THROTTLED_S),
        "Azure was asked too often",
        text="too many requests",
    ),
    _rule(
        "TooManyRequests SubscriptionRequestsThrottled",
        *(Reason.THROTTLED, Scope.NOTHING, _THROTTLED_S),
        "Azure was asked too often",
    ),
    _rule(
        _QUOTA_CODES,
        *(Reason.QUOTA, Scope.SPOT, _QUOTA_S),
        "the quota of spot vCPUs of the region is used up; ask Azure for a higher LowPriorityCores limit",
        text="LowPriorityCores|Low-?Priority|Regional Spot",
    ),
    _rule(
        _QUOTA_CODES,
        *(Reason.QUOTA, Scope.FAMILY, _QUOTA_S),
        "the quota of this family of sizes is used up; ask Azure for a higher limit",
        text=r"Family\s*(v?Cores|vCPUs)",
    ),
    _rule(
        _QUOTA_CODES,
        *(Reason.QUOTA, Scope.ON_DEMAND, _QUOTA_S),
        "the quota of all vCPUs of the region is used up; ask Azure for a higher limit",
        text="Total Regional",
    ),
    _rule(
        _QUOTA_CODES,
        *(Reason.QUOTA, Scope.OFFERING, _QUOTA_S),
        "a quota is used up; ask Azure for a higher limit",
        text="quota|Current Limit",
    ),
    _rule(
        "SkuNotAvailable",
        *(Reason.CAPACITY, Scope.OFFERING, _RESTRICTED_S),
        "the size is closed to this subscription here, or sold out",
    ),
    _rule(
        "ZonalAllocationFailed AllocationFailed",
        *(Reason.CAPACITY, Scope.PLACE, _CAPACITY_S),
        "Azure has no machine of this size free here",
    ),
    _rule(
        "OverconstrainedAllocationRequest OverconstrainedZonalAllocationRequest",
        *(Reason.CAPACITY, Scope.OFFERING, _CAPACITY_S),
        "Azure has no machine that fits all that was asked for",
    ),
    _rule(
        "SpotPriceGreaterThanProvidedMaxPrice",
        *(Reason.CAPACITY, Scope.OFFERING, _CAPACITY_S),
        "the spot price is above the highest price that is allowed",
    ),
    _rule(
        "SubnetIsFull InsufficientSubnetSize",
        # Addresses come back as nodes end.
        *(Reason.CAPACITY, Scope.EVERYTHING, _QUOTA_S),
        "the subnet of the nodes has no free address; give the cluster a larger one",
    ),
    _rule(
        "OperationPreempted",
        *(Reason.SUPERSEDED, Scope.NOTHING, 0.0),
        "a later operation on this machine took over",
    ),
    _rule(
        "Conflict AnotherOperationInProgress RetryableErrorDueToAnotherOperation RetryableError",
        *(Reason.UNANSWERED, Scope.NOTHING, _BUSY_S),
        "another operation on the same resource is not finished",
    ),
    _rule(
        "NicReservedForAnotherVm",
        *(Reason.UNANSWERED, Scope.NOTHING, _RESERVED_S),
        "the network interface is still reserved for another machine",
    ),
    _rule(
        "PropertyChangeNotAllowed MaxPriceChangeNotAllowedForAllocatedVMs",
        *(Reason.INVALID, Scope.NOTHING, 0.0),
        "there is another machine of the same name",
    ),
    _rule(
        "AuthorizationFailed LinkedAuthorizationFailed AuthenticationFailed InvalidAuthenticationToken "
        "ExpiredAuthenticationToken InvalidAuthenticationTokenTenant",
        *(Reason.UNAUTHORIZED, Scope.EVERYTHING, _ROLE_S),
        "the identity of the controller may not do this; give it the role of docs/azure.md",
    ),
    _rule(
        "RequestDisallowedByPolicy",
        *(Reason.INVALID, Scope.EVERYTHING, _OPERATOR_S),
        "a policy of the Azure subscription forbids it",
    ),
    _rule(
        "ResourceGroupNotFound SubscriptionNotFound",
        *(Reason.INVALID, Scope.EVERYTHING, _OPERATOR_S),
        "the resource group or subscription of the settings does not exist",
    ),
    _rule(
        "ScopeLocked",
        *(Reason.INVALID, Scope.EVERYTHING, _OPERATOR_S),
        "a lock on the subscription or the resource group keeps machines from being made and deleted; take it away",
    ),
    _rule(
        "ReadOnlyDisabledSubscription",
        *(Reason.INVALID, Scope.EVERYTHING, _OPERATOR_S),
        "the Azure subscription is disabled, mostly for a bill or a spending limit; enable it again in the portal",
    ),
    _rule(
        "MissingSubscriptionRegistration SubscriptionNotRegistered",
        *(Reason.INVALID, Scope.EVERYTHING, _OPERATOR_S),
        "run `az provider register --namespace Microsoft.Compute` once for this subscription",
    ),
    _rule(
        "AzureSpotFeatureNotEnabledForSubscription",
        *(Reason.INVALID, Scope.SPOT, _OPERATOR_S),
        "this subscription may not buy spot machines",
    ),
    _rule(
        "AzureSpotIsNotSupportedForThisVMSize AzureSpotVMNotSupportedInAvailabilitySet",
        *(Reason.INVALID, Scope.OFFERING, DAY_S),
        "this size cannot be had as spot",
    ),
    _rule(
        "VMSizeNotSupported",
        *(Reason.INVALID, Scope.SIZE, DAY_S),
        "this size does not exist in the region",
    ),
    _rule(
        "OSProvisioningTimedOut OSProvisioningClientError OSProvisioningInternalError VMStartTimedOut",
        *(Reason.BROKEN, Scope.NOTHING, 0.0),
        "the machine did not boot; if it happens again, look at its image",
    ),
    _rule(
        "InvalidParameter",
        *(Reason.INVALID, Scope.EVERYTHING, _OPERATOR_S),
        "the subscription does not take the security type that image and machine ask for together; use an image "
        "whose definition has no security type, or register the feature Microsoft.Compute/UseStandardSecurityType",
        text=r"securityProfile\.securityType",
    ),
    _rule(
        "InvalidParameter BadRequest InvalidRequestContent InvalidResourceReference NotFound "
        "NotSupported VMSizeDoesntSupportHyperVGeneration PlatformImageNotFound GalleryImageNotFound ImageNotFound",
        *(Reason.INVALID, Scope.SIZE, _OPERATOR_S),
        "Azure cannot make such a machine; check image, subnet and size in the settings",
    ),
)


def known_codes() -> frozenset[str]:
    """Every code that a line of the table names, in lower case."""
    return frozenset().union(*(rule.codes for rule in _TABLE))


#: Spot machines that are refused as not available come back within the hour, unlike sizes that are closed.
_SPOT_NOT_AVAILABLE_S = _CAPACITY_S
_NO_QUOTA = re.compile(r"Current Limit:\s*0\b", re.IGNORECASE)


def judge(failure: CloudFailure, capacity: CapacityType | None = None) -> Verdict:
    """What a failure of a request for a machine of this capacity type means.

    `capacity` may be None for requests that were not for a machine, such as a list.
    """
    verdict = next((rule.verdict for rule in _TABLE if rule.fits(failure)), None) or _by_status(failure)
    memory_s = verdict.memory_s
    if failure.code.lower() == "skunotavailable" and capacity is CapacityType.SPOT:
        memory_s = _SPOT_NOT_AVAILABLE_S
    if verdict.reason is Reason.QUOTA and _NO_QUOTA.search(failure.message):
        # A limit of zero never frees units: an operator has to request more.
        memory_s = _OPERATOR_S
    if verdict.reason in (Reason.THROTTLED, Reason.UNANSWERED) and failure.retry_after_s is not None:
        memory_s = failure.retry_after_s
    return Verdict(reason=verdict.reason, scope=verdict.scope, memory_s=memory_s, says=verdict.says)


def _by_status(failure: CloudFailure) -> Verdict:
    """The verdict on a code that is in no line of the table."""
    status = failure.status
    if status is None or status >= 500 or status == 408:
        return _verdict(Reason.UNANSWERED, Scope.NOTHING, _STUMBLED_S, "Azure gave no clear answer")
    if status == 429:
        return _verdict(Reason.THROTTLED, Scope.NOTHING, _THROTTLED_S, "Azure was asked too often")
    if status in (401, 403):
        return _verdict(Reason.UNAUTHORIZED, Scope.EVERYTHING, _ROLE_S, "Azure refuses the identity")
    if status == 400:
        return _verdict(Reason.INVALID, Scope.SIZE, _OPERATOR_S, "Azure cannot make such a machine")
    return _verdict(Reason.BROKEN, Scope.OFFERING, _UNKNOWN_S, "Azure refused for a reason that is new here")


def _verdict(reason: Reason, scope: Scope, memory_s: float, says: str) -> Verdict:
    return Verdict(reason=reason, scope=scope, memory_s=memory_s, says=says)


def closes(scope: Scope, refused: Offering, other: Offering) -> bool:
    """True when a refusal of `refused` with this scope says that `other`, of the same region, is refused too."""
    match scope:
        case Scope.NOTHING:
            return False
        case Scope.OFFERING:
            return other.id == refused.id
        case Scope.PLACE:
            return (other.size, other.zone) == (refused.size, refused.zone)
        case Scope.SIZE:
            return other.size == refused.size
        case Scope.FAMILY:
            # The table does not know the family of every size; those are not of one family for that.
            known = bool(refused.quota) and other.quota.lower() == refused.quota.lower()
            is_same = known or other.size == refused.size
            return is_same and other.capacity is CapacityType.ON_DEMAND
        case Scope.SPOT:
            return other.capacity is CapacityType.SPOT
        case Scope.ON_DEMAND:
            return other.capacity is CapacityType.ON_DEMAND
        case Scope.EVERYTHING:
            return True


def to_error(
    failure: CloudFailure, now: float, offering: Offering | None = None, catalogue: Iterable[Offering] = ()
) -> ProviderError:
    """The failure as an error of `cluster.provider`; `now` in seconds since 1970.

    `offering` is what was asked for, if anything; of `catalogue` it names the offerings that need not be asked for.
    """
    verdict = judge(failure, offering.capacity if offering else None)
    said = failure.message.strip().splitlines()[0][:300] if failure.message.strip() else ""
    message = f"{verdict.says} ({failure.code}{': ' + said if said else ''})"
    closed = tuple(one.id for one in catalogue if offering and closes(verdict.scope, offering, one))
    until = now + verdict.memory_s
    match verdict.reason:
        case Reason.CAPACITY if offering is not None:
            return InsufficientCapacity(message, offering=offering.id, until=until, closes=closed)
        case Reason.QUOTA:
            return QuotaExceeded(message, closes=closed, until=until)
        case Reason.THROTTLED:
            return Throttled(message, retry_after_s=verdict.memory_s)
        case Reason.UNANSWERED:
            return Unanswered(message, retry_after_s=verdict.memory_s)
        case Reason.INVALID:
            return InvalidRequest(message, closes=closed, until=until)
        case Reason.UNAUTHORIZED:
            return Unauthorized(message, closes=closed, until=until)
        case _:
            return ProviderError(message, closes=closed, until=until)
