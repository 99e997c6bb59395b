"""Requests of one principal: as many at once as its bucket holds, and then its rate."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.api import rates
from service.api.rates import Rate, Rates, network_of, retry_after


def test_after_a_pause_the_whole_burst_is_there_again() -> None:
    buckets = Rates(Rate(per_s=2.0, burst=4.0))
    assert [buckets.take("alice", 0.0) for _ in range(5)] == [0.0, 0.0, 0.0, 0.0, 0.5]
    assert [buckets.take("alice", 100.0) for _ in range(5)] == [0.0, 0.0, 0.0, 0.0, 0.5]


def test_who_waits_as_long_as_it_is_asked_to_is_let_through() -> None:
    buckets = Rates(Rate(per_s=0.3, burst=1.0))
    buckets.take("alice", 0.0)
    wait = buckets.take("alice", 1.0)
    assert buckets.take("alice", 1.0 + wait) == 0.0


def test_one_principal_does_not_take_from_another() -> None:
    buckets = Rates(Rate(per_s=1.0, burst=1.0))
    assert buckets.take("alice", 0.0) == 0.0
    assert buckets.take("alice", 0.0) > 0.0
    assert buckets.take("bob", 0.0) == 0.0


@given(st.lists(st.floats(0, 10), max_size=200), st.floats(0.1, 50), st.floats(1, 20))
def test_no_time_has_more_requests_than_rate_and_burst_allow(
    pauses: list[float], per_s: float, burst: float
) -> None:
    buckets, now, taken = Rates(Rate(per_s, burst)), 0.0, []
    for pause in pauses:
        now += pause
        if buckets.take("alice", now) == 0.0:
            taken.append(now)
    for first, begin in enumerate(taken):
        for count, end in enumerate(taken[first:], start=1):
            assert count <= burst + per_s * (end - begin) + 1e-6


def test_the_number_of_buckets_is_bounded(monkeypatch) -> None:
    monkeypatch.setattr(rates, "MOST_KEPT", 10)
    buckets = Rates(Rate(per_s=1.0, burst=1.0))
    for number in range(100):
        buckets.take(f"user-{number}", float(number))
    assert len(buckets._buckets) == 10


@pytest.mark.parametrize(
    ("address", "other", "is_one"),
    [
        ("2001:db8:0:1::1", "2001:db8:0:1:ffff::2", True),
        ("2001:db8:0:1::1", "2001:db8:0:2::1", False),
        ("fe80::1%eth0", "fe80::2%eth1", True),
        ("192.0.2.1", "::ffff:192.0.2.1", True),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
        ("192.0.2.1", "192.0.2.2", False),
        ("", "testclient", False),
    ],
)
def test_a_host_is_one_sender_by_whichever_of_its_addresses(address: str, other: str, is_one: bool) -> None:
    assert (network_of(address) == network_of(other)) is is_one


def test_retry_after_is_in_whole_seconds() -> None:
    assert [retry_after(wait) for wait in (0.01, 1.0, 1.2)] == ["1", "1", "2"]
