"""The request for more of a quota, as text for those who may ask Azure for it (pure).

Source: https://learn.microsoft.com/en-us/cli/azure/quota
"""

from __future__ import annotations

import shlex

from cluster.azure.catalogue import SPOT_QUOTA
from cluster.azure.place_names import without_place
from cluster.azure.settings import AzureSettings


def quota_request(settings: AzureSettings, quota: str, units: int) -> str:
    """One command that asks for `units` vCPUs in all; `quota` may be that of a place."""
    name, place = without_place(quota)
    there = settings.by_place().get(place, settings)
    scope = f"/subscriptions/{there.subscription}/providers/Microsoft.Compute/locations/{there.region}"
    kind = "lowPriority" if name.lower() == SPOT_QUOTA.lower() else "dedicated"
    words = ["az", "quota", "update", "--resource-name", name, "--scope", scope]
    return shlex.join([*words, "--limit-object", f"value={units}", "--resource-type", kind])
