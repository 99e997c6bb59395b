"""Messages survive any way in which their bytes arrive; what is no message is dropped."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.script.channel import LINE_LIMIT, Decoder, Message, encode

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
MESSAGES = st.dictionaries(st.text(), JSON, max_size=4).map(lambda fields: {**fields, "type": "test"})


def decoded(*chunks: bytes) -> list[Message]:
    decoder = Decoder()
    return [message for chunk in chunks for message in decoder.feed(chunk)]


@given(messages=st.lists(MESSAGES, max_size=6), ends=st.lists(st.integers(0, 500), max_size=8))
def test_any_message_arrives_whole_in_any_chunks(messages: list[Message], ends: list[int]) -> None:
    stream = b"".join(encode(message) for message in messages)
    places = sorted({0, len(stream), *(place for place in ends if place < len(stream))})
    assert decoded(*(stream[a:b] for a, b in pairwise(places))) == messages


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"not json",
        b"[1]",
        b"1",
        b"null",
        b"{}",
        b'{"type": 5}',
        b'{"type": "cut',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"type": "x", "n": ' + b"9" * 5000 + b"}",
        b'{"type": "x", "pad": "' + b"x" * LINE_LIMIT + b'"}',
    ],
)
def test_what_is_no_message_is_dropped_and_the_next_one_is_read(line: bytes) -> None:
    assert decoded(line + b"\n" + encode({"type": "next"})) == [{"type": "next"}]


def test_a_line_that_is_too_long_is_dropped_whole_in_whatever_chunks_it_comes() -> None:
    hidden = b"x" * (LINE_LIMIT + 1), b"y" * 10, b'{"type":"hidden"}\n'
    assert decoded(*hidden, encode({"type": "next"})) == [{"type": "next"}]
    assert decoded(b"".join(hidden), encode({"type": "next"})) == [{"type": "next"}]


def test_a_line_without_an_end_needs_little_memory() -> None:
    decoder = Decoder()
    tracemalloc.start()
    for _ in range(200):
        assert list(decoder.feed(b"x" * 65536)) == []
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * LINE_LIMIT
    assert list(decoder.feed(b"\n" + encode({"type": "next"}))) == [{"type": "next"}]


def test_values_that_json_does_not_know_are_refused_where_they_are_made() -> None:
    with pytest.raises(ValueError, match="JSON"):
        encode({"type": "report", "loss": float("nan")})


def test_a_message_is_one_line() -> None:
    assert encode({"type": "log", "text": "two\nlines"}).count(b"\n") == 1
