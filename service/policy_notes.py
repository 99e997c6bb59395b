"""What to know of a policy document that can be applied: money without an end, quotas that are too small."""

from __future__ import annotations

from collections.abc import Mapping

from cluster.azure.quota_request import quota_request
from cluster.azure.settings import AzureSettings
from cluster.policies.expectations import QuotaNeed, beyond, quota_needs, usd_per_hour_without_budget
from cluster.policies.policies import Policies
from service.clouds.azure_settings import read_azure_settings
from service.clouds.fixed_pool import known
from service.clouds.place_files import CloudUnusable
from service.settings import Settings

_HOURS = 24


def notes_on(policies: Policies, settings: Settings, limits: Mapping[str, Mapping[str, int]]) -> list[str]:
    """One sentence for each; `limits` are units of the quotas of each cluster's cloud, as far as they are known."""
    facts = known(settings)
    found = []
    usd = sum(
        usd_per_hour_without_budget(policies.of_cluster(cluster), facts.catalogue_of(cluster) or ())
        for cluster in policies.clusters
    )
    if usd > 0:
        found.append(
            f"there is no budget, and all nodes that max_nodes allows cost up to {usd * _HOURS:,.0f} USD a day; write"
            " `budget: {usd_per_day: ...}` to end that"
        )
    for cluster in policies.clusters:
        own = quota_needs(policies.of_cluster(cluster), facts.catalogue_of(cluster) or ())
        azure = _place_of(settings.for_cluster(cluster))
        found += [_sentence(need, limit, azure) for need, limit in beyond(own, limits.get(cluster, {}))]
    return found


def _place_of(settings: Settings) -> AzureSettings | None:
    if settings.cloud not in ("azure", "azure-emulated"):
        return None
    try:
        return read_azure_settings(settings)
    except CloudUnusable:
        return None


def _sentence(need: QuotaNeed, limit: int, azure: AzureSettings | None) -> str:
    names = ", ".join(need.pools)
    said = f"max_nodes of {names} needs {need.units} vCPUs of the quota {need.quota}, which allows {limit}"
    return (
        said
        if azure is None
        else f"{said}; ask for more with: {quota_request(azure, need.quota, need.units)}"
    )
