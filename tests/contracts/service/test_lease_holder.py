"""Who keeps a lease holds it alone, and gives it up when nothing is done under it."""

from __future__ import annotations

import random

import pytest
from sqlalchemy.exc import OperationalError

from service.controller.lease_holder import STALLED_S, LeaseHolder
from service.store.database import Database

LEASE_S = 5.0


class Clocks:
    """Each process has a monotonic clock that began at another time."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.now = 0.0

    def holder(self, owner: str, began: float = 0.0) -> LeaseHolder:
        return LeaseHolder(self.database, "controller", owner, LEASE_S, lambda: began + self.now)


@pytest.fixture
def clocks(database: Database) -> Clocks:
    return Clocks(database)


def test_two_never_hold_it_at_once_whatever_happens_between_their_steps(clocks: Clocks) -> None:
    chance = random.Random(7)
    holders = [clocks.holder("a", 1e6), clocks.holder("b", 5.0)]
    owners = set()
    for _ in range(150):
        clocks.now += chance.choice([0.1, 1.0, 1.0, 4.0, 7.0])
        holder = chance.choice(holders)
        # The times of day are anybody's guess.
        holder.step(chance.uniform(0.0, 2e9))
        held = [one for one in holders if one.held() is not None]
        assert len(held) <= 1
        owners |= set(held)
    assert len(owners) == 2, "both have had it"


def test_who_stands_still_in_its_work_lets_another_one_take_over(clocks: Clocks) -> None:
    stands, other = clocks.holder("a"), clocks.holder("b")
    stands.report_progress()
    assert stands.step(0.0) is not None
    while clocks.now < STALLED_S - 1.0:
        clocks.now += 1.0
        assert stands.step(0.0) is not None
        assert other.step(0.0) is None
    for _ in range(int(LEASE_S) + 2):
        clocks.now += 1.0
        stands.step(0.0)
        other.step(0.0)
    assert (stands.held(), other.held() is not None) == (None, True)
    stands.report_progress()
    assert stands.step(0.0) is None, "another one acts now"


def test_who_cannot_act_yet_watches_so_that_it_can_begin_at_once(clocks: Clocks) -> None:
    clocks.holder("gone").step(0.0)
    holder = clocks.holder("next")
    holder.report_idle()
    for _ in range(int(LEASE_S) + 1):
        assert holder.step(0.0) is None
        clocks.now += 1.0
    holder.report_progress()
    assert holder.wake.is_set()
    assert holder.step(0.0) is not None


def test_a_database_that_is_away_for_less_than_a_lease_lasts_costs_nothing(
    clocks: Clocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = clocks.holder("a")
    lease = holder.step(0.0)

    def away(_: object) -> None:
        raise OperationalError("", None, Exception("away"))

    with monkeypatch.context() as patched:
        patched.setattr(clocks.database, "transact", away)
        clocks.now += LEASE_S - 1.0
        with pytest.raises(OperationalError):
            holder.step(0.0)
        assert holder.held() == lease
        clocks.now += 1.0
        assert holder.held() is None, "another one may act from now on"
    assert holder.step(0.0) == lease, "none did"


def test_what_was_refused_is_not_tried_again_before_the_lease_was_renewed(clocks: Clocks) -> None:
    holder = clocks.holder("a")
    lease = holder.step(0.0)
    assert lease is not None
    holder.suspend(lease)
    assert not holder.is_held(lease)
    assert holder.step(0.0) == lease
    assert holder.is_held(lease)
