"""Texts of others before they reach a terminal."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from remora.terminal_text import neutral, neutral_json
from tests.steps import stopped_after


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, \u00e9, \u4f60\u597d, \U0001f600\tand a tab\nand a line", None),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x9b31mred", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;https://evil.example\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bP1$r\x1b\\text", "text"),
        ("\x1bcreset \x1b(B", "reset "),
        ("\x1b", "\\x1b"),
        ("\x1b[31", "31"),
        ("\x1b]0;no end", "0;no end"),
        ("bell \x07 back \x08 del \x7f c1 \x85 null \x00", "bell \\x07 back \\x08 del \\x7f c1 \\x85 null \\x00"),
        ("abc\u202egnp.exe", "abc\\u202egnp.exe"),
        ("a\u2066b\u2069\u200f\u2028", "a\\u2066b\\u2069\\u200f\\u2028"),
        (" 10%\r 50%\r100%", "100%"),
        (" 10%\r\n 50%\r\r\ndone", " 10%\n 50%\ndone"),
    ],
)  # fmt: skip
def test_a_terminal_obeys_nothing_in_it(text: str, shown: str | None) -> None:
    assert neutral(text) == (text if shown is None else shown)


@given(st.text(alphabet=st.one_of(st.characters(), st.sampled_from("\x1b[]0;m\x07\\\r\n\x9b\u202e"))))
@example("\x1b\x1b[0m[31m")
@example("\x1b[\x1b[0mm")
def test_no_control_is_left_however_they_are_nested(text: str) -> None:
    shown = neutral(text)
    left = {letter for letter in shown if unicodedata.category(letter) in ("Cc", "Zl", "Zp")}
    assert left <= {"\t", "\n"}
    assert not {
        letter for letter in shown if unicodedata.bidirectional(letter) in ("RLO", "LRO", "RLE", "LRE", "RLI")
    }
    assert neutral(shown) == shown


@given(st.dictionaries(st.text(), st.text()))
def test_json_means_the_same(data: dict[str, str]) -> None:
    document = neutral_json(json.dumps(data, ensure_ascii=False, indent=1))
    assert json.loads(document) == data
    assert neutral(document) == document


@pytest.mark.parametrize("chunk", ["\x1b]", "\x1b[0", "\x1b[ ", "\r", "\x1bP\x1b", "\x9d", "\u202e"])
def test_long_texts_cost_no_more_than_their_length(chunk: str) -> None:
    with stopped_after(10.0):
        neutral(chunk * 300_000)
