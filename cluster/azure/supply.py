"""Offerings and quotas of Azure, refreshed by a thread, so that reading them never waits."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping

from cluster.azure.provider import AzureProvider
from cluster.azure.region_catalogue import RegionCatalogue
from cluster.policies.offerings import Offering

log = logging.getLogger(__name__)

#: Seconds between two looks for what is old; catalogue, prices and quotas each say for how long they are good.
_LOOK_EVERY_S = 5.0
#: Seconds that `close` waits for a request that is under way; its answer is of no use any more.
_PATIENCE_S = 2.0


class AzureSupply:
    """`service.interfaces.Supply` of one region: answers at once, with the results of the last `look`.

    After `begin` a thread of its own looks every few seconds, until `close`.
    """

    def __init__(self, provider: AzureProvider, catalogue: RegionCatalogue) -> None:
        self._provider = provider
        self._catalogue = catalogue
        #: The last reading that there was: after a refusal the provider has none for a while.
        self._quota_left: Mapping[str, int] = {}
        self._quota_limits: Mapping[str, int] = {}
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Look by itself from now on."""
        self._thread = threading.Thread(target=self._keep_fresh, name="azure-supply", daemon=True)
        self._thread.start()

    def offerings(self) -> tuple[Offering, ...]:
        """Everything that is sold in the region, as far as it is known."""
        return self._catalogue()

    def quota_left(self) -> Mapping[str, int]:
        """Units left by quota name in lower case, with what was asked for since Azure was read."""
        self._quota_left = self._provider.quota_known() or self._quota_left
        return self._quota_left

    def quota_limits(self) -> Mapping[str, int]:
        """Units of each quota in all, by its name in lower case; after a refusal there is no reading for a while."""
        self._quota_limits = self._provider.quota_limits() or self._quota_limits
        return self._quota_limits

    def close(self) -> None:
        """Stop reading."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(_PATIENCE_S)

    def look(self) -> None:
        """Read from Azure what is old; where it does not answer, the old values stay."""
        try:
            self._provider.quota_left()
            self._catalogue.refresh()
        except Exception as error:
            # The planner goes on with what is known.
            if not self._closing.is_set():
                log.warning("what can be bought cannot be read, the last answers stay: %s", error)

    def _keep_fresh(self) -> None:
        while not self._closing.is_set():
            self.look()
            self._closing.wait(_LOOK_EVERY_S)
