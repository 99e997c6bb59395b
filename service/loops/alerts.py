"""Makes notifications of facts, looks at what is watched, and sends what is due.

Each transaction stores what follows from facts or looks and forgets these, so that a process may be killed between any
two: nothing is lost, and nothing is reported twice.  A notification is sent before it is marked as delivered; one that
was sent by a process that was killed then is sent again, with the same id.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from time import monotonic as machine_monotonic

import sqlalchemy as sa

from service.alerts.destinations import Destination, opened_destination
from service.alerts.sending import Sender
from service.loops.alert_making import look, take_facts
from service.loops.tick import Tick
from service.queue.alerts import AlertRow, NotificationRow
from service.queue.deliveries import LIFETIME_S, Try, TryResult, after_tries
from service.secrets.encryption import CannotOpen, Key
from service.secrets.key_file import KeyFile, KeysUnusable
from service.settings import Settings
from service.store import alerts

log = logging.getLogger(__name__)

#: Alerts that are sent to at the same time, and notifications of one alert in a row.
MOST_AT_ONCE, IN_A_ROW = 8, 10
#: Seconds after which no further notification of that row is begun.
ROW_S = 5.0
#: Seconds for which settled notifications are kept, seconds between two looks for older ones, and rows of a look.
KEPT_S, FORGET_EVERY_S, FORGOTTEN = 90 * 86_400.0, 600.0, 1000


@dataclass(frozen=True)
class _Flight:
    """Tries that are under way for an alert."""

    alert: AlertRow
    tries: Future[list[Try]]


class Alerts:
    """Used in a thread of its own; requests are made by further threads, for which no tick waits."""

    def __init__(self, settings: Settings, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._sender = Sender.of(settings)
        self._key_file = KeyFile(settings.secrets_key)
        self._pool = ThreadPoolExecutor(MOST_AT_ONCE, "alerts")
        self._flights: dict[str, _Flight] = {}
        self._forgot_at = -math.inf
        #: Set when tries have ended.
        self.landed = threading.Event()

    def step(self, tick: Tick) -> None:
        """One step of everything.  Raises Fenced."""
        # 1. Load.
        has_facts, has_watches, has_notifications = tick.load(partial(alerts.what_is_due, now=tick.now))
        # 2. What has happened.
        if has_facts:
            tick.apply(partial(take_facts, tick=tick))
        # 3. What is watched.
        if has_watches:
            tick.apply(partial(look, tick=tick))
        # 4. What became of tries.
        has_news = self._settle(tick)
        # 5. What is due.
        if has_facts or has_watches or has_notifications or has_news:
            self._send(tick)
        self._forget(tick)

    def wait(self, timeout_s: float) -> None:
        """Wait until all tries that are under way have ended; their results are stored by the next step."""
        wait([flight.tries for flight in self._flights.values()], timeout_s)

    @property
    def is_busy(self) -> bool:
        """Whether tries are under way."""
        return any(not flight.tries.done() for flight in self._flights.values())

    def close(self) -> None:
        """Begin no further try; those that are under way end within seconds, and are made again later."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _settle(self, tick: Tick) -> bool:
        """Store what became of tries that have ended; whether some have."""
        self.landed.clear()
        ended = [alert_id for alert_id, flight in self._flights.items() if flight.tries.done()]
        # Also where the lease is lost: then another process makes these tries again.
        flights = {alert_id: self._flights.pop(alert_id) for alert_id in ended}
        outcomes = {
            alert_id: after_tries(flight.alert.failures, tries, tick.now)
            for alert_id, flight in flights.items()
            if (tries := _result(flight))
        }
        if outcomes:
            tick.apply(partial(alerts.settle, outcomes=outcomes, now=tick.now))
        for alert_id, outcome in outcomes.items():
            if outcome.error is not None:
                log.warning("the alert %s could not be sent: %s", alert_id, outcome.error)
        return bool(flights)

    def _send(self, tick: Tick) -> None:
        free = MOST_AT_ONCE - len(self._flights)
        if free <= 0:
            return
        due = tick.load(lambda connection: _due(connection, tick.now, free, tuple(self._flights)))
        if not due:
            return
        oldest = tick.now - LIFETIME_S
        stale = [alert.id for alert, rows in due if not rows or rows[0].created_at < oldest]
        if stale:
            tick.apply(partial(_give_up, alert_ids=stale, before=oldest, now=tick.now))
        keys = self._keys()
        for alert, rows in due:
            if alert.id not in stale:
                self._begin(tick, alert, rows, keys)

    def _begin(
        self, tick: Tick, alert: AlertRow, rows: Sequence[NotificationRow], keys: Sequence[Key]
    ) -> None:
        tick.check()
        try:
            destination = opened_destination(keys, alert)
        except CannotOpen as error:
            tries: Future[list[Try]] = Future()
            tries.set_result([Try(rows[0].id, TryResult.REFUSED, str(error))])
        else:
            tries = self._pool.submit(_send_in_order, self._sender, destination, rows, tick)
            tries.add_done_callback(lambda _: self.landed.set())
        self._flights[alert.id] = _Flight(alert, tries)

    def _keys(self) -> Sequence[Key]:
        try:
            return self._key_file.read()
        except KeysUnusable as error:
            log.warning("%s", error)
            return ()

    def _forget(self, tick: Tick) -> None:
        now = self._monotonic()
        if now - self._forgot_at < FORGET_EVERY_S:
            return
        gone = tick.apply(partial(alerts.forget, before=tick.now - KEPT_S, most=FORGOTTEN))
        self._forgot_at = -math.inf if gone == FORGOTTEN else now


def _send_in_order(
    sender: Sender, destination: Destination, rows: Sequence[NotificationRow], tick: Tick
) -> list[Try]:
    began, tries = machine_monotonic(), list[Try]()
    for row in rows:
        passed = machine_monotonic() - began
        if passed > ROW_S or not tick.is_held():
            break
        tries.append(sender.send(destination, row, tick.now + passed))
        if tries[-1].answer is not TryResult.TAKEN:
            break
    return tries


def _result(flight: _Flight) -> list[Try]:
    """Nothing where the tries were not begun; then they are made later."""
    if flight.tries.cancelled():
        return []
    error = flight.tries.exception()
    if error is not None:
        log.error("the alert %s could not be sent, it is tried again", flight.alert.id, exc_info=error)
        return []
    return flight.tries.result()


def _due(
    connection: sa.Connection, now: float, limit: int, under_way: Sequence[str]
) -> list[tuple[AlertRow, list[NotificationRow]]]:
    found = alerts.due(connection, now, limit, under_way)
    return [(alert, alerts.pending(connection, alert.id, IN_A_ROW)) for alert in found]


def _give_up(connection: sa.Connection, alert_ids: Sequence[str], before: float, now: float) -> None:
    """Notifications that are too old fail; the alert goes on with the others."""
    for alert_id in alerts.find(connection, alert_ids, lock=True):
        alerts.give_up(connection, [alert_id], before, now)
        alerts.plan_next(connection, alert_id, now)
