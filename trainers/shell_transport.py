"""The service's way to the shells of attempts: calls of their drivers, of which the newest counts."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray

from remora.process_log import about
from trainers import driver_actors
from trainers.shells import ShellAnswer, ShellTurn, as_answer

log = logging.getLogger(__name__)

#: Seconds that a call waits for answers, and until a driver is asked again that could not be.
_WAIT_S, _PAUSE_S = 0.03, 1.0


@dataclass
class _Asked:
    """A driver, what it was asked last, and its answer that has not come."""

    driver: Any = None
    states: Sequence[ShellTurn] | None = None
    answer: Any = None
    #: Not before this time of the monotonic clock it is asked again.
    again_at: float = 0.0


class RayShellTransport:
    """See `service.interfaces.ShellTransport`; one thread calls it."""

    def __init__(self) -> None:
        self._asked: dict[str, _Asked] = {}
        self._calling = threading.Lock()
        self._has_left = False

    def leave(self) -> None:
        """Call Ray no more, whose connection ends; waits for a call under way."""
        with self._calling:
            self._has_left = True

    def exchange(
        self, order: tuple[int, int], states: Mapping[str, Sequence[ShellTurn]]
    ) -> Mapping[str, Sequence[ShellAnswer]]:
        """See there."""
        with self._calling:
            return {} if self._has_left else self._exchange(order, states)

    def _exchange(
        self, order: tuple[int, int], states: Mapping[str, Sequence[ShellTurn]]
    ) -> Mapping[str, Sequence[ShellAnswer]]:
        self._asked = {one: self._asked.get(one) or _Asked() for one in states}
        for attempt_id, asked in self._asked.items():
            # An answer that is not waited for any more comes again: the driver keeps what was not acknowledged.
            is_due = asked.answer is None or asked.states != states[attempt_id]
            if is_due and time.monotonic() >= asked.again_at:
                self._ask(attempt_id, asked, order, states[attempt_id])
        waited = {asked.answer: one for one, asked in self._asked.items() if asked.answer is not None}
        if not waited:
            return {}
        done, _ = ray.wait(list(waited), num_returns=1, timeout=_WAIT_S)
        return {waited[one]: self._taken(waited[one], self._asked[waited[one]]) for one in done}

    def _ask(
        self, attempt_id: str, asked: _Asked, order: tuple[int, int], states: Sequence[ShellTurn]
    ) -> None:
        asked.states, asked.answer = states, None
        try:
            if asked.driver is None:
                asked.driver = driver_actors.find(driver_actors.name_of(attempt_id))
            if asked.driver is None:
                asked.again_at = time.monotonic() + _PAUSE_S
            else:
                asked.answer = asked.driver.turn_shells.remote(order, list(states))
        except (
            Exception
        ) as error:  # what has the name of the driver may be no driver, or one of an older release
            self._note(attempt_id, asked, error)

    def _taken(self, attempt_id: str, asked: _Asked) -> list[ShellAnswer]:
        reference, asked.answer = asked.answer, None
        try:
            return [as_answer(one) for one in _as_list(ray.get(reference))]
        except Exception as error:  # what a driver raises, or an answer that is refused; it is asked again
            self._note(attempt_id, asked, error)
            return []

    @staticmethod
    def _note(attempt_id: str, asked: _Asked, error: Exception) -> None:
        asked.driver, asked.again_at = None, time.monotonic() + _PAUSE_S
        log.warning(
            "the driver of attempt %s cannot be asked for its shells, it is tried again: %.300r",
            attempt_id,
            error,
            extra=about(attempt=attempt_id),
        )


def _as_list(said: object) -> list[Any]:
    """Raises ValueError for anything else."""
    if type(said) is not list:
        raise ValueError("it is no list of answers about shells")
    return said
