"""Pages of lists: as many items as were asked for, or as fit."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from remora.views import Event, Page
from service.api.pages import PAGE_BYTES, write_page
from service.api.parameters import read_number_cursor


def event(seq: int, message: str = "") -> Event:
    return Event(seq=seq, job_id="job_1", at=1.5, kind="job.queued", message=message, data={"é": [seq]})


def page_of(events: Iterator[Event], limit: int) -> Page[Event]:
    written = write_page(events, lambda one: one, lambda one: one.seq, limit)
    assert json.loads(written).keys() == {"items", "next_cursor"}
    return Page[Event].model_validate_json(written)


@pytest.mark.parametrize(
    ("there", "limit", "is_last"), [(0, 5, True), (4, 5, True), (5, 5, False), (9, 5, False)]
)
def test_a_page_with_as_many_items_as_asked_for_says_where_the_next_begins(
    there: int, limit: int, is_last: bool
) -> None:
    page = page_of(iter([event(seq) for seq in range(1, there + 1)]), limit)
    assert page.items == [event(seq) for seq in range(1, min(there, limit) + 1)]
    assert (page.next_cursor is None) is is_last
    if not is_last:
        assert read_number_cursor(page.next_cursor, 0) == limit


def test_a_page_ends_where_it_is_full_and_asks_for_no_more_rows() -> None:
    asked: list[int] = []

    def events() -> Iterator[Event]:
        for seq in range(1, 100):
            asked.append(seq)
            yield event(seq, "x" * (PAGE_BYTES // 4))

    page = page_of(events(), 1000)
    assert [one.seq for one in page.items] == [1, 2, 3, 4]
    assert read_number_cursor(page.next_cursor, 0) == 4
    assert asked == [1, 2, 3, 4, 5]


def test_one_item_that_is_larger_than_a_page_has_a_page_of_its_own() -> None:
    page = page_of(iter([event(1, "x" * 2 * PAGE_BYTES), event(2)]), 10)
    assert [one.seq for one in page.items] == [1]
    assert page.next_cursor is not None


def test_the_last_item_may_fill_a_page() -> None:
    page = page_of(iter([event(1, "x" * 2 * PAGE_BYTES)]), 10)
    assert (len(page.items), page.next_cursor) == (1, None)
