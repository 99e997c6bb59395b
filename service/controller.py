"""The controller process: one thread that scales, dispatches, tracks and sweeps while it holds the lease.

python -m service.controller [--home DIR] [--log-format plain|json]
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from sqlalchemy.exc import DBAPIError

from cluster.provider import Provider, ProviderError
from service.azure_place import CloudUnusable
from service.journal import write_log
from service.loops.account import account
from service.loops.dispatch import dispatch
from service.loops.drill import drill
from service.loops.ports import Drains, Launcher, Membership, Rehearsal, Supply
from service.loops.scale import Hands, Unseen, scale
from service.loops.sight import note_unseen
from service.loops.sweep import sweep
from service.loops.track import track
from service.loops.turn import Turn
from service.settings import Settings
from service.startup import read_settings
from service.store import leases
from service.store.database import Database, why_unreachable
from service.store.errors import Fenced, StoreError
from service.store.ids import new_id
from service.store.migrate import migrate

log = logging.getLogger(__name__)

LEASE = "controller"
#: Seconds between two tries to reach what is not there yet.
RETRY_S = 1.0
#: Seconds for which Ray has to be silent, and looks in a row that it has to leave without an answer, before the
#: connection is made anew: where a cloud is looked at seldom, one lost answer is no reason for it.
RECONNECT_S = 15.0
SILENT_LOOKS = 2


@dataclass(frozen=True)
class Cluster:
    """The hands of the controller."""

    launcher: Launcher
    provider: Provider
    membership: Membership
    #: What nodes can be bought as.
    supply: Supply
    #: Tells Ray to give nodes no more work.
    drains: Drains
    #: Takes nodes for a rehearsal; None where that is not possible.
    rehearsal: Rehearsal | None = None
    #: Nodes are bought and returned as the policies say; False: every pool is kept full.
    follows_policies: bool = False
    #: Seconds between two looks at the cloud at least, now: clouds count how often they are asked.
    look_s: Callable[[], float] = lambda: 0.0
    #: Ends the connections that it has of its own.
    close: Callable[[], None] = lambda: None


class Controller:
    """Runs the loops for whoever holds the lease; any number of them may run, one of them acts."""

    def __init__(self, database: Database, settings: Settings, cluster: Cluster) -> None:
        self._database = database
        self._settings = settings
        self._cluster = cluster
        #: Why jobs have not all the nodes that they could use, by job id, as the last plan said.
        self._why_short: Mapping[str, str] = {}
        self._looked_at = -math.inf
        #: Since when the cluster cannot be seen; None while it can.
        self.unseen_since: float | None = None
        #: Looks in a row at which it was Ray that did not say, not the cloud.
        self._silent_looks = 0
        self.owner = f"{socket.gethostname()[:20]}:{os.getpid()}:{new_id('ctl', time.time())[-8:]}"
        self.lease: leases.Lease | None = None

    def tick(self, now: float) -> bool:
        """One turn at the given time; False when another controller holds the lease.

        A loop that fails is logged and tried again at the next tick; the other loops go on.
        """
        # 1. Lease: renew it, take it over when its owner is silent, or stand by.
        lease = self._database.transact(
            lambda connection: leases.acquire(connection, LEASE, self.owner, now, self._settings.lease_s)
        )
        self._note(lease)
        if lease is None:
            return False
        turn = Turn(self._database, self._settings, lease, now)
        launcher = self._cluster.launcher
        loops: tuple[tuple[str, Callable[[], None]], ...] = (
            # 2. Preemptions to rehearse; first, because their seconds count from the time of the turn.
            ("drill", lambda: drill(turn, self._cluster.rehearsal)),
            # 3. Nodes as wished for.
            ("scale", lambda: self._scale(turn)),
            # 4. What the attempts tell; it may free nodes.
            ("track", lambda: track(turn, launcher)),
            # 5. What jobs use of nodes, by what was just told.
            ("account", lambda: account(turn)),
            # 6. What has ended makes room.
            ("sweep", lambda: sweep(turn, launcher)),
            # 7. Jobs whose turn it is.
            ("dispatch", lambda: dispatch(turn, launcher, self._cluster.supply, self._why_short)),
            # 8. What makes the next start faster.
            ("prepare", launcher.prepare),
        )
        for name, loop in loops:
            try:
                loop()
            except Fenced as error:
                log.warning("work of the %s loop was dropped: %s", name, error)
                self._note(None)
                return False
            except Unseen as error:
                if self.unseen_since is None:
                    log.warning("the cluster cannot be seen, nothing is scaled: %s", error)
                    self.unseen_since = now
                is_ray_silent = not isinstance(error.__cause__, ProviderError)
                self._silent_looks = self._silent_looks + 1 if is_ray_silent else 0
            except Exception:
                log.exception("the %s loop failed, it is tried again", name)
        return True

    def _scale(self, turn: Turn) -> None:
        cluster = self._cluster
        if 0.0 <= turn.now - self._looked_at < cluster.look_s():
            return
        self._looked_at = turn.now
        hands = Hands(
            cluster.provider,
            cluster.membership,
            cluster.supply,
            cluster.drains,
            cluster.follows_policies,
        )
        try:
            self._why_short = scale(turn, hands)
        except Unseen as error:
            note_unseen(turn, str(error))
            raise
        self.unseen_since = None
        self._silent_looks = 0

    def has_lost_ray(self, now: float) -> bool:
        """Ray has been silent for so long that another connection may help."""
        if self.unseen_since is None or self._silent_looks < SILENT_LOOKS:
            return False
        return now - self.unseen_since > RECONNECT_S

    def use(self, cluster: Cluster) -> None:
        """Go on with other hands, after a new connection, and look at once."""
        if cluster is not self._cluster:
            self._cluster.close()
        self._cluster = cluster
        self.unseen_since = None
        self._silent_looks = 0
        self._looked_at = -math.inf

    def close(self) -> None:
        """End the connections of the hands; no turn may follow."""
        self._cluster.close()

    def _note(self, lease: leases.Lease | None) -> None:
        if lease != self.lease:
            if lease is not None:
                log.info("this controller acts now, token %d", lease.token)
            elif self.lease is not None:
                log.warning("another controller acts now; this one stands by")
        self.lease = lease

    def resign(self) -> None:
        """Let another controller in at once."""
        lease = self.lease
        if lease is not None:
            self._database.transact(lambda connection: leases.give_up(connection, lease))
            self._note(None)


def ray_address(settings: Settings) -> str | None:
    """Where the Ray head is, or None while nobody has said it."""
    if settings.ray_address:
        return settings.ray_address
    try:
        return (settings.home / "ray.address").read_text().strip() or None
    except OSError:
        return None


def connect(settings: Settings, address: str) -> Cluster:
    """Connect this process to the Ray cluster and give it hands.  Raises what Ray raises, and CloudUnusable."""
    import ray

    from cluster.drain import RayDrains
    from cluster.membership import RayMembership
    from service.clouds import cloud_of
    from trainers.launch import RayLauncher

    membership = RayMembership()
    # Before Ray: what keeps the cloud from being used is told without a connection that nobody needs.
    cloud = cloud_of(settings, address, membership)
    try:
        if ray.is_initialized():
            ray.shutdown()
        ray.init(address=address, namespace="remora", log_to_driver=False, configure_logging=False)
    except BaseException:
        cloud.close()
        raise
    return Cluster(
        RayLauncher(),
        cloud.provider,
        membership,
        cloud.supply,
        rehearsal=cloud.rehearsal,
        drains=RayDrains(membership),
        follows_policies=cloud.follows_policies,
        look_s=cloud.look_s,
        close=cloud.close,
    )


class Process:
    """The loop around the ticks: connects, reconnects when the head moved, and ends on a signal."""

    def __init__(
        self, settings: Settings, database: Database, connect: Callable[[Settings, str], Cluster]
    ) -> None:
        self._settings = settings
        self._database = database
        self._connect = connect
        self._address: str | None = None
        self._controller: Controller | None = None
        self.stopping = threading.Event()

    def run(self) -> None:
        """Tick until `stopping` is set."""
        complaint = ""
        while not self.stopping.is_set():
            began = time.monotonic()
            said = self._turn()
            if said and said != complaint:
                log.warning(said)
            complaint = said
            pause = RETRY_S if said else max(0.0, self._settings.tick_s - (time.monotonic() - began))
            self.stopping.wait(pause)
        if self._controller is not None:
            self._controller.resign()
            self._controller.close()

    def _turn(self) -> str:
        """One tick; what keeps it from being one, or an empty text."""
        address = ray_address(self._settings)
        if address is None:
            return f"no Ray head is known: waiting for {self._settings.home / 'ray.address'} or REMORA_RAY_ADDRESS"
        if address != self._address:
            try:
                cluster = self._connect(self._settings, address)
            except CloudUnusable as error:
                return f"no node can be made, trying again: {error}"
            except Exception as error:
                reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
                return f"the Ray head at {address} cannot be reached, trying again: {reason}"
            log.info("connected to the Ray head at %s", address)
            self._address = address
            # One controller for the whole process: with another owner's name it would wait for its own lease.
            if self._controller is None:
                self._controller = Controller(self._database, self._settings, cluster)
            self._controller.use(cluster)
        return self._tick(self._controller, time.time())

    def _tick(self, controller: Controller | None, now: float) -> str:
        if controller is None:
            raise AssertionError("unreachable: an address is known only together with a controller")
        try:
            controller.tick(now)
        except DBAPIError as error:
            return f"{why_unreachable(error)}; trying again"
        if controller.has_lost_ray(now):
            # A head that was replaced at the same address does not answer to the old connection.
            self._address = None
            return "the cluster cannot be seen for too long: connecting again"
        return ""


def _arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m service.controller", description=__doc__)
    parser.add_argument("--home", type=Path, help="folder of the embedded service (REMORA_HOME)")
    parser.add_argument("--log-format", choices=("plain", "json"), default="plain")
    return parser.parse_args(words)


def main(words: list[str]) -> int:
    """Run the controller until SIGTERM or SIGINT; the exit status of the process."""
    arguments = _arguments(words)
    write_log(arguments.log_format)
    settings = read_settings({"home": arguments.home})
    if settings is None:
        return 2
    try:
        database = Database(settings.database)
        migrate(database)
    except StoreError as error:
        log.error("%s", error)  # noqa: TRY400 - the sentence says it all
        return 1
    process = Process(settings, database, connect)

    def stop(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001
        process.stopping.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    try:
        process.run()
    finally:
        database.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
