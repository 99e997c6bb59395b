"""The cloud that the controller makes nodes in, by the setting `cloud`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from cluster.azure.settings import AzureSettings
from cluster.local.provider import LocalProvider
from cluster.local.rehearsal import LocalRehearsal
from cluster.provider import Provider
from cluster.ray.membership import RayMembership
from service.clouds.azure_place import INSTALL_AZURE, CloudUnusable, place_in_azure
from service.clouds.fixed_pool import LocalSupply
from service.loops.ports import Rehearsal, Supply
from service.settings import Settings
from service.steady_clock import CLOCK

#: Where Azure's clients ask for the tokens of managed identity, when not at a real machine's metadata service.
_TOKENS_AT = "AZURE_POD_IDENTITY_AUTHORITY_HOST"

#: Seconds between two looks while machines start or end.  Resource Manager refills 25 reads a second for a subscription
#: in a region, the compute service 5 lists, and a look at a large cluster takes dozens.
LOOK_S = 2.0
#: Seconds between two looks while Azure says that it will answer only few more questions.
SPARING_LOOK_S = 30.0
#: Seconds for which a look that found nothing under way is good.  Whoever was evicted is missed by Ray before that.
QUIET_S = 10.0


def _nothing() -> None:
    """What has to be closed where nothing is open."""


@dataclass(frozen=True)
class Cloud:
    """Everything that the controller needs of a cloud."""

    provider: Provider
    supply: Supply
    #: Takes nodes for a rehearsal; None where that is not possible.
    rehearsal: Rehearsal | None
    #: Nodes are bought and returned as the policies say; False: every pool is kept full.
    follows_policies: bool
    #: Seconds between two looks at it at least, now.
    look_s: Callable[[], float] = lambda: 0.0
    #: Ends its connections; machines live on.
    close: Callable[[], None] = _nothing


def cloud_of(settings: Settings, head: str, membership: RayMembership) -> Cloud:
    """The cloud of the settings, whose machines join the Ray head at `head` (`host:port`).

    Raises CloudUnusable when it cannot be used as it is set up.  The cloud itself is not asked here: where it does not
    answer, or does not know the identity, its provider says so at every look.
    """
    if settings.cloud == "local":
        provider = LocalProvider(settings.home, head, CLOCK)
        rehearsal = LocalRehearsal(provider, membership)
        return Cloud(provider, LocalSupply(settings), rehearsal, follows_policies=False)
    place = place_in_azure(settings)
    try:
        return _azure(place, head, is_emulated=settings.cloud == "azure-emulated")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("azure", "aiohttp"):
            raise
        raise CloudUnusable(f"{error.name} is missing: install it with {INSTALL_AZURE}") from error


def _azure(place: AzureSettings, head: str, *, is_emulated: bool) -> Cloud:
    # Not above: a service with local nodes needs none of Azure's packages.
    from cluster.azure import prices
    from cluster.azure.identity import credential
    from cluster.azure.provider import AzureProvider
    from cluster.azure.region_catalogue import RegionCatalogue, Sources
    from cluster.azure.rehearsal import AzureRehearsal
    from cluster.azure.supply import AzureSupply

    if is_emulated:
        os.environ[_TOKENS_AT] = place.endpoint
    identity = credential(place.controller_client_id, place.developer_login)
    # The emulator counts nobody's questions, and shows what happens as soon as it does.
    quiet_s = 0.0 if is_emulated else QUIET_S
    provider = AzureProvider(place, identity, head, lambda: catalogue(), CLOCK, quiet_s)
    prices_at = place.endpoint if is_emulated else prices.ENDPOINT
    sources = Sources(
        skus=provider.skus,
        prices=lambda: prices.fetch_prices(place.region, prices_at),
        evictions=provider.evictions,
        scores=provider.scores,
    )
    catalogue = RegionCatalogue(place.region, sources, CLOCK, place.disk_gb)
    supply = AzureSupply(provider, catalogue)
    supply.begin()

    def close() -> None:
        supply.close()
        provider.close()

    def look_s() -> float:
        return SPARING_LOOK_S if provider.is_allowance_low() else LOOK_S

    rehearsal = AzureRehearsal(provider)
    return Cloud(provider, supply, rehearsal, follows_policies=True, look_s=look_s, close=close)
