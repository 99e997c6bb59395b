"""What nodes can be bought as on Kubernetes: the worker groups in the settings."""

from __future__ import annotations

from collections.abc import Mapping

from cluster.kuberay.settings import KubeRaySettings
from cluster.policies.offerings import Offering


class KubeRaySupply:
    """`service.interfaces.Supply` of one RayCluster.

    Kubernetes states no price, and a quota only by a refusal: what a group may have at most is its `maxReplicas`.
    """

    def __init__(self, settings: KubeRaySettings) -> None:
        self._offerings = tuple(group.offering for group in settings.groups)

    def offerings(self) -> tuple[Offering, ...]:
        """One for each group."""
        return self._offerings

    def quota_left(self) -> Mapping[str, int]:
        """Nothing is known to be limited."""
        return {}

    def quota_limits(self) -> Mapping[str, int]:
        """Nothing is known to be limited."""
        return {}
