"""Whatever a script prints becomes lines that are fit to be stored."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainers.processes.line_cutter import LineCutter

TEXTS = st.sampled_from(
    [b"a", b"step 12", b"\n", b"\r", b"\r\n", b"\0", b"\xff\xfe", "ü".encode(), b"x" * 40]
)
STREAMS = st.lists(TEXTS, max_size=60).map(b"".join)


def cut(chunks: list[bytes], limit: int = 32) -> list[str]:
    cutter = LineCutter(limit)
    return [*(line for chunk in chunks for line in cutter.feed(chunk)), *cutter.finish()]


@pytest.mark.parametrize(
    ("printed", "lines"),
    [
        (b"", []),
        (b"one\ntwo\n", ["one", "two"]),
        (b"no end", ["no end"]),
        (b"\n\n", ["", ""]),
        (b"dos\r\n", ["dos"]),
        (b"dos twice\r\r\n", ["dos twice"]),
        (b"10%\r20%\r100%\n", ["100%"]),
        (b"10%\r20%\r100%\r", ["100%"]),
        (b"nul \0 here\n", ["nul \ufffd here"]),
        (b"\xff broken \xc3\n", ["\ufffd broken \ufffd"]),
        ("grüße\n".encode(), ["grüße"]),
        (b"x" * 40 + b"\n", ["x" * 32 + " [8 more bytes of this line were cut]"]),
        (b"x" * 40 + b"\rshort\n", ["short"]),
    ],
)
def test_lines_of_a_stream(printed: bytes, lines: list[str]) -> None:
    assert cut([printed]) == lines


@given(stream=STREAMS, ends=st.lists(st.integers(0, 400), max_size=20))
def test_the_chunks_in_which_a_stream_arrives_make_no_difference(stream: bytes, ends: list[int]) -> None:
    places = sorted({0, len(stream), *(place for place in ends if place < len(stream))})
    chunks = [stream[a:b] for a, b in pairwise(places)]
    assert cut(chunks) == cut([stream]) == cut([stream[i : i + 1] for i in range(len(stream))])


@given(stream=STREAMS, limit=st.integers(1, 64))
def test_every_line_keeps_within_the_limit_and_can_be_stored(stream: bytes, limit: int) -> None:
    for line in cut([stream], limit):
        kept = line.partition(" [")[0]
        assert len(kept) <= limit
        assert not set(kept) & {"\0", "\n", "\r"}
        line.encode()


def test_megabytes_without_an_end_need_little_memory() -> None:
    cutter = LineCutter(1000)
    chunk = b"y" * 65536
    tracemalloc.start()
    for _ in range(200):
        assert list(cutter.feed(chunk)) == []
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    (line,) = cutter.feed(b"\n")
    assert line == "y" * 1000 + f" [{200 * 65536 - 1000} more bytes of this line were cut]"
    assert peak < 1 << 20
