"""What a machine offers to keep jobs apart, and what is made of it."""

from __future__ import annotations

import pytest

from remora.isolation import (
    Isolation,
    IsolationImpossible,
    Offer,
    UidRange,
    decide,
    missing,
    parse_uids,
    sentence,
)
from remora.network_filter import need_users

RANGE = UidRange(first=2_000_000_000, last=2_000_000_999)
ROOT = "Name:\tx\nCapEff:\t000001ffffffffff\n"
ALL_USERS = "         0          0 4294967295\n"
USERS = Offer(uids=RANGE)
NAMESPACES = Offer(uids=None, why_not="it is not root", has_namespaces=True)
NOTHING = Offer(uids=None, why_not="it is not root", why_no_namespaces="it makes none")


def test_auto_takes_users_then_namespaces_then_nothing() -> None:
    assert decide("auto", USERS) == decide("users", USERS) == RANGE
    assert decide("auto", NAMESPACES) == decide("namespaces", NAMESPACES) == "namespaces"
    assert decide("namespaces", Offer(uids=RANGE, has_namespaces=True)) == "namespaces"
    assert decide("auto", NOTHING) is decide("none", USERS) is decide("none", NAMESPACES) is None


@pytest.mark.parametrize(
    ("asked", "offer", "why"),
    [
        ("users", NOTHING, "isolation is users, and it is not root; give the node's service these rights"),
        ("users", NAMESPACES, "isolation is users, and it is not root"),
        ("namespaces", NOTHING, "isolation is namespaces, and it makes none; allow that on this machine"),
    ],
)
def test_what_was_asked_for_is_had_or_no_command_runs(asked: Isolation, offer: Offer, why: str) -> None:
    for refuse in (decide, sentence):
        with pytest.raises(IsolationImpossible, match=f"the node runs no command: {why}"):
            refuse(asked, offer)


def test_one_sentence_says_which_it_is_and_why_it_is_no_more() -> None:
    assert "as users 2000000000 to 2000000999" in sentence("auto", USERS)
    assert "in namespaces of their own, for they can have no users here (it is not root)" in sentence(
        "auto", NAMESPACES
    )
    assert "(it is not root; it makes none)" in sentence("auto", NOTHING)
    assert "isolation is none" in sentence("none", USERS)


def test_rules_for_users_are_not_taken_for_kept_where_commands_have_namespaces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("REMORA_NETWORK_RULES", raising=False)
    need_users("namespaces")
    monkeypatch.setenv("REMORA_NETWORK_RULES", "true")
    need_users(RANGE)
    need_users(None)
    with pytest.raises(IsolationImpossible, match=r"REMORA_NETWORK_RULES is true.*leave it out"):
        need_users("namespaces")


def test_every_right_that_is_missing_is_named() -> None:
    assert missing(ROOT, ALL_USERS, RANGE) == ""
    assert missing("CapEff:\t0000000000000000\n", ALL_USERS, RANGE).endswith("CAP_SYS_PTRACE, CAP_SYS_ADMIN")
    without_admin = f"CapEff:\t{0x1FFFFFFFFFF & ~(1 << 21):016x}\n"
    assert missing(without_admin, ALL_USERS, RANGE) == "it has not the rights of root, nor CAP_SYS_ADMIN"


def test_a_container_without_these_users_is_said_to_have_none() -> None:
    assert (
        missing(ROOT, "0 100000 65536\n", RANGE) == "its user namespace has no users 2000000000 to 2000000999"
    )
    assert missing(ROOT, "0 0 1\n1 2000000000 5\n", UidRange(first=1, last=5)) == ""


@pytest.mark.parametrize("text", ["", "5", "x-y", "2000000999-2000000000", "0-10", "2000-99999999999", "²-³"])
def test_a_range_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="REMORA_JOB_UIDS"):
        parse_uids(text)


def test_a_range_is_two_numbers() -> None:
    assert parse_uids(" 5000-5999 ") == UidRange(first=5000, last=5999)
