"""What a measurement of a node means, and with whom a node is measured."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.states import NodeState
from service.queue.preflight_neighbours import Candidate, pairs
from service.queue.preflights import (
    MOST_CHARACTERS,
    MOST_LINKS,
    MOST_TRIES,
    NEIGHBOUR_S,
    Link,
    Measured,
    Preflight,
    PreflightLimits,
    fault_of,
    found_of,
    not_ready_yet,
    read_link,
    read_measured,
    result_of,
    to_measure,
    verdict,
)
from service.queue.rows import NodeRow
from trainers.preflight.product import DIGEST, SIZE, digest_of, left, right

LIMITS = PreflightLimits(limit_s=100.0, mb_per_s=50.0)
SOUND = Measured(device="cpu", gpus=0, memory_bytes=8 * 10**9, digests=((DIGEST,),), product_s=0.002)
GPUS = Measured(
    device="NVIDIA H200", gpus=2, memory_bytes=141 * 10**9, digests=((DIGEST,),) * 2, product_s=0.0002
)


def judged(preflight: Preflight, now: float = 0.0, **given: bool) -> tuple[bool, str] | None:
    asked = {"is_linking": False, "may_link": False, **given}
    found = verdict(preflight, {"CPU": 1.0}, LIMITS, now, **asked)
    return None if found is None else (found.has_passed, found.message)


def row(node_id: str, state: NodeState, **fields: Any) -> NodeRow:
    return NodeRow(id=node_id, pool="cpu", created_at=0.0, state=state, **fields)


def test_the_digest_is_that_of_the_product_as_integers_give_it() -> None:
    columns = [[right(row, column) for row in range(SIZE)] for column in range(SIZE)]
    rows = [[left(row, column) for column in range(SIZE)] for row in range(SIZE)]
    entries = [
        sum(a * b for a, b in zip(one, other, strict=True)) for one in rows[:4] for other in columns[:4]
    ]
    assert max(map(abs, entries)) <= 4 * SIZE
    assert digest_of([1, -2]) == digest_of(b"\x01\0\0\0\xfe\xff\xff\xff")
    assert digest_of(entries) != DIGEST


def test_only_what_has_joined_and_stays_is_measured() -> None:
    rows = [row(state.value, state) for state in NodeState]
    assert [one.id for one in to_measure(rows, dict.fromkeys([one.id for one in rows], True))] == ["joined"]
    assert to_measure(rows, {"joined": False}) == to_measure(rows, {}) == []


def test_no_worker_is_placed_on_what_was_never_ready_also_while_it_drains() -> None:
    rows = [
        row("comes", NodeState.LAUNCHED),
        row("failed", NodeState.DRAINING),
        row("works", NodeState.READY, ready_at=1.0),
        row("leaves", NodeState.DRAINING, ready_at=1.0),
        row("ended", NodeState.FAILED, ended_at=2.0),
    ]
    assert not_ready_yet(rows) == ("comes", "failed")


@pytest.mark.parametrize(
    ("measured", "resources", "why"),
    [
        (SOUND, {"CPU": 4.0}, None),
        (GPUS, {"CPU": 4.0, "GPU": 2.0}, None),
        (GPUS, {"GPU": 8.0}, "it announces 8 GPUs, and PyTorch sees 2"),
        (SOUND, {"GPU": 1.0}, "it announces 1 GPUs, and PyTorch sees 0"),
    ],
)
def test_what_a_node_announces_is_there(
    measured: Measured, resources: dict[str, float], why: str | None
) -> None:
    assert fault_of(measured, resources) == why


def test_one_wrong_product_among_right_ones_on_one_of_several_gpus_is_named() -> None:
    wrong = Measured(
        device="NVIDIA H200", gpus=2, memory_bytes=1, digests=((DIGEST,), (DIGEST, "0" * 64)), product_s=0.0
    )
    assert fault_of(wrong, {}) == "a product of two matrices of small integers was wrong on GPU 1"


def test_a_node_without_pytorch_is_no_sick_one_and_one_whose_pytorch_computes_nothing_is() -> None:
    without = Measured(device="cpu", gpus=None, memory_bytes=1, digests=(), product_s=0.0)
    assert fault_of(without, {"CPU": 1.0}) is None
    assert "without PyTorch" in found_of(without, ())
    broken = Measured(device="cpu", gpus=0, memory_bytes=1, digests=(), product_s=0.0)
    assert fault_of(broken, {"CPU": 1.0}) == "nothing was computed on it"


def test_it_has_until_its_limit_and_a_few_tries() -> None:
    assert judged(Preflight(begun_at=0.0), 100.0) is None
    assert judged(Preflight(begun_at=0.0), 100.1) == (False, "it did not answer within 100 s")
    assert judged(Preflight(begun_at=0.0, tries=MOST_TRIES - 1, why="killed")) is None
    assert judged(Preflight(begun_at=0.0, tries=MOST_TRIES, why="killed")) == (
        False,
        "it could not be measured: killed",
    )


def test_it_waits_for_a_neighbour_that_may_come_for_a_while() -> None:
    known = Preflight(begun_at=0.0, measured=SOUND, known_at=10.0)
    passed = (
        True,
        "a processor with 8.0 GB of memory, products right in 2.0 ms; no neighbour was free to be measured with",
    )
    assert judged(known, 10.0) == passed
    assert judged(known, 10.0 + NEIGHBOUR_S, may_link=True) is None
    assert judged(known, 10.1 + NEIGHBOUR_S, may_link=True) == passed
    assert judged(known, 100.0, is_linking=True) is None
    assert judged(known, 100.1, is_linking=True) == passed, "what it found on itself is what counts"


def test_one_quick_link_is_enough_and_two_slow_ones_are_too_many() -> None:
    slow, other, quick = Link("a", 10.0), Link("b", 20.0), Link("c", 60.0)
    known = {"begun_at": 0.0, "measured": SOUND}
    assert judged(Preflight(links=(slow,), **known), may_link=True) is None
    assert judged(Preflight(links=(slow,), **known)) == (True, found_of(SOUND, [slow]))
    assert judged(Preflight(links=(slow, quick), **known)) == (True, found_of(SOUND, [quick]))
    assert judged(Preflight(links=(slow, other), **known), may_link=True) == (
        False,
        "it exchanges 10 MB/s with a and 20 MB/s with b; REMORA_PREFLIGHT_MB_PER_S asks for 50",
    )
    unknown = tuple(Link(name, None, "no route") for name in "abc"[:MOST_LINKS])
    assert judged(Preflight(links=unknown, **known), may_link=True) == (True, found_of(SOUND, unknown))


def test_what_is_stored_is_its_memory_its_speed_and_its_quickest_link() -> None:
    found = Preflight(begun_at=0.0, measured=GPUS, links=(Link("a", 10.0), Link("b", 20.0), Link("c", None)))
    assert result_of(found) == {
        "device": "NVIDIA H200",
        "gpus": 2,
        "memory_bytes": 141 * 10**9,
        "product_s": 0.0002,
        "neighbour": "b",
        "mb_per_s": 20.0,
    }
    assert result_of(Preflight(begun_at=0.0)) == {}


_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=3),
    max_leaves=8,
)
_FIELDS = ("device", "gpus", "memory_bytes", "digests", "product_s", "bad_memory", "hip", "problem")


@given(st.dictionaries(st.sampled_from(_FIELDS), _JSON) | _JSON)
def test_an_answer_of_any_form_is_read_or_refused(said: Any) -> None:
    with contextlib.suppress(ValueError):
        fault_of(read_measured(json.dumps(said)), {"GPU": 1.0})


@pytest.mark.parametrize("text", ["", "no", "[" * 10_000, " " * (MOST_CHARACTERS + 1), "7"])
def test_what_is_no_answer_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="its answer"):
        read_measured(text)


def test_nodes_that_wait_are_put_together_and_the_odd_one_with_an_idle_one_of_its_pool() -> None:
    waiting = [Candidate(name, "cpu") for name in "abc"] + [Candidate("g", "gpu")]
    idle = [Candidate("x", "gpu2"), Candidate("y", "cpu"), Candidate("z", "cpu")]
    assert pairs(waiting, idle) == [("a", "b"), ("c", "y")]


def test_one_with_a_slow_link_is_measured_with_one_that_has_none() -> None:
    slow = [
        Candidate("a", "cpu", frozenset("b"), is_slow=True),
        Candidate("b", "cpu", frozenset("a"), is_slow=True),
    ]
    assert pairs(slow, []) == []
    assert pairs(slow, [Candidate("y", "cpu"), Candidate("z", "cpu")]) == [("a", "y"), ("b", "z")]
    assert pairs([*slow, Candidate("c", "cpu")], []) == [("c", "a")]


@pytest.mark.parametrize("speed", [float("nan"), float("inf"), -float("inf"), -1.0, 0.0, 1e9])
def test_what_is_no_speed_could_not_be_measured(speed: float) -> None:
    assert read_link("other", speed, None) == Link("other", None, "it answered with no speed")


@given(st.text(max_size=400), st.floats() | st.none())
def test_whatever_a_node_answers_both_databases_take_what_is_stored(text: str, speed: float | None) -> None:
    said = {"device": text, "gpus": 1, "memory_bytes": 1, "digests": [[text]], "product_s": 0.0}
    measured = read_measured(json.dumps(said | {"bad_memory": [text], "hip": text, "problem": text}))
    one = Preflight(begun_at=0.0, measured=measured, links=(read_link("other", speed, text),))
    fault = str(fault_of(measured, {}))
    for stored in (
        json.dumps(result_of(one), allow_nan=False, ensure_ascii=False),
        fault,
        found_of(measured, one.links),
    ):
        assert stored.isprintable()
        stored.encode()


_NAMES = st.lists(st.integers(0, 40), unique=True, max_size=20)


@given(_NAMES, _NAMES, st.randoms(use_true_random=False))
def test_each_node_is_in_one_pair_of_one_pool_and_no_pair_comes_twice(
    new: list[int], old: list[int], random: Any
) -> None:
    tried = {frozenset(random.sample(range(41), 2)) for _ in range(20)}

    def candidate(number: int) -> Candidate:
        before = frozenset(str(one) for pair in tried if number in pair for one in pair if one != number)
        return Candidate(str(number), f"pool-{number % 2}", before, is_slow=bool(before))

    waiting, idle = [candidate(one) for one in new], [candidate(one) for one in old if one not in new]
    found = pairs(waiting, idle)
    named = [one for pair in found for one in pair]
    assert len(named) == len(set(named))
    for one, other in found:
        assert int(one) in new
        assert int(one) % 2 == int(other) % 2
        assert frozenset((int(one), int(other))) not in tried
    left_over = [one for one in waiting if one.id not in named]
    free = [one for one in (*waiting, *idle) if one.id not in named]
    for one in left_over:
        assert all(other.id == one.id or other.pool != one.pool or other.id in one.tried for other in free), (
            "nothing is left that it could be measured with"
        )


class _Counted(str):
    """A name that counts how often it is compared."""

    __slots__ = ()
    count = 0

    def __eq__(self, other: object) -> bool:
        _Counted.count += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def _comparisons(nodes: int) -> int:
    _Counted.count = 0
    pairs([Candidate(_Counted(number), "cpu") for number in range(nodes)], [])
    return _Counted.count


def test_ten_times_as_many_nodes_take_ten_times_as_long() -> None:
    assert _comparisons(1000) <= 12 * _comparisons(100)
