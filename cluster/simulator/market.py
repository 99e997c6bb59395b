"""What can be bought in a replay: how many nodes of each offering there are, and at what price."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from cluster.policies.offerings import Offering
from cluster.traces.trace import MarketChange


@dataclass(slots=True, eq=False)
class Stock:
    """One offering as it is now."""

    offering: Offering
    #: Nodes that can be had in all; None: without limit.
    nodes: int | None
    price_per_hour: float
    held: int = 0

    @property
    def is_available(self) -> bool:
        """One more can be had."""
        return self.nodes is None or self.held < self.nodes

    @property
    def surplus(self) -> int:
        """Nodes held beyond what there is: the cloud takes them back."""
        return 0 if self.nodes is None else max(0, self.held - self.nodes)


class SimulatedMarket:
    """All offerings of a trace."""

    def __init__(
        self,
        offerings: Iterable[Offering],
        changes: Iterable[MarketChange],
        quotas: Mapping[str, int] | None = None,
    ) -> None:
        named = {change.offering for change in changes if change.nodes is not None}
        self.stocks = {
            one.id: Stock(one, 0 if one.id in named else None, one.price_per_hour) for one in offerings
        }
        self._quotas = quotas or {}
        self._offered: tuple[Offering, ...] | None = None
        #: Offerings whose capacity the trace gives; the others lose nodes by their eviction rate.
        self.traced = frozenset(named)

    def change(self, change: MarketChange) -> Stock:
        """Apply a change."""
        stock = self.stocks[change.offering]
        if change.nodes is not None:
            stock.nodes = change.nodes
        if change.price_per_hour is not None:
            stock.price_per_hour = change.price_per_hour
            self._offered = None
        return stock

    @property
    def quota_left(self) -> Mapping[str, int]:
        """Units of each quota that no node uses: one that starts or is drained uses it like any other."""
        if not self._quotas:
            return self._quotas
        left = dict(self._quotas)
        for stock in self.stocks.values():
            name = stock.offering.quota.lower()
            if name in left:
                left[name] -= stock.held * stock.offering.quota_units
        return left

    def has_quota(self, offering: Offering) -> bool:
        """The quota of the offering allows one node more."""
        if not self._quotas:
            return True
        name = offering.quota.lower()
        return name not in self._quotas or self.quota_left[name] >= offering.quota_units

    @property
    def offered(self) -> tuple[Offering, ...]:
        """All offerings at their current prices."""
        if self._offered is None:
            self._offered = tuple(
                replace(stock.offering, price_per_hour=stock.price_per_hour) for stock in self.stocks.values()
            )
        return self._offered
