"""The cost of a replay in USD: node-seconds times the price at their time, by capacity type and by day."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime

from cluster.policies.offerings import CapacityType
from cluster.scheduling.view import Spending
from cluster.simulator.nodes import SimNode

DAY_S = 86_400.0


class Ledger:
    """Money in USD; days and months are UTC."""

    def __init__(self, begins_at: float) -> None:
        self._begins_at = begins_at
        self.cost: dict[CapacityType, float] = {CapacityType.SPOT: 0.0, CapacityType.ON_DEMAND: 0.0}
        self.node_s: dict[CapacityType, float] = {CapacityType.SPOT: 0.0, CapacityType.ON_DEMAND: 0.0}
        #: GPU-seconds, or CPU-seconds on nodes without a GPU, that were paid for.
        self.capacity_s = 0.0
        self._days: defaultdict[int, float] = defaultdict(float)
        #: The same of each project, for nodes that were bought for its jobs.
        self._project_days: defaultdict[str, defaultdict[int, float]] = defaultdict(
            lambda: defaultdict(float)
        )

    def day_of(self, now: float) -> int:
        """Days since 1970."""
        return int((self._begins_at + now) // DAY_S)

    def pay(self, node: SimNode, now: float) -> None:
        """Settle a node until now, at the price since it was settled last."""
        seconds = now - node.paid_until
        if seconds <= 0:
            return
        offering = node.stock.offering
        rate = node.stock.price_per_hour / 3600
        node.cost += seconds * rate
        self.cost[offering.capacity] += seconds * rate
        self.node_s[offering.capacity] += seconds
        self.capacity_s += seconds * width(offering.resources)
        at = self._begins_at + node.paid_until
        until = self._begins_at + now
        while at < until:
            day = int(at // DAY_S)
            step = min(until, (day + 1) * DAY_S) - at
            self._days[day] += step * rate
            if node.project is not None:
                self._project_days[node.project][day] += step * rate
            at += step
        node.paid_until = now

    @property
    def total(self) -> float:
        """USD in all."""
        return sum(self.cost.values())

    def spent(self, now: float) -> Spending:
        """USD of this day and of this month, as far as nodes are settled."""
        return _spent(self._days, self.day_of(now))

    def spent_by_project(self, now: float) -> dict[str, Spending]:
        """The same for each project whose jobs nodes were bought for."""
        return {name: _spent(days, self.day_of(now)) for name, days in self._project_days.items()}

    def violations(self, usd_per_day: float | None, usd_per_month: float | None) -> int:
        """Days and months that cost more; None is no limit."""
        return _above(self._days, usd_per_day, usd_per_month)

    def violations_of(self, project: str, usd_per_day: float | None, usd_per_month: float | None) -> int:
        """The same for a project, by the nodes that were bought for its jobs."""
        return _above(self._project_days.get(project, {}), usd_per_day, usd_per_month)


def _above(days: Mapping[int, float], usd_per_day: float | None, usd_per_month: float | None) -> int:
    months: defaultdict[tuple[int, int], float] = defaultdict(float)
    for day, spent in days.items():
        months[_month(day)] += spent
    return sum(
        1
        for periods, limit in ((days.values(), usd_per_day), (months.values(), usd_per_month))
        if limit is not None
        for spent in periods
        if spent > limit + 1e-6
    )


def _spent(days: Mapping[int, float], day: int) -> Spending:
    month = _month(day)
    in_month = sum(usd for one, usd in days.items() if _month(one) == month)
    return Spending(today=days.get(day, 0.0), this_month=in_month)


def _month(day: int) -> tuple[int, int]:
    at = datetime.fromtimestamp(day * DAY_S, UTC)
    return at.year, at.month


def width(resources: Mapping[str, float]) -> float:
    """GPUs, or CPUs where there is no GPU: what use is measured in."""
    return resources.get("GPU") or resources.get("CPU") or 1.0
