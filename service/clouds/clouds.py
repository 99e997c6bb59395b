"""Chooses the cloud in which the controller creates nodes, by the setting `cloud`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cluster.azure.catalogue import Size
from cluster.azure.settings import AzureSettings
from cluster.existing.owner import owner_of
from cluster.existing.provider import ClaimDrains, ExistingProvider
from cluster.kuberay.provider import KubeRayProvider
from cluster.kuberay.settings import KubeRaySettings
from cluster.kuberay.supply import KubeRaySupply
from cluster.local.certificates import uses_tls
from cluster.local.provider import LocalProvider
from cluster.local.rehearsal import LocalRehearsal
from cluster.provider import Provider, Unauthorized
from cluster.ray.membership import RayMembership
from cluster.ray.node_claims import ClaimStore
from service.clouds.azure_settings import INSTALL_AZURE, read_azure_settings
from service.clouds.fixed_pool import LocalSupply
from service.clouds.kuberay_settings import read_kuberay_settings
from service.clouds.own_sizes import sizes_of
from service.clouds.place_files import CloudUnusable
from service.interfaces import Drains, Rehearsal, Supply
from service.settings import Settings
from service.steady_clock import CLOCK

if TYPE_CHECKING:
    from cluster.azure.provider import AzureProvider
    from cluster.azure.supply import AzureSupply

#: Where Azure's clients ask for the tokens of managed identity, when not at a real machine's metadata service.
_TOKENS_AT = "AZURE_POD_IDENTITY_AUTHORITY_HOST"

#: Seconds between two observations while machines start or end.  Resource Manager refills 25 reads a second for a
#: subscription in a region, the compute service 5 lists, and observing a large cluster takes dozens.
OBSERVATION_INTERVAL_S = 2.0
#: Seconds between two observations of a cluster that Remora did not start.
EXISTING_INTERVAL_S = 1.0
#: Seconds between two observations while Azure reports that only few more requests are allowed.
SPARING_INTERVAL_S = 30.0
#: Seconds for which an observation is reused when nothing was under way.  Ray misses an evicted machine before that.
QUIET_S = 10.0


def _nothing() -> None:
    """The default of `close` where nothing is open."""


@dataclass(frozen=True)
class Cloud:
    """The provider, offerings and drills of a cloud, and how to observe it."""

    provider: Provider
    supply: Supply
    #: Takes nodes for a drill; None where that is not possible.
    rehearsal: Rehearsal | None
    #: Nodes are bought and returned as the policies say; False: every pool is kept full.
    follows_policies: bool
    #: In place of Ray's drains, where nodes may not be drained; None: Ray drains them.
    drains: Drains | None = None
    #: Keeps the machine of a node that computes wrongly from being used again; None: it ends with the node.
    withhold: Callable[[str], None] | None = None
    #: Seconds between two observations of it at least, now.
    observation_interval_s: Callable[[], float] = lambda: 0.0
    #: Closes its connections; machines go on running.
    close: Callable[[], None] = _nothing


def cloud_of(settings: Settings, head: str, membership: RayMembership) -> Cloud:
    """The cloud of the settings, whose machines join the Ray head at `head` (`host:port`).

    Raises CloudUnusable when it cannot be used as it is set up.  The cloud itself is not asked here: where it does not
    answer, or does not know the identity, its provider says so at every look.
    """
    if settings.cloud == "existing":
        claims = ClaimStore(owner_of(settings.home), stays=True)
        existing = ExistingProvider(claims, CLOCK)
        return Cloud(
            existing,
            existing,
            None,
            follows_policies=False,
            drains=ClaimDrains(claims),
            withhold=existing.withhold,
            observation_interval_s=lambda: EXISTING_INTERVAL_S,
        )
    if settings.cloud == "local":
        provider = LocalProvider(settings.cluster_home, head, CLOCK)
        rehearsal = LocalRehearsal(provider, membership)
        return Cloud(provider, LocalSupply(settings), rehearsal, follows_policies=False)
    if settings.cloud == "kuberay":
        return _kuberay(read_kuberay_settings(settings), membership)
    azure = read_azure_settings(settings).model_copy(update={"ray_tls": _nodes_use_tls(settings)})
    try:
        return _azure(azure, head, sizes_of(settings), is_emulated=settings.cloud == "azure-emulated")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("azure", "aiohttp"):
            raise
        raise CloudUnusable(f"{error.name} is missing: install it with {INSTALL_AZURE}") from error


def _nodes_use_tls(settings: Settings) -> bool:
    """Whether machines join with certificates.  Raises CloudUnusable where they should and there is no authority."""
    if settings.cloud == "azure" and not settings.encrypts_ray:
        return False
    found = uses_tls(settings.cluster_home)
    if settings.cloud == "azure" and not found:
        raise CloudUnusable(
            "there is no authority for the certificates of Ray: make it beside the head with `python -m"
            f" cluster.local.certificates {settings.cluster_home} ADDRESS` and give it to the vault, as"
            " docs/azure-first-run.md says, or set REMORA_RAY_TLS=off"
        )
    return found


def _kuberay(settings: KubeRaySettings, membership: RayMembership) -> Cloud:
    # Not above: only a controller has Ray.
    from cluster.ray.pod_names import RayPodNames

    try:
        provider = KubeRayProvider(settings, RayPodNames(membership), CLOCK)
    except Unauthorized as error:
        raise CloudUnusable(str(error)) from error
    return Cloud(
        provider,
        KubeRaySupply(settings),
        rehearsal=None,
        follows_policies=True,
        observation_interval_s=lambda: OBSERVATION_INTERVAL_S,
        close=provider.close,
    )


def _azure(settings: AzureSettings, head: str, sizes: Mapping[str, Size], *, is_emulated: bool) -> Cloud:
    # Not above: a service with local nodes needs none of Azure's packages.
    from cluster.azure.places import PlacesProvider, PlacesSupply
    from cluster.azure.rehearsal import AzureRehearsal

    if is_emulated:
        os.environ[_TOKENS_AT] = settings.endpoint
    opened = {
        place: _opened(there, head, sizes, is_emulated=is_emulated)
        for place, there in settings.by_place().items()
    }
    provider = PlacesProvider({place: one for place, (one, _) in opened.items()})
    supply = PlacesSupply({place: one for place, (_, one) in opened.items()})

    def close() -> None:
        supply.close()
        provider.close()

    def interval_s() -> float:
        return SPARING_INTERVAL_S if provider.is_allowance_low() else OBSERVATION_INTERVAL_S

    return Cloud(
        provider,
        supply,
        AzureRehearsal(provider),
        follows_policies=True,
        observation_interval_s=interval_s,
        close=close,
    )


def _opened(
    settings: AzureSettings, head: str, sizes: Mapping[str, Size], *, is_emulated: bool
) -> tuple[AzureProvider, AzureSupply]:
    """The provider and the supply of one place; the supply reads by itself from now on."""
    from cluster.azure import prices
    from cluster.azure.identity import credential
    from cluster.azure.provider import AzureProvider
    from cluster.azure.region_catalogue import RegionCatalogue, Sources
    from cluster.azure.supply import AzureSupply

    identity = credential(settings.controller_client_id, settings.developer_login)
    # The emulator has no limit of requests, and shows changes at once.
    quiet_s = 0.0 if is_emulated else QUIET_S
    provider = AzureProvider(settings, identity, head, lambda: catalogue(), CLOCK, quiet_s)
    prices_at = settings.endpoint if is_emulated else prices.ENDPOINT
    sources = Sources(
        skus=provider.skus,
        prices=lambda: prices.fetch_prices(settings.region, prices_at),
        evictions=provider.evictions,
        scores=provider.scores,
    )
    catalogue = RegionCatalogue(settings.region, sources, CLOCK, settings.disk_gb, sizes.values())
    supply = AzureSupply(provider, catalogue)
    supply.begin()
    return provider, supply
