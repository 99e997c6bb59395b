"""The loops that ask the cloud; they run in a thread of their own, so that a slow cloud delays no other loop.

Results for other threads are immutable values.  Only these loops write nodes, drills and the state of the cloud.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cluster.provider import ProviderError
from cluster.scheduling.ray_programs import NO_PROGRAMS, Programs
from service.controller.connecting import ClusterConnection
from service.loops.cluster_events import record_cluster_hidden
from service.loops.deletion import Deletion
from service.loops.drill import drill
from service.loops.observation import ClusterAccess, ObservationFailed, observe_cluster
from service.loops.preflights import PreflightWatch
from service.loops.ray_programs import ProgramWatch
from service.loops.recount import Recount
from service.loops.retention import Retention
from service.loops.scale import scale
from service.loops.tick import Tick
from service.store.leases import Lease

log = logging.getLogger(__name__)

#: Seconds without an answer of Ray, and failed observations in a row, after which the controller connects again: where
#: a cloud is observed seldom, one lost answer is no reason for that.
RECONNECT_S = 15.0
RAY_FAILURES = 2


@dataclass(frozen=True)
class ObservationState:
    """Whether the cluster can be observed through this connection."""

    connection: ClusterConnection
    #: Since when it cannot, by the monotonic clock; None while it can.
    unseen_since: float | None = None
    #: Observations in a row that failed because of Ray, not because of the cloud.
    ray_failures: int = 0


class CloudLoop:
    """Runs drills, scales the cluster, and deletes old rows and files.

    One thread calls `drill`, `scale`, `close_replaced` and what `upkeep` returns, any thread the rest.
    """

    def __init__(self, connection: ClusterConnection, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        #: The connection in use, and replaced ones that are closed once no call through them is under way.
        self._connection = connection
        self._replaced: deque[ClusterConnection] = deque()
        self._observed_at = -math.inf
        self._state = ObservationState(connection)
        self._retention = Retention(monotonic)
        self._recount = Recount(monotonic)
        self.deletion = Deletion(monotonic)
        #: Why jobs do not have all the nodes that they could use, by job id, as the newest plan said.
        self.why_short: Mapping[str, str] = {}
        #: What Ray programs ask for and hold, as the newest observation said; None: it did not ask.
        self._programs: Programs | None = None
        #: Under which lease that was.
        self._observed_under: Lease | None = None
        self._watch = ProgramWatch()
        self._preflights = PreflightWatch()

    def use(self, connection: ClusterConnection) -> None:
        """Use another connection from the next tick on, and observe the cluster at once in that tick."""
        if connection is not self._connection:
            self._replaced.append(self._connection)
        self._connection = connection
        self._state = ObservationState(connection)
        self._observed_at = -math.inf

    def programs(self, lease: Lease) -> Programs | None:
        """What Ray programs ask for and hold; None: this was not asked under this lease, so that it is not known."""
        if self._connection.ray_programs is None:
            return NO_PROGRAMS
        return self._programs if self._observed_under == lease else None

    def drill(self, tick: Tick) -> None:
        """Bring each drill one step on.  Raises Fenced."""
        drill(tick, self._connection.rehearsal)

    def upkeep(self, tick: Tick) -> tuple[tuple[str, Callable[[], None]], ...]:
        """What deletes some rows and files, those of deleted jobs and old ones, and counts some of what is kept.

        A storage may be slow.  They raise Fenced.
        """
        return (
            ("deletion", lambda: self.deletion.step(tick)),
            ("retention", lambda: self._retention.step(tick)),
            ("recount", lambda: self._recount.step(tick)),
        )

    def scale(self, new_tick: Callable[[], Tick]) -> None:
        """Observe the cluster, unless that was done just now, and carry out a plan; its tick begins after that.

        Raises Fenced.
        """
        connection, now = self._connection, self._monotonic()
        if now - self._observed_at < connection.observation_interval_s():
            return
        self._observed_at = now
        access = ClusterAccess(
            connection.provider,
            connection.membership,
            connection.supply,
            connection.drains,
            connection.follows_policies,
            connection.ray_programs if self._watch.is_wanted else None,
            connection.preflights,
            connection.withhold,
        )
        try:
            observation = observe_cluster(access)
        except ObservationFailed as error:
            self._note_failure(connection, error, now)
            record_cluster_hidden(new_tick(), str(error))
            return
        tick = new_tick()
        scaled = scale(tick, access, observation, self._watch)
        self.why_short, self._programs = scaled.why_short, scaled.programs
        self._observed_under = tick.lease
        self._preflights.look(tick, connection.preflights, observation.members)
        if connection is self._connection:
            self._state = ObservationState(connection)

    def has_lost_ray(self, now: float) -> bool:
        """Ray has not answered for `RECONNECT_S`, by the monotonic clock, so that a new connection may help."""
        state = self._state
        if state.unseen_since is None or state.ray_failures < RAY_FAILURES:
            return False
        return now - state.unseen_since > RECONNECT_S

    def close_replaced(self) -> None:
        """Close replaced connections; for the thread that calls through them."""
        while self._replaced:
            self._replaced.popleft().close()

    def close(self) -> None:
        """Close all connections; no tick may follow."""
        self.close_replaced()
        self._connection.close()

    def _note_failure(self, connection: ClusterConnection, error: ObservationFailed, now: float) -> None:
        state = self._state
        if connection is not state.connection:
            # This connection was replaced meanwhile.
            return
        if state.unseen_since is None:
            log.warning("the cluster cannot be seen, nothing is scaled: %s", error)
        is_ray_silent = not isinstance(error.__cause__, ProviderError)
        ray_failures = state.ray_failures + 1 if is_ray_silent else 0
        since = now if state.unseen_since is None else state.unseen_since
        self._state = ObservationState(connection, since, ray_failures)
