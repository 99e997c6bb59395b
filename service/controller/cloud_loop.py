"""The loops that ask a cloud, for a thread of their own: a cloud that takes its time holds up nothing else.

What it learns for the others it hands over as values that never change.  Nodes, drills, and what is remembered of the
cloud are written by these loops alone.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cluster.provider import ProviderError
from service.controller.connecting import Cluster
from service.loops.drill import drill
from service.loops.look import Hands, Unseen, look
from service.loops.retention import Retention
from service.loops.scale import scale
from service.loops.sight import note_unseen
from service.loops.tick import Tick

log = logging.getLogger(__name__)

#: Seconds for which Ray has to be silent, and looks in a row that it has to leave without an answer, before the
#: connection is made anew: where a cloud is looked at seldom, one lost answer is no reason for it.
RECONNECT_S = 15.0
SILENT_LOOKS = 2


@dataclass(frozen=True)
class Sight:
    """Whether the cluster can be seen through these hands."""

    cluster: Cluster
    #: Since when it cannot, by the monotonic clock; None while it can.
    unseen_since: float | None = None
    #: Looks in a row at which it was Ray that did not say, not the cloud.
    silent_looks: int = 0


class CloudLoop:
    """Rehearses preemptions, scales, and deletes what is old.

    One thread calls `drill`, `scale`, `retain` and `close_left`, any thread the rest.
    """

    def __init__(self, cluster: Cluster, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        #: The hands that are used now, and those that wait for being closed once nothing is asked through them.
        self._cluster = cluster
        self._left: deque[Cluster] = deque()
        self._looked_at = -math.inf
        self._sight = Sight(cluster)
        self._retention = Retention(monotonic)
        #: Why jobs have not all the nodes that they could use, by job id, as the last plan said.
        self.why_short: Mapping[str, str] = {}

    def use(self, cluster: Cluster) -> None:
        """Go on with other hands from the next tick on, and look at once then."""
        if cluster is not self._cluster:
            self._left.append(self._cluster)
        self._cluster = cluster
        self._sight = Sight(cluster)
        self._looked_at = -math.inf

    def drill(self, tick: Tick) -> None:
        """Bring rehearsed preemptions one step on.  Raises Fenced."""
        drill(tick, self._cluster.rehearsal)

    def retain(self, tick: Tick) -> None:
        """Delete some of what is old; here, because the storage may be as slow as a cloud.  Raises Fenced."""
        self._retention.step(tick)

    def scale(self, new_tick: Callable[[], Tick]) -> None:
        """Look, unless it was looked just now, and do what the planner says; its tick begins after the look.

        Raises Fenced.
        """
        cluster, now = self._cluster, self._monotonic()
        if now - self._looked_at < cluster.look_s():
            return
        self._looked_at = now
        hands = Hands(
            cluster.provider,
            cluster.membership,
            cluster.supply,
            cluster.drains,
            cluster.follows_policies,
        )
        try:
            seen = look(hands)
        except Unseen as error:
            self._note_unseen(cluster, error, now)
            note_unseen(new_tick(), str(error))
            return
        self.why_short = scale(new_tick(), hands, seen)
        if cluster is self._cluster:
            self._sight = Sight(cluster)

    def has_lost_ray(self, now: float) -> bool:
        """Ray has been silent for so long, by the monotonic clock, that another connection may help."""
        sight = self._sight
        if sight.unseen_since is None or sight.silent_looks < SILENT_LOOKS:
            return False
        return now - sight.unseen_since > RECONNECT_S

    def close_left(self) -> None:
        """End the connections of the hands that were let go; for the thread that asks through them."""
        while self._left:
            self._left.popleft().close()

    def close(self) -> None:
        """End the connections of all hands; no tick may follow."""
        self.close_left()
        self._cluster.close()

    def _note_unseen(self, cluster: Cluster, error: Unseen, now: float) -> None:
        sight = self._sight
        if cluster is not sight.cluster:
            # It was asked through hands that were let go meanwhile.
            return
        if sight.unseen_since is None:
            log.warning("the cluster cannot be seen, nothing is scaled: %s", error)
        is_ray_silent = not isinstance(error.__cause__, ProviderError)
        silent_looks = sight.silent_looks + 1 if is_ray_silent else 0
        since = now if sight.unseen_since is None else sight.unseen_since
        self._sight = Sight(cluster, since, silent_looks)
