"""What a driver believes of kept nodes, whatever it hears and in whatever order."""

from __future__ import annotations

from trainers.driver.kept import FORGOTTEN_S, RENEWED_S, Kept


def test_who_heard_nothing_takes_nothing_for_kept() -> None:
    assert Kept().at(0.0) == {}


def test_what_was_said_last_counts_and_not_what_came_last() -> None:
    kept = Kept()
    kept.hear((2, 5), {"a": "j", "b": "j"}, 10.0)
    kept.hear((2, 4), {"c": "j"}, 11.0)
    kept.hear((1, 99), {"d": "j"}, 12.0)
    assert kept.at(13.0) == {"a": "j", "b": "j"}
    kept.hear((3, 1), {}, 14.0)
    assert kept.at(14.0) == {}


def test_it_is_forgotten_unless_it_is_said_again() -> None:
    kept = Kept()
    kept.hear((1, 1), {"a": "j"}, 0.0)
    kept.hear((1, 1), {"a": "j"}, FORGOTTEN_S - 1.0)
    assert kept.at(FORGOTTEN_S - 0.1) == {"a": "j"}
    assert kept.at(FORGOTTEN_S) == {}, "the same thing that comes twice is no news"
    kept.hear((1, 2), {"a": "j"}, FORGOTTEN_S)
    assert kept.at(2 * FORGOTTEN_S - 0.1) == {"a": "j"}


def test_it_is_said_again_several_times_before_it_is_forgotten() -> None:
    assert FORGOTTEN_S >= 3 * RENEWED_S
