"""Counts what is kept from the rows, when a controller begins and once a day.

During an upgrade, processes of the release before write rows and count nothing.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import partial

import sqlalchemy as sa

from service.loops.tick import Tick
from service.queue.intake import Kept
from service.store import recounting
from service.store.kept_amounts import project_holder

log = logging.getLogger(__name__)

#: Seconds between two counts.
EVERY_S = 86_400.0
#: Projects whose jobs one step looks at.
PROJECTS = 10


class Recount:
    """Used in one thread; a few projects in each step, and each amount that is wrong in a transaction of its own."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._again_at = -math.inf
        #: The last project that was looked at in this count; None: it has not begun.
        self._after: str | None = None

    def step(self, tick: Tick) -> None:
        """Look at some amounts, when a count is due.  Raises Fenced."""
        now = self._monotonic()
        if now < self._again_at:
            return
        if self._after is None:
            for kind in recounting.OF_ALL:
                self._put_right(tick, kind)
            self._after = ""
        for _ in range(PROJECTS):
            project = tick.load(partial(recounting.next_project, after=self._after))
            if project is None:
                self._after, self._again_at = None, now + EVERY_S
                return
            for kind in recounting.OF_JOBS:
                self._put_right(tick, kind, project_holder(project))
            self._after = project

    def _put_right(self, tick: Tick, kind: Kept, holder: str | None = None) -> None:
        # Looked at first without a lock, as hardly ever one is wrong.
        for one in tick.load(partial(recounting.wrong, kind=kind, holder=holder)):

            def work(connection: sa.Connection, one: str = one) -> bool:
                return recounting.put_right(connection, kind, one)

            if tick.apply(work):
                log.info("what %s holds of %s was not what its rows say, and is now", one, kind)
