"""Which reasons of a plan are stored, and since when they have held."""

from __future__ import annotations

from cluster.scheduling.actions import Wait
from service.queue.plan_reasons import LONGEST, MOST, MOST_OF_EACH, is_news, renewed
from service.queue.rows import WaitKind, WaitRow


def pool(reason: str, name: str = "p") -> Wait:
    return Wait(pool=name, reason=reason)


def row(reason: str, place: int = 0, since: float = 1.0) -> WaitRow:
    return WaitRow(kind=WaitKind.POOL, about="p", place=place, since=since, reason=reason)


def test_pools_come_before_nodes_and_jobs_are_reported_elsewhere() -> None:
    waits = [
        Wait(job_id="j", reason="no capacity"),
        Wait(node_id="n", reason="unused"),
        pool("full"),
        pool("slow"),
        pool("full"),
    ]
    assert renewed([], waits, 5.0) == [
        row("full", 0, 5.0),
        row("slow", 1, 5.0),
        WaitRow(kind=WaitKind.NODE, about="n", place=0, since=5.0, reason="unused"),
    ]


def test_a_reason_has_held_since_it_came_up_whatever_its_numbers_and_its_place() -> None:
    before = [row("2 nodes more go later", 0, 1.0), row("the budget is spent", 1, 2.0)]
    assert renewed(before, [pool("the budget is spent"), pool("1 nodes more go later")], 9.0) == [
        row("the budget is spent", 0, 2.0),
        row("1 nodes more go later", 1, 1.0),
    ]
    assert renewed(before, [pool("something else")], 9.0) == [row("something else", 0, 9.0)]
    assert renewed(before, [pool("the budget is spent", name="other")], 9.0)[0].since == 9.0


def test_amounts_of_money_alone_are_no_news() -> None:
    reported = "8.01 of 10.00 USD of the day are spent"
    assert renewed([row(reported)], [pool(reported.replace("8.01", "8.02"))], 9.0) == [row(reported)]
    assert not is_news(reported, reported.replace("8.01", "8.02"))
    assert is_news("1 of 2 nodes", "2 of 2 nodes")
    assert (is_news(None, "x"), is_news("x", None), is_news(None, None)) == (True, True, False)


def test_what_is_kept_is_bounded() -> None:
    (whole,) = renewed([], [pool("x" * LONGEST)], 1.0)
    assert whole.reason == "x" * LONGEST
    (long,) = renewed([], [pool("x" * (LONGEST + 1))], 1.0)
    assert (len(long.reason), long.reason[-1]) == (LONGEST, "…")
    assert renewed([long], [pool("x" * (LONGEST + 1))], 2.0) == [long]
    assert len(renewed([], [pool(chr(at) * 9) for at in range(97, 110)], 1.0)) == MOST_OF_EACH
    many = [Wait(node_id=f"n{at}", reason="unused") for at in range(MOST + 1)]
    kept = renewed([], [*many, pool("full")], 1.0)
    assert (len(kept), kept[0].kind) == (MOST, WaitKind.POOL)
