"""What the page makes of a trace of PyTorch's profiler: tracks, depths, and which operator took how long itself."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.page_scripts import Script, page_script


@pytest.fixture(scope="module")
def script() -> Iterator[Script]:
    with page_script("trace.js") as script:
        yield script


def span(name: str, begin: float, lasted: float, thread: Any = 7, kind: str = "cpu_op") -> dict[str, Any]:
    place = {"pid": 1, "tid": thread, "cat": kind}
    return {"ph": "X", "name": name, "ts": begin, "dur": lasted, **place}


def test_an_operator_has_the_time_with_and_without_what_it_calls(script: Script) -> None:
    events = [
        span("aten::mm", 12, 5),
        span("aten::linear", 10, 20),
        span("aten::t", 18, 2),
        span("aten::linear", 40, 10),
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 7, "args": {"name": "thread 7 (python)"}},
    ]
    found = script.call("traceOf", events)
    assert (found["from"], found["to"]) == (10, 50)
    (track,) = found["tracks"]
    assert (track["name"], track["depth"]) == ("thread 7 (python)", 2)
    assert [(one["name"], one["depth"]) for one in track["spans"]] == [
        ("aten::linear", 0),
        ("aten::mm", 1),
        ("aten::t", 1),
        ("aten::linear", 0),
    ]
    assert [(one["name"], one["calls"], one["total"], one["self"]) for one in found["operators"]] == [
        ("aten::linear", 2, 30, 23),
        ("aten::mm", 1, 5, 5),
        ("aten::t", 1, 2, 2),
    ]


def test_what_calls_itself_is_counted_once_with_what_it_calls(script: Script) -> None:
    (one,) = script.call("traceOf", [span("f", 0, 10), span("f", 2, 4)])["operators"]
    assert (one["calls"], one["total"], one["self"]) == (2, 10, 10)
    again = script.call("traceOf", [span("f", 0, 10), span("f", 0, 5, thread=8)])["operators"]
    assert again[0]["total"] == 15, "two threads are beside each other"


def test_kernels_are_apart_from_operators_and_the_recording_itself_is_none(script: Script) -> None:
    events = [
        span("copy", 0, 3),
        span("copy", 1, 2, thread="stream 7", kind="gpu_memcpy"),
        span("PyTorch Profiler (0)", 0, 99, thread="t", kind="Trace"),
    ]
    found = script.call("traceOf", events)
    assert {(one["name"], one["isGpu"], one["self"]) for one in found["operators"]} == {
        ("copy", False, 3),
        ("copy", True, 2),
    }
    assert len(found["tracks"]) == 2


@pytest.mark.parametrize(
    "bad", [None, 1, "x", [], {}, {"ph": "X"}, {"ph": "X", "ts": 1, "dur": -1}, {"ph": "M"}]
)
def test_what_is_no_span_is_left_out(script: Script, bad: Any) -> None:
    assert script.call("traceOf", [bad]) is None
    assert len(script.call("traceOf", [bad, span("f", 0, 1)])["operators"]) == 1


def test_the_times_of_operators_sum_to_that_of_their_threads(script: Script) -> None:
    chance = random.Random(5)
    events: list[dict[str, Any]] = []

    def add(begin: float, end: float, depth: int) -> None:
        events.append(span(f"f{chance.randrange(5)}", begin, end - begin))
        while depth < 6 and end - begin > 8 and chance.random() < 0.8:
            first = begin + chance.randrange(1, 4)
            last = first + chance.randrange(1, max(2, int((end - first) / 2)))
            add(first, last, depth + 1)
            begin = last

    for number in range(20):
        add(1000 * number, 1000 * number + 900, 0)
    chance.shuffle(events)
    operators = script.call("traceOf", events)["operators"]
    assert sum(one["self"] for one in operators) == pytest.approx(20 * 900)
    assert all(0 <= one["self"] <= one["total"] for one in operators)


def test_of_spans_within_a_pixel_one_is_drawn_in_each_depth(script: Script) -> None:
    (track,) = script.call("traceOf", [span("f", at, 1) for at in range(1000)])["tracks"]
    few = script.call("drawn", track["spans"], 0, 1000, 100)
    assert 5 <= len(few) <= 11
    assert len(script.call("drawn", track["spans"], 100, 110, 0.01)) == 12, "and those at the edges"


def test_deep_calls_cost_a_look_each(script: Script) -> None:
    """A script may nest its operators as deep as it likes."""
    deep = [span("f", at, 40_000 - 2 * at) for at in range(20_000)]
    assert script.call("traceOf", deep)["tracks"][0]["depth"] == 20_000
