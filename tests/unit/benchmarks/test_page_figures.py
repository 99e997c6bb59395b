"""What `make bench-page` measures of the API; the pictures in Chromium are its own matter."""

from __future__ import annotations

import sqlalchemy as sa

from benchmarks import page
from service.store.tables import log_lines

#: A kernel counts the CPU of a process in hundredths of a second: a few events would cost the bare server nothing.
EVENTS = 200


def test_what_an_event_costs_is_measured_of_both() -> None:
    assert page.cost_of_ours(3, EVENTS // 5) > 0.0
    assert page.cost_of_bare(3, EVENTS) > 0.0


def test_a_job_prints_on_all_ranks_and_rarely_on_the_last_one() -> None:
    with page.service_with(1) as (address, _, database):
        database.transact(lambda connection: page.store_lines(connection, 3000))
        of_rank = sa.select(log_lines.c.rank, sa.func.count()).group_by(log_lines.c.rank)
        counts = dict(map(tuple, database.query(lambda c: c.execute(of_rank).all())))
        assert page.answer_ms(f"{address}/v1/jobs/{page.job_id_of(0)}/logs?tail=10&rank=7") > 0.0
    assert sum(counts.values()) == 3000
    assert counts[page.RANKS - 1] == 3
    assert min(count for rank, count in counts.items() if rank < page.RANKS - 1) > 400
