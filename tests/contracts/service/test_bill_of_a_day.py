"""Over a random day of faults the account of the service is the bill of the cloud, to half of a percent."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from remora.states import NodeState
from service.queue.accounts import sums, total_of
from service.queue.cost_causes import Cause, to_ms
from service.queue.costs import By, cost_lines, ranges_of
from service.settings import Settings
from service.store import costs, nodes
from service.store.database import Database
from service.store.migrate import migrate
from tests.contracts.cluster.azure_rig import AzureRig
from tests.contracts.service.azure_storm import Storm
from tests.contracts.service.storm_weather import FAULTS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

#: Seconds of a tick while something happens, and while nothing does.
BUSY_S, QUIET_S = 2.0, 30.0
#: What may go wrong in this day: requests, machines and controllers.  Clocks go right, as a bill is made of times, and
#: no machine is there that no controller asked for.
TROUBLES = (
    *(name for name in FAULTS if not name.startswith("a delete that leaves")),
    *("an eviction", "an eviction", "an eviction of all", "a notice", "a notice", "a machine that breaks"),
    *("a machine that never joins", "a death in the middle", "slow operations", "machines that join late"),
)
#: Hours of a day, and its seed; one short day is among the other tests, and whole ones are in `make soak`.
DAYS = [(1, 1), *(pytest.param(24, seed, marks=pytest.mark.soak) for seed in range(2, 6))]


class Day(Storm):
    """A storm whose controllers have right clocks."""

    def succeed(self) -> None:
        """Another process takes the place of the one that acted."""
        self._begin()


@pytest.fixture
def rig() -> Iterator[AzureRig]:
    with AzureRig(manual_clock=True) as rig:
        rig.knobs(create_s=20.0, delete_s=10.0)
        yield rig


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database(f"sqlite:///{tmp_path / 'remora.db'}")
    migrate(opened)
    yield opened
    opened.close()


@pytest.mark.parametrize(("hours", "seed"), DAYS)
def test_the_account_of_a_day_is_the_bill_of_the_cloud(
    rig: AzureRig, database: Database, tmp_path: Path, hours: int, seed: int
) -> None:
    day = Day(rig, database, Settings(home=tmp_path, nodes=0), seed)
    day.follow(max_nodes=6)
    began_at = rig.clock()
    live_through(day, began_at + hours * 3600.0)
    ends_at = rig.clock()
    assert sum(day.weather.has_happened(name) for name in set(TROUBLES)) >= 3

    rows = database.query(partial(costs.rows_between, begins_at=began_at, ends_at=ends_at))
    spans = list(rows.spans([(to_ms(began_at), to_ms(ends_at))]))
    by_cause = sums(spans, rows.nodes, lambda span, _: span.cause)
    mine = [one for one in rig.cloud.books() if one.node != "node_1"]  # of another cluster
    billed = sum(one.cost(ends_at) for one in mine)
    # Made without an answer, and evicted before any list showed it: the service cannot know of such a machine.
    unseen = {one.node for one in mine} - rows.nodes.keys()
    for node_id in unseen:
        row = database.query(partial(nodes.get_node, node_id=node_id))
        assert row is not None
        assert row.launched_at is None
        assert row.ended_at is not None
    assert billed > 0.01 * hours
    account = total_of(by_cause.values()).usd
    print(
        f"{hours} h: account {account:.6f} USD, bill {billed:.6f} USD, {100 * (account / billed - 1):+.3f} %,"
        f" {len(unseen)} machines never seen"
    )
    assert account == pytest.approx(billed, rel=0.005)
    assert by_cause.keys() >= {Cause.PROVISIONING, Cause.TRAINING, Cause.KEPT}
    assert by_cause[Cause.TRAINING].money > 0.3 * total_of(by_cause.values()).money

    hourly = list(rows.spans(ranges_of(to_ms(began_at), to_ms(ends_at), [By.HOUR])))
    lines = cost_lines(hourly, rows.nodes, [By.HOUR, By.CAUSE, By.JOB])
    assert sum(line.micro_usd for line in lines) == pytest.approx(1e6 * billed, rel=0.005)


def live_through(day: Day, until: float) -> None:
    """Jobs come, things go wrong, and hours pass in which nothing happens."""
    choose, clock = day.random, day.rig.clock
    next_job = next_trouble = quiet_from = clock()
    while clock() < until:
        if clock() >= next_job:
            least = choose.choice([1, 2, 4])
            day.submit(least, least + choose.choice([0, 2, 6]), steps=choose.choice([900, 1800, 3600]))
            next_job = clock() + choose.expovariate(1 / 2400.0)
        if clock() >= next_trouble:
            day.weather.happen(choose.choice(TROUBLES))
            next_trouble = clock() + choose.expovariate(1 / 400.0)
            quiet_from = clock() + 5 * BUSY_S
        is_busy = clock() < quiet_from or any(row.state is not NodeState.READY for row in day.books.living())
        day.tick(
            BUSY_S if is_busy else max(BUSY_S, min(QUIET_S, min(next_job, next_trouble, until) - clock()))
        )
