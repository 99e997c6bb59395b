"""The controller process of one cluster: it scales, dispatches, tracks and sweeps while it holds the lease.

python -m service.controller [--home DIR] [--log-format text|json]

Several threads share the work, so that slow calls do not delay other loops: one renews the lease, one runs the loops
that ask the cloud, one moves what is typed and printed in shells, one makes and sends notifications of alerts, one
sends traces where there is a collector, one says each day which certificate ends, and the main thread runs all others.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType

from sqlalchemy.exc import DBAPIError

from cluster.local.certificates import BY_RESTART, ends_soon
from cluster.local.folders import ClusterFolders
from remora.process_log import write_log
from service.api_certificate import api_ends_soon
from service.clouds.azure_settings import require_places
from service.clouds.place_files import CloudUnusable
from service.controller.cloud_loop import CloudLoop
from service.controller.connecting import ClusterConnection, connect, ray_address
from service.controller.leases_held import ControllerLeases
from service.controller.repeated import RETRY_S, Repeated
from service.loops.alerts import Alerts
from service.loops.dispatch import dispatch
from service.loops.launching import Launching
from service.loops.ledger_entries import write_ledger_entries
from service.loops.listing import Listing, read_list
from service.loops.live_attempts import LiveAttempts
from service.loops.shells import Shells
from service.loops.span_sending import Traces
from service.loops.storage_scopes import StorageScopes
from service.loops.sweep import settle_waits, sweep
from service.loops.tick import Tick
from service.loops.track import track
from service.private_home import make_private
from service.settings import Settings, read_settings
from service.steady_clock import CLOCK
from service.storage_locations import close_folders, open_storage
from service.store.database import Database
from service.store.failures import Fenced, StoreError, is_database_wide, why_failed
from service.store.leases import Lease
from service.store.migrate import migrate
from service.store.nodes import live_offerings
from service.tracing.opening import TracingUnusable, check_tracing

log = logging.getLogger(__name__)

#: What the controller of each cluster does for its own jobs and nodes alone, under the lease of its cluster.
OF_CLUSTER = ("track", "account", "sweep", "dispatch", "storage", "prepare", "shells", "drill", "scale")
#: What one of the controllers does for all clusters, under a lease of its own.
OF_SERVICE = ("waits", "deletion", "retention", "recount", "alerts", "traces")
#: Seconds between two looks for spans to send.
TRACE_EVERY_S = 1.0
#: Seconds between two looks at shells while some are open, in which what is typed waits.
SHELL_EVERY_S = 0.02
#: Seconds between two looks at the certificates of Ray's processes on this machine.
CERTIFICATES_EVERY_S = 86_400.0
#: Seconds that a thread may take to return from a call at the end of the process.
END_S = 3.0


Loops = tuple[tuple[str, Callable[[], None]], ...]


class Controller:
    """Runs the loops while this process holds the lease; of any number of controllers of a cluster one acts.

    `work`, `follow_shells`, `ask_cloud`, `alert` and `trace` run in one thread each; `tick` runs all loops once in the
    thread that calls it.
    """

    def __init__(
        self,
        database: Database,
        settings: Settings,
        connection: ClusterConnection,
        monotonic: Callable[[], float] = time.monotonic,
        holder: ControllerLeases | None = None,
    ) -> None:
        self._database = database
        self._settings = settings
        self._connection = connection
        self._cloud = CloudLoop(connection, monotonic)
        self._launching = Launching(monotonic)
        self._scopes = StorageScopes()
        self.shells = Shells()
        self.listing = Listing(monotonic, partial(read_list, opened=partial(open_storage, settings)))
        self.deletion = self._cloud.deletion
        self.alerts = Alerts(settings, monotonic)
        self.traces = Traces(settings, monotonic)
        #: Held while the dispatch loop or the scale loop decides which jobs get which nodes.
        self._deciding = threading.Lock()
        self.holder = holder or ControllerLeases(database, settings, monotonic)

    @property
    def lease(self) -> Lease | None:
        """The lease, while this controller acts."""
        return self.holder.held()

    def tick(self, now: float) -> bool:
        """Renew the lease and run every loop once at the given time; False when another controller holds the lease.

        Raises DBAPIError when the database does not answer.
        """
        if self.holder.step(now) is None:
            return False

        def clock() -> float:
            return now

        is_mine = self.ask_cloud(clock) and self.work(clock) and self.follow_shells(clock)
        if is_mine:
            self.alert(clock)
            self.trace(clock)
        return is_mine

    def work(self, clock: Callable[[], float] = CLOCK) -> bool:
        """Run once the loops that users wait for; False when another controller holds the lease.  Raises DBAPIError."""
        lease = self.lease
        if lease is None:
            return False
        connection, tick = self._connection, self._begin_tick(lease, clock)
        launcher, live = connection.launcher, LiveAttempts(tick)
        first: Loops = (
            # 1. Records of the drivers; they may free nodes.
            ("track", lambda: track(tick, live, self._launching, launcher)),
            # 2. What jobs use of nodes, by these records.
            ("account", lambda: write_ledger_entries(tick, live)),
            # 3. Ended attempts free their nodes.
            ("sweep", lambda: sweep(tick, live, launcher, self.listing)),
        )
        if not all(self._run(lease, name, loop) for name, loop in first):
            return False
        # 4. Jobs that waited for others.
        self._serve_all(clock, lambda of_all: (("waits", lambda: settle_waits(of_all)),))
        supply, why_short = connection.supply, self._cloud.why_short
        then: Loops = (
            # 5. Jobs that start next.
            (
                "dispatch",
                lambda: dispatch(
                    tick, live, self._launching, launcher, supply, why_short, self._cloud.programs(lease)
                ),
            ),
            # 6. Storages for those that run, and for those that were just started.
            ("storage", lambda: self._scopes.serve(tick, live, connection.serve_storage)),
            # 7. Preparations that make the next start faster.
            ("prepare", lambda: launcher.prepare(lease.token)),
        )
        return all(self._run(lease, name, loop) for name, loop in then)

    def ask_cloud(self, clock: Callable[[], float] = CLOCK) -> bool:
        """Run once the loops that ask the cloud; False when another controller holds the lease.  Raises DBAPIError."""
        self._cloud.close_replaced()
        lease = self.lease
        if lease is None:
            return False
        # 1. Drills first, because their seconds count from the time of the tick.
        is_mine = self._run(lease, "drill", lambda: self._cloud.drill(self._begin_tick(lease, clock)))
        # 2. Nodes, as the planner decides.
        is_mine = is_mine and self._run(
            lease, "scale", lambda: self._cloud.scale(lambda: self._begin_tick(lease, clock))
        )
        # 3. Deletion of old rows and files, and counts of what is kept.
        if is_mine:
            self._serve_all(clock, self._cloud.upkeep)
        return is_mine

    def follow_shells(self, clock: Callable[[], float] = CLOCK) -> bool:
        """Look at all shells once; False when another controller holds the lease.  Raises DBAPIError."""
        lease = self.lease
        if lease is None:
            return False
        tick, transport = self._begin_tick(lease, clock), self._connection.shells
        return self._run(lease, "shells", lambda: self.shells.step(tick, transport))

    def alert(self, clock: Callable[[], float] = CLOCK) -> None:
        """Make and send notifications once, if this controller does so for all clusters.  Raises DBAPIError."""
        self._serve_all(clock, lambda of_all: (("alerts", lambda: self.alerts.step(of_all)),))

    def trace(self, clock: Callable[[], float] = CLOCK) -> None:
        """Send spans of attempts once, if this controller does so for all clusters.  Raises DBAPIError."""
        self._serve_all(clock, lambda of_all: (("traces", lambda: self.traces.step(of_all)),))

    def _serve_all(self, clock: Callable[[], float], loops_of: Callable[[Tick], Loops]) -> None:
        """Run loops that one controller runs for all clusters, if this is the one.  Raises DBAPIError."""
        lease = self.holder.held_for_all()
        if lease is not None:
            all(self._run(lease, name, loop) for name, loop in loops_of(self._begin_tick(lease, clock)))

    def _begin_tick(self, lease: Lease, clock: Callable[[], float]) -> Tick:
        return Tick(
            self._database,
            self._settings,
            lease,
            clock(),
            is_held=lambda: self.holder.is_held(lease),
            deciding=self._deciding,
        )

    def _run(self, lease: Lease, name: str, loop: Callable[[], None]) -> bool:
        """Run one loop; False when its writes are refused, True otherwise: one that fails is tried again."""
        try:
            loop()
        except Fenced as error:
            log.warning("work of the %s loop was dropped: %s", name, error)
            self.holder.suspend(lease)
            return False
        except Exception as error:
            if isinstance(error, DBAPIError) and is_database_wide(error):
                # The database: nothing else would succeed now.
                raise
            log.exception("the %s loop failed, it is tried again", name)
        return True

    def has_lost_ray(self, now: float) -> bool:
        """Ray has not answered for so long, by the monotonic clock, that a new connection may help."""
        return self._cloud.has_lost_ray(now)

    def use(self, connection: ClusterConnection) -> None:
        """Use another connection, and observe the cluster at once."""
        self._connection = connection
        self._cloud.use(connection)

    def leave_ray(self) -> None:
        """The connection to Ray ends: the loops that ask the cloud do not call Ray until there is a new connection."""
        self._connection.leave_ray()

    def close(self) -> None:
        """Close all connections to Ray and the cloud; no tick may follow."""
        self.alerts.close()
        self.traces.close()
        self._cloud.close()

    def resign(self) -> None:
        """Give the lease up, so that another controller takes it at once; no tick may be under way."""
        self.holder.resign()


class Process:
    """The threads around a controller: connects, reconnects when the head moved, and ends on a signal."""

    def __init__(
        self, settings: Settings, database: Database, connect: Callable[[Settings, str], ClusterConnection]
    ) -> None:
        self._settings = settings
        self._database = database
        self._connect = connect
        self._address: str | None = None
        self._controller: Controller | None = None
        self._holder = ControllerLeases(database, settings)
        self._lease_thread = Repeated("lease", self._keep, self._holder.wake)
        self._cloud_thread = self._repeated("cloud", Controller.ask_cloud, settings.tick_s)
        self._shells_thread = Repeated("shells", self._follow_shells, threading.Event())
        self._alerts_thread = self._repeated("alerts", Controller.alert, settings.tick_s)
        self._traces_thread = self._repeated("traces", Controller.trace, TRACE_EVERY_S)
        self._certificates_thread = Repeated("certificates", self._look_at_certificates, threading.Event())
        #: The newest problem of each thread, by its name; empty: none.
        self._complaints: dict[str, str] = {}
        self.stopping = threading.Event()
        #: At its end a thread was still in a call to the cloud or Ray: only the end of the process ends that call.
        self.is_stuck = False

    @property
    def lease(self) -> Lease | None:
        """The lease, while this process acts."""
        return self._holder.held()

    def run(self) -> None:
        """Work until `stopping` is set."""
        # The lease is watched from the beginning, and taken once there is a connection.
        self._holder.report_idle()
        self._lease_thread.start()
        self._cloud_thread.start()
        self._shells_thread.start()
        self._alerts_thread.start()
        self._certificates_thread.start()
        if self._settings.otlp_endpoint:
            self._traces_thread.start()
        while not self.stopping.is_set():
            began = time.monotonic()
            said = self._tick()
            if self._address is None:
                self._holder.report_idle()
            self._complain("work", said)
            pause = RETRY_S if said else max(0.0, self._settings.tick_s - (time.monotonic() - began))
            self.stopping.wait(pause)
        self._end()

    def _complain(self, who: str, said: str) -> None:
        if said and said not in self._complaints.values():
            log.warning(said)
        self._complaints[who] = said

    def _tick(self) -> str:
        """One tick of the main thread; why it could not be done, or an empty text."""
        address = ray_address(self._settings)
        if address is None:
            waits_for = self._settings.cluster_home / "ray.address"
            return f"no Ray head is known: waiting for {waits_for} or REMORA_RAY_ADDRESS"
        if address != self._address:
            self._address = None
            if self._controller is not None:
                self._controller.leave_ray()
            try:
                of_cluster = partial(live_offerings, cluster=self._settings.cluster)
                require_places(self._settings, self._database.query(of_cluster))
                connection = self._connect(self._settings, address)
            except DBAPIError as error:
                return f"{why_failed(error)}; trying again"
            except CloudUnusable as error:
                return f"no node can be made, trying again: {error}"
            except Exception as error:
                reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
                return f"the Ray head at {address} cannot be reached, trying again: {reason}"
            log.info("connected to the Ray head at %s", address)
            self._address = address
            self._go_on_with(connection)
        return self._work(self._controller)

    def _go_on_with(self, connection: ClusterConnection) -> None:
        # One controller for the whole process: under another owner name it would wait for its own lease.
        if self._controller is None:
            self._controller = Controller(self._database, self._settings, connection, holder=self._holder)
        else:
            self._controller.use(connection)

    def _work(self, controller: Controller | None) -> str:
        if controller is None:
            raise AssertionError("unreachable: an address is known only together with a controller")
        self._holder.report_progress()
        try:
            controller.work()
        except DBAPIError as error:
            return f"{why_failed(error)}; trying again"
        if controller.has_lost_ray(time.monotonic()):
            # A head that was replaced at the same address does not answer to the old connection.
            self._address = None
            return "the cluster cannot be seen for too long: connecting again"
        return ""

    def _repeated(self, name: str, step: Callable[[Controller], object], every_s: float) -> Repeated:
        """A thread that does this so often, while there is a controller."""

        def once() -> float:
            began, said = time.monotonic(), ""
            try:
                if self._controller is not None:
                    step(self._controller)
            except DBAPIError as error:
                said = f"{why_failed(error)}; trying again"
            self._complain(name, said)
            return RETRY_S if said else max(0.0, every_s - (time.monotonic() - began))

        return Repeated(name, once, threading.Event())

    def _follow_shells(self) -> float:
        """One step of the thread for shells; seconds until the next one."""
        controller, said = self._controller, ""
        try:
            is_mine = controller is not None and self._address is not None and controller.follow_shells()
        except DBAPIError as error:
            said, is_mine = f"{why_failed(error)}; trying again", False
        self._complain("shells", said)
        if said:
            return RETRY_S
        is_busy = controller is not None and is_mine and controller.shells.is_busy
        return SHELL_EVERY_S if is_busy else self._settings.tick_s

    def _keep(self) -> float:
        """One step of the thread that renews the lease; seconds until the next one."""
        said, lease = "", None
        try:
            lease = self._holder.step(CLOCK())
        except DBAPIError as error:
            said = f"{why_failed(error)}; trying again"
        self._complain("lease", said)
        # A process that waits checks more often, so that a lease that was given up is taken at once.
        return self._holder.pause_s if lease is not None else min(self._holder.pause_s, self._settings.tick_s)

    def _look_at_certificates(self) -> float:
        """Say each day which certificate of Ray's processes or of the API here ends; seconds until the next time."""
        folders = ClusterFolders(self._settings.cluster_home)
        for part in ("head", "member"):
            temporary = folders.temporary_of(part)
            if soon := ends_soon(folders, temporary, CLOCK(), f"Ray's {part}", BY_RESTART):
                log.warning(soon)
        if soon := api_ends_soon(self._settings.tls_certificate, CLOCK()):
            log.warning(soon)
        return CERTIFICATES_EVERY_S

    def _end(self) -> None:
        self._certificates_thread.stop(0.0)
        # A collector that does not answer holds nothing up: after this, its thread sends and writes nothing.
        if self._controller is not None:
            self._controller.traces.close()
        self._traces_thread.stop(TRACE_EVERY_S)
        # The lease is given up last, when nothing is done under it any more.
        if not self._cloud_thread.stop(END_S):
            log.warning("the cloud does not answer: this process ends without it, and its lease runs out")
            self.is_stuck = True
        is_over = self._shells_thread.stop(END_S)
        if not is_over or not self._alerts_thread.stop(END_S) or not self._lease_thread.stop(END_S):
            self.is_stuck = True
        if self.is_stuck:
            return
        try:
            self._holder.resign()
        except DBAPIError as error:
            log.warning("%s; the lease runs out", why_failed(error))
        if self._controller is not None:
            self._controller.close()
            # The interpreter would wait for what receivers of alerts do not answer; it is sent again.
            self.is_stuck = self._controller.alerts.is_busy


def _arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m service.controller", description=__doc__)
    parser.add_argument("--home", type=Path, help="folder of the embedded service (REMORA_HOME)")
    parser.add_argument("--log-format", choices=("text", "json"), help="how it logs (REMORA_LOG_FORMAT)")
    return parser.parse_args(words)


def main(words: list[str]) -> int:
    """Run the controller until SIGTERM or SIGINT; the exit status of the process."""
    arguments = _arguments(words)
    write_log("controller", arguments.log_format)
    settings = read_settings({"home": arguments.home, "log_format": arguments.log_format})
    if settings is None:
        return 2
    try:
        check_tracing(settings)
        make_private(settings.home)
        make_private(settings.cluster_home)
        close_folders(settings)
        database = Database(settings.database)
        migrate(database)
    except (StoreError, TracingUnusable) as error:
        log.error("%s", error)  # noqa: TRY400 - the sentence says it all
        return 2 if isinstance(error, TracingUnusable) else 1
    except OSError as error:
        log.error("cannot start with home %s: %s", settings.home, error)  # noqa: TRY400
        return 1
    # Here: it takes Ray's import, which what is wrong above need not wait for.
    from cluster.ray.restricted_answers import accept_values_only

    accept_values_only()
    process = Process(settings, database, connect)

    def stop(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001
        process.stopping.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    process.run()
    if process.is_stuck:
        # The interpreter would wait for threads that ask the cloud, without a limit.
        logging.shutdown()
        os._exit(0)
    database.close()
    return 0
