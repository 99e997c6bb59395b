"""Which nodes are asked for waiting processes, and for how many."""

from __future__ import annotations

from trainers.ready_processes import NodeUse, plan_prestarts


def test_a_new_node_gets_one_for_each_worker_that_fits_and_no_more_later() -> None:
    node = NodeUse("a", slots=4, free=4)
    used, wanted = plan_prestarts({}, [node], is_quiet=True)
    assert wanted == {"a": 4}
    assert plan_prestarts(used, [node], is_quiet=True) == ({"a": 0}, {})


def test_a_node_that_works_is_left_alone_and_gets_back_what_was_taken_when_it_is_free() -> None:
    used, wanted = plan_prestarts({"a": 0}, [NodeUse("a", slots=4, free=1)], is_quiet=True)
    assert wanted == {}
    used, wanted = plan_prestarts(used, [NodeUse("a", slots=4, free=2)], is_quiet=True)
    assert wanted == {}
    assert plan_prestarts(used, [NodeUse("a", slots=4, free=4)], is_quiet=True) == ({"a": 0}, {"a": 3})


def test_a_big_node_gets_a_few_and_a_lost_one_is_forgotten() -> None:
    used, wanted = plan_prestarts({"gone": 2}, [NodeUse("big", slots=96, free=96)], is_quiet=True)
    assert wanted == {"big": 8}
    assert used == {"big": 0}


def test_in_busy_times_it_is_seen_what_is_taken_and_nothing_started() -> None:
    used, wanted = plan_prestarts({"a": 0}, [NodeUse("a", slots=2, free=0)], is_quiet=False)
    assert wanted == {}
    used, wanted = plan_prestarts(used, [NodeUse("a", slots=2, free=2)], is_quiet=False)
    assert wanted == {}
    assert plan_prestarts(used, [NodeUse("a", slots=2, free=2)], is_quiet=True) == ({"a": 0}, {"a": 2})
