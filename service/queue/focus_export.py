"""Accounts as rows of FOCUS 1.0, the FinOps Open Cost and Usage Specification (https://focus.finops.org) (pure).

A row is what one payer pays of one node for one cause in one hour or a part of it.  Names that begin with `x_` are
columns of our own, as the specification wants them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from operator import itemgetter

from cluster.policies.offerings import CapacityType, zone_and_capacity
from service.queue.accounts import shown, sums
from service.queue.cost_causes import Payer, Span, micro_usd
from service.queue.costs import HOUR_MS
from service.queue.rows import NodeRow

#: In this order; those of the specification by its names.
COLUMNS = (
    *("AvailabilityZone", "BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency"),
    *("BillingPeriodEnd", "BillingPeriodStart", "ChargeCategory", "ChargeClass", "ChargeDescription"),
    *("ChargeFrequency", "ChargePeriodEnd", "ChargePeriodStart", "ConsumedQuantity", "ConsumedUnit"),
    *("ContractedCost", "ContractedUnitPrice", "EffectiveCost", "InvoiceIssuerName", "ListCost"),
    *("ListUnitPrice", "PricingCategory", "PricingQuantity", "PricingUnit", "ProviderName", "PublisherName"),
    *("RegionId", "RegionName", "ResourceId", "ResourceName", "ResourceType", "ServiceCategory"),
    *("ServiceName", "SkuId", "SkuPriceId", "SubAccountId", "SubAccountName", "Tags"),
    *("x_Cause", "x_GpuHours", "x_JobId", "x_Payer", "x_Pool"),
)

_Key = tuple[int, str, str, str, str, str]


def focus_rows(
    spans: Iterable[Span], nodes: Mapping[str, NodeRow], provider: str
) -> Iterator[tuple[str, ...]]:
    """The cells of each row; `spans` are cut at full hours, and `nodes` are those of the spans, by id.

    `provider` sells, publishes and bills what nodes are bought as.  The price is that of the node's purchase, and so is
    the list price: discounts are not known here.  The region is empty, as the offering of a node does not name it.
    """
    ranges: dict[_Key, tuple[int, int]] = {}

    def key_of(span: Span, _: NodeRow) -> _Key:
        hour = span.begins_ms - span.begins_ms % HOUR_MS
        key = (hour, span.node_id, span.project or "", span.payer.value, span.name, span.cause.value)
        begins_ms, ends_ms = ranges.get(key, (span.begins_ms, span.ends_ms))
        ranges[key] = min(begins_ms, span.begins_ms), max(ends_ms, span.ends_ms)
        return key

    ordered = sorted(sums(spans, nodes, key_of).items(), key=itemgetter(0))
    for (key, amount), line in zip(ordered, shown([one for _, one in ordered]), strict=True):
        begins_ms, ends_ms = ranges[key]
        hour, node_id, project, payer, name, cause = key
        node = nodes[node_id]
        zone, capacity = zone_and_capacity(node.offering)
        size = node.offering.rsplit("/", 2)[0]
        cost, hours = f"{line.micro_usd / 1e6:.6f}", f"{amount.node_s / 3600.0:.9f}"
        price = f"{micro_usd(node.price_per_hour) / 1e6:.6f}"
        month, next_month = _month_of(hour)
        cells = {
            "AvailabilityZone": zone or "",
            "BilledCost": cost,
            "BillingAccountId": node.cluster,
            "BillingAccountName": node.cluster,
            "BillingCurrency": "USD",
            "BillingPeriodEnd": next_month,
            "BillingPeriodStart": month,
            "ChargeCategory": "Usage",
            "ChargeDescription": f"{size or 'node'} of the pool {node.pool}: {cause.replace('_', ' ')}",
            "ChargeFrequency": "Usage-Based",
            "ChargePeriodEnd": _iso(ends_ms),
            "ChargePeriodStart": _iso(begins_ms),
            "ConsumedQuantity": hours,
            "ConsumedUnit": "Hours",
            "ContractedCost": cost,
            "ContractedUnitPrice": price,
            "EffectiveCost": cost,
            "InvoiceIssuerName": provider,
            "ListCost": cost,
            "ListUnitPrice": price,
            "PricingCategory": "Dynamic" if capacity is CapacityType.SPOT else "Standard",
            "PricingQuantity": hours,
            "PricingUnit": "Hours",
            "ProviderName": provider,
            "PublisherName": provider,
            "ResourceId": node_id,
            "ResourceName": node_id,
            "ResourceType": "Virtual Machine",
            "ServiceCategory": "Compute",
            "ServiceName": "Virtual Machines",
            "SkuId": size,
            "SkuPriceId": node.offering,
            "SubAccountId": project,
            "SubAccountName": project,
            "Tags": json.dumps({"pool": node.pool, "project": project} if project else {"pool": node.pool}),
            "x_Cause": cause,
            "x_GpuHours": f"{amount.gpu_s / 3600.0:.9f}",
            "x_JobId": name if payer == Payer.JOB.value else "",
            "x_Payer": payer,
            "x_Pool": node.pool,
        }
        yield tuple(cells.get(column, "") for column in COLUMNS)


def _iso(at_ms: int) -> str:
    """ISO 8601 in UTC, with milliseconds where there are some."""
    at = datetime.fromtimestamp(at_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{at}.{at_ms % 1000:03}Z" if at_ms % 1000 else f"{at}Z"


def _month_of(at_ms: int) -> tuple[str, str]:
    """When the month (UTC) of that time began, and when the next one begins."""
    at = datetime.fromtimestamp(at_ms // 1000, UTC)
    is_last = at.month == 12
    following = (at.year + 1, 1) if is_last else (at.year, at.month + 1)
    return f"{at.year:04}-{at.month:02}-01T00:00:00Z", f"{following[0]:04}-{following[1]:02}-01T00:00:00Z"
