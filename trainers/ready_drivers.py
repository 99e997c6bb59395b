"""A pool of drivers that wait for attempts with everything imported, so that the next jobs need not start theirs.

The name of each contains the lease token under which its controller made it.  Only that controller gives it to an
attempt, and only a later controller ends it.  Ray's internal store decides between the two: each driver has an entry
there, and the controller that deletes the entry has the driver.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import ray
from ray.experimental import internal_kv

from trainers import driver_actors
from trainers.ray_train import StartLimit

#: How their names begin; the lease token follows, and what distinguishes one from another.
_PREFIX = "driver-ready-"
#: How the names began of those that an earlier version left, which have no token in their names.
_EARLIER_PREFIX = "driver-spare-"
_ENTRY = b"ready-driver:"


@dataclass(frozen=True)
class PoolChange:
    """Which ready drivers to end, by their names, and whether to start one."""

    end: tuple[str, ...]
    starts: bool


@dataclass(frozen=True)
class ReadyDriver:
    """A driver of the pool, and what its controller knows of its start."""

    name: str
    #: What says that it is up; None once it is.
    answer: Any
    limit: StartLimit


def plan_pool(
    token: int, own: Sequence[str], found: Collection[str], *, most: int, slots: int, may_start: bool
) -> PoolChange:
    """Which drivers the controller with that lease token ends, and whether it starts one (pure).

    `own` are those that it has made and not given away, oldest first; `found` are all that there are and that no
    attempt has.  It keeps one for each worker that the nodes could have, `slots`, and not more than `most`; where no
    node has joined yet, one.  It starts one at a time, while it `may_start` any.
    """
    wanted = min(most, max(1, slots))
    # Another one with the same token was made before this process reconnected to Ray.
    left = (name for name in found if token_of(name) <= token and name not in own)
    return PoolChange(
        end=(*sorted(left), *own[wanted:]),
        starts=may_start and len(own) < wanted,
    )


def token_of(name: str) -> int:
    """The lease token in a ready driver's name; less than any when there is none."""
    token = name.removeprefix(_PREFIX).partition("-")[0]
    return int(token) if name.startswith(_PREFIX) and token.isdecimal() else -1


class ReadyDrivers:
    """Keeps drivers ready in the Ray cluster that this process is connected to."""

    def __init__(self, most: int) -> None:
        """`most` is how many are kept, 0 for none."""
        self._most = most
        self._token = -1
        #: Those of this process by name, oldest first.
        self._own: dict[str, ReadyDriver] = {}

    def look(self, token: int, slots: int, *, may_start: bool, heads: frozenset[str], now: float) -> None:
        """End what is left of earlier tokens, and start one where one is missing; does not wait for them.

        To be called by the controller that acts, under the token of its lease.  `slots`: workers that the nodes could
        have.  `heads`: of Ray that are alive at `now`, in seconds of a monotonic clock.
        """
        if token != self._token:
            # A controller that acted meanwhile has ended them, or is about to.
            self._token, self._own = token, {}
        living, entries = _living(), _entries()
        self._own = {name: up for name, up in self._own.items() if name in living and name in entries}
        late = [name for name in self._own if self._is_late(name, heads, now)]
        found = living | entries
        if found - self._own.keys():
            found -= driver_actors.names_of_attempts()
        change = plan_pool(
            token,
            list(self._own),
            found,
            most=self._most,
            slots=slots,
            may_start=may_start and not self._is_one_coming(),
        )
        for name in (*change.end, *(one for one in late if one not in change.end)):
            self._own.pop(name, None)
            # One without an entry was taken by a controller that has not written down for which attempt: it is dead,
            # or it was stopped, and then its attempt gets another driver under that name.
            _claim(name)
            driver_actors.end(name)
        if change.starts:
            self._start(heads)

    def take(self) -> ReadyDriver | None:
        """Take a driver out of the pool, one that is up if there is one; None when the pool is empty."""
        while self._own:
            name = next((one for one in self._own if self._is_up(one)), next(iter(self._own)))
            taken = self._own.pop(name)
            if _claim(name) and driver_actors.find(name) is not None:
                return taken
        return None

    def _is_late(self, name: str, heads: frozenset[str], now: float) -> bool:
        """It may never begin: Ray's head was started again after it had been asked for."""
        if self._is_up(name):
            return False
        own = self._own[name]
        limit = own.limit.seen(heads, now)
        is_late = limit.is_over(now) and driver_actors.is_pending(name)
        self._own[name] = replace(own, limit=limit.renewed(now) if limit.is_over(now) else limit)
        return is_late

    def _start(self, heads: frozenset[str]) -> None:
        name = f"{_PREFIX}{self._token}-{uuid4().hex}"
        # The entry first: a driver without one belongs to no controller.
        internal_kv._internal_kv_put(_ENTRY + name.encode(), b"1", namespace=driver_actors.KV_NAMESPACE)
        self._own[name] = ReadyDriver(name, driver_actors.make(name).poll.remote(0, 1), StartLimit(heads))

    def _is_one_coming(self) -> bool:
        return not all(self._is_up(name) for name in self._own)

    def _is_up(self, name: str) -> bool:
        answer = self._own[name].answer
        if answer is not None and ray.wait([answer], timeout=0)[0]:
            # Also when it died: then the next look finds it gone.
            answer = None
            self._own[name] = replace(self._own[name], answer=None)
        return answer is None


def _claim(name: str) -> bool:
    """True for the one caller that may take or end that driver."""
    key = _ENTRY + name.encode()
    return bool(internal_kv._internal_kv_del(key, namespace=driver_actors.KV_NAMESPACE))


def _living() -> set[str]:
    prefixes = (_PREFIX, _EARLIER_PREFIX)
    return {name for name in ray.util.list_named_actors() if name.startswith(prefixes)}


def _entries() -> set[str]:
    keys = internal_kv._internal_kv_list(_ENTRY, namespace=driver_actors.KV_NAMESPACE)
    return {key.removeprefix(_ENTRY).decode() for key in keys}
