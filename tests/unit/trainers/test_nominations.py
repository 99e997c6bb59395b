"""Which nominations of nodes a driver knows, for messages in any order."""

from __future__ import annotations

from trainers.driver.nominations import FORGOTTEN_S, RENEWED_S, Nominations


def test_without_a_message_no_node_is_nominated() -> None:
    assert Nominations().at(0.0) == {}


def test_the_message_that_was_sent_last_counts_not_the_one_that_arrived_last() -> None:
    nominations = Nominations()
    nominations.update((2, 5), {"a": "j", "b": "j"}, 10.0)
    nominations.update((2, 4), {"c": "j"}, 11.0)
    nominations.update((1, 99), {"d": "j"}, 12.0)
    assert nominations.at(13.0) == {"a": "j", "b": "j"}
    nominations.update((3, 1), {}, 14.0)
    assert nominations.at(14.0) == {}


def test_nominations_expire_unless_they_are_repeated() -> None:
    nominations = Nominations()
    nominations.update((1, 1), {"a": "j"}, 0.0)
    nominations.update((1, 1), {"a": "j"}, FORGOTTEN_S - 1.0)
    assert nominations.at(FORGOTTEN_S - 0.1) == {"a": "j"}
    assert nominations.at(FORGOTTEN_S) == {}, "the same thing that comes twice is no news"
    nominations.update((1, 2), {"a": "j"}, FORGOTTEN_S)
    assert nominations.at(2 * FORGOTTEN_S - 0.1) == {"a": "j"}


def test_nominations_are_repeated_several_times_before_they_expire() -> None:
    assert FORGOTTEN_S >= 3 * RENEWED_S
