"""Points that stand for all of the steps of a job, however many there are."""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa

from remora.views import MetricPoint
from service.store.tables import metrics

#: Steps with metrics that one answer summarises.
SUMMARISED = 20_000
#: Of the sample of more than them.
_PRIME, _FACTOR = 1_000_003, 618_033


def few_points(connection: sa.Connection, job_id: str, after_step: int, most: int) -> list[MetricPoint]:
    """At most that number of points for all of the steps above `after_step`, in order; see `MetricPoint.least`.

    Each stands for equally many steps.  Of more than `SUMMARISED` steps a sample of about that number is read, and the
    last one: reading all of them would hold a connection for as long as the job is long.
    """
    mine = sa.and_(metrics.c.job_id == job_id, metrics.c.step > after_step)
    ends = sa.select(sa.func.min(metrics.c.step), sa.func.max(metrics.c.step), sa.func.count()).where(mine)
    first, last, count = connection.execute(ends).one()
    if first is None:
        return []
    if count > SUMMARISED:
        # A product modulo a prime spreads steps evenly, at whatever distance a script reports them.
        is_drawn = (metrics.c.step % _PRIME) * _FACTOR % _PRIME < _PRIME * SUMMARISED // count
        mine = sa.and_(mine, sa.or_(is_drawn, metrics.c.step == last))
    width = (last - first) // most + 1
    parts: list[_Part] = []
    rows = connection.execution_options(yield_per=1000).execute(
        sa.select(metrics.c.step, metrics.c.at, metrics.c.attempt, metrics.c.world_size, metrics.c.data)
        .where(mine)
        .order_by(metrics.c.step)
    )
    for step, at, attempt, world_size, data in rows:
        number = (step - first) // width
        if not parts or parts[-1].number != number:
            parts.append(_Part(number))
        parts[-1].add(step, at, attempt, world_size, data)
    return [part.point() for part in parts]


class _Part:
    """The summary of several steps in a row."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._last: tuple[int, float, int, int] = (0, 0.0, 0, 0)
        self._values: dict[str, float | None] = {}
        self._least: dict[str, float] = {}
        self._greatest: dict[str, float] = {}

    def add(
        self, step: int, at: float, attempt: int, world_size: int, data: Mapping[str, float | None]
    ) -> None:
        """The next step."""
        self._last = (step, at, attempt, world_size)
        self._values.update(data)
        for name, value in data.items():
            if value is not None:
                self._least[name] = min(value, self._least.get(name, value))
                self._greatest[name] = max(value, self._greatest.get(name, value))

    def point(self) -> MetricPoint:
        """All of them."""
        step, at, attempt, world_size = self._last
        return MetricPoint(
            step=step,
            at=at,
            attempt=attempt,
            world_size=world_size,
            values=self._values,
            least=self._least,
            greatest=self._greatest,
        )
