"""What to know of a policy document that can be applied: money without an end, quotas that are too small."""

from __future__ import annotations

from collections.abc import Mapping

from cluster.azure.quota_request import quota_request
from cluster.policies.expectations import beyond, quota_needs, usd_per_hour_without_budget
from cluster.policies.policies import Policies
from service.clouds.azure_settings import CloudUnusable, read_azure_settings
from service.clouds.fixed_pool import known
from service.settings import Settings

_HOURS = 24


def notes_on(policies: Policies, settings: Settings, limits: Mapping[str, int]) -> list[str]:
    """One sentence for each; `limits` are units of the cloud's quotas, as far as they are known."""
    catalogue = known(settings).catalogue or ()
    found = []
    if (usd := usd_per_hour_without_budget(policies, catalogue)) > 0:
        found.append(
            f"there is no budget, and all nodes that max_nodes allows cost up to {usd * _HOURS:,.0f} USD a day; write"
            " `budget: {usd_per_day: ...}` to end that"
        )
    try:
        azure = read_azure_settings(settings) if settings.cloud in ("azure", "azure-emulated") else None
    except CloudUnusable:
        azure = None
    for need, limit in beyond(quota_needs(policies, catalogue), limits):
        names = ", ".join(need.pools)
        said = (
            f"max_nodes of {names} needs {need.units} vCPUs of the quota {need.quota}, which allows {limit}"
        )
        asked = (
            "" if azure is None else f"; ask for more with: {quota_request(azure, need.quota, need.units)}"
        )
        found.append(said + asked)
    return found
