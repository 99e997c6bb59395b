"""How many requests a principal may send: a token bucket for each (pure; times are monotonic seconds)."""

from __future__ import annotations

import ipaddress
import math
from collections import OrderedDict
from dataclasses import dataclass

#: Principals whose buckets are kept; one that asks less often than the others begins with a full bucket.
MOST_KEPT = 10_000


@dataclass(frozen=True)
class Rate:
    """Requests of a second in the long run, and at once after a pause."""

    per_s: float
    burst: float


@dataclass
class _Bucket:
    level: float
    at: float


class Rates:
    """The buckets of one process.  Each costs the same, however many there are."""

    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    @classmethod
    def of(cls, per_s: float) -> Rates | None:
        """Buckets that hold ten seconds of a rate; None: there is no limit."""
        return cls(Rate(per_s, max(10.0 * per_s, 1.0))) if per_s > 0 else None

    def take(self, key: str, now: float) -> float:
        """Count a request: 0.0, or for how many seconds there is none left, and then it was not counted."""
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = _Bucket(self._rate.burst, now)
            if len(self._buckets) > MOST_KEPT:
                self._buckets.popitem(last=False)
        else:
            self._buckets.move_to_end(key)
        gained = max(now - bucket.at, 0.0) * self._rate.per_s
        bucket.level, bucket.at = min(bucket.level + gained, self._rate.burst), max(now, bucket.at)
        if bucket.level >= 1.0:
            bucket.level -= 1.0
            return 0.0
        return (1.0 - bucket.level) / self._rate.per_s


def network_of(address: str) -> str:
    """What is counted as one sender: an address of IPv4, and of IPv6 the network of 64 bits that one host may have."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, 64), strict=False))


def retry_after(wait_s: float) -> str:
    """The value of the header `Retry-After`: whole seconds, at least one."""
    return str(max(math.ceil(wait_s), 1))
