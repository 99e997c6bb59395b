"""Values of secrets in texts: found in every form, whatever they are cut into, and nothing else is changed."""

from __future__ import annotations

import base64
import json
import re
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainers.supervisor.redaction import LONGEST, SHORTEST, Redactor, forms_of

TOKEN = "hf_AbCdEfGhIjKlMnOpQrStUvWxYz0123456789+/="
PHRASE = 'p@ss"wörd/\\x <y>'
KEY = "-----BEGIN KEY-----\nabcdefghijklmnopqrstuvwx\n0123456789ABCDEF\n-----END KEY-----\n"
SECRETS = {"HF_TOKEN": TOKEN, "PHRASE": PHRASE, "KEY": KEY}


@pytest.mark.parametrize("value", SECRETS.values())
@pytest.mark.parametrize(
    "written",
    [
        str,
        lambda value: json.dumps({"token": value}),
        lambda value: json.dumps(value, ensure_ascii=False).replace("/", "\\/"),
        lambda value: f"https://host/path?token={quote(value)}&x=1",
        lambda value: f"token={quote(value, safe='')}",
        lambda value: re.sub("%[0-9A-F]{2}", lambda found: found[0].lower(), quote(value)),
        lambda value: repr(value),
        *(
            lambda value, before=before: base64.b64encode(before.encode() + value.encode()).decode()
            for before in ("", "u:", "me:", "user:")
        ),
        lambda value: base64.urlsafe_b64encode(value.encode() + b"\n").decode(),
        lambda value: base64.encodebytes(value.encode()).decode(),
    ],
)
def test_a_value_is_found_in_every_form_that_programs_print(value: str, written: object) -> None:
    text = written(value)  # type: ignore[operator]
    redacted = Redactor(SECRETS).redact(text)
    assert "[secret " in redacted
    left = [part for part in pieces(value) if part in redacted]
    assert left == [], redacted
    assert not any(part in redacted for part in pieces(base64.b64encode(value.encode()).decode(), 12))


def pieces(value: str, size: int = SHORTEST) -> set[str]:
    """All parts of a value's lines of that many characters."""
    lines = [line for line in value.split("\n") if "-----" not in line]
    return {line[at : at + size] for line in lines for at in range(len(line) - size + 1)}


def test_what_is_no_secret_stays_as_it_is() -> None:
    text = "step 7 loss 0.25 \udce4 hf_AbC p@ss -----BEGIN"
    assert Redactor(SECRETS).redact(text) == text


def test_a_mark_names_the_secret_and_two_values_have_two_marks() -> None:
    redact = Redactor(SECRETS).redact
    assert redact(f"a {TOKEN} b {PHRASE}{TOKEN}") == "a [secret HF_TOKEN] b [secret PHRASE][secret HF_TOKEN]"


def test_a_short_line_of_a_value_is_not_searched_for() -> None:
    redact = Redactor({"PAIR": "short\nlong enough"}).redact
    assert redact("short, long enough") == "short, [secret PAIR]"


def test_texts_in_plain_data_are_redacted_with_their_keys() -> None:
    message = {"type": "report", "metrics": {TOKEN: 1.0}, "list": [TOKEN, 3], "pair": (PHRASE, None)}
    assert Redactor(SECRETS).redact_all(message) == {
        "type": "report",
        "metrics": {"[secret HF_TOKEN]": 1.0},
        "list": ["[secret HF_TOKEN]", 3],
        "pair": ("[secret PHRASE]", None),
    }


values = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=80)
few = st.text("ab\n", min_size=SHORTEST, max_size=3 * LONGEST)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_however_a_stream_is_cut_it_says_what_the_whole_text_says_and_no_value(data: st.DataObject) -> None:
    secrets = data.draw(st.dictionaries(st.sampled_from("ABC"), values | few, min_size=1))
    printed = st.one_of(values, few, st.sampled_from(sorted(secrets.values())))
    text = "".join(data.draw(st.lists(printed, max_size=6)))
    raw = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    redactor = Redactor(secrets)
    stream = redactor.stream()
    ends = zip([0, *cuts], [*cuts, len(raw)], strict=True)
    passed = [stream.feed(raw[first:last]) for first, last in ends]
    whole = b"".join([*passed, stream.finish()])
    assert whole.decode("utf-8", "replace") == redactor.redact(text)
    for value in secrets.values():
        for line in value.splitlines():
            if len(line.encode()) >= SHORTEST and not any(mark in line for mark in "[secret ABC]"):
                assert line.encode() not in whole


@settings(max_examples=100, deadline=None)
@given(values, st.integers(0, 5))
def test_every_form_is_replaced_from_its_first_byte_to_its_last(value: str, before: int) -> None:
    redactor = Redactor({"S": value})
    for form in forms_of(value):
        text = b"\xff" * before + form + b"\xff"
        stream = redactor.stream()
        assert stream.feed(text) + stream.finish() == b"\xff" * before + b"[secret S]" + b"\xff", form


def test_the_places_that_are_looked_at_grow_with_the_text_and_not_with_the_secrets() -> None:
    """Counts lookups: of a text in which every place may begin a value, none is looked at twice."""

    class Counted(dict[bytes, int]):
        lookups = 0

        def get(self, key: bytes, default: int | None = None) -> int | None:  # type: ignore[override]
            self.lookups += 1
            return super().get(key, default)

    def lookups(length: int, secrets: int) -> int:
        redactor = Redactor({f"S{number}": f"{'a' * 200}{number:03}" for number in range(secrets)})
        counted = redactor._parts = Counted(redactor._parts)
        redactor.redact("a" * length)
        return counted.lookups

    assert lookups(20_000, 1) <= 10 * lookups(2000, 1) + 100
    assert lookups(2000, 30) <= 2 * lookups(2000, 1)
