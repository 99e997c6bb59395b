"""Values of secrets in texts: found in every form, whatever they are cut into, and nothing else is changed."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainers.supervisor.redaction import LONGEST, SHORTEST, Redactor, forms_of

TOKEN = "hf_AbCdEfGhIjKlMnOpQrStUvWxYz0123456789+/="
PHRASE = 'p@ss"wörd/\\x <y>'
KEY = "-----BEGIN KEY-----\nabcdefghijklmnopqrstuvwx\n0123456789ABCDEF\n-----END KEY-----\n"
SECRETS = {"HF_TOKEN": TOKEN, "PHRASE": PHRASE, "KEY": KEY}


#: How a program writes a value, and all that may be left of that.
WRITTEN: list[tuple[Callable[[str], str], str]] = [
    (str, ""),
    (lambda value: json.dumps({"token": value}), '{"token": ""}'),
    (lambda value: json.dumps(value, ensure_ascii=False).replace("/", "\\/"), '""'),
    (lambda value: f"https://host/path?token={quote(value)}&x=1", "https://host/path?token=&x=1"),
    (lambda value: f"token={quote(value, safe='')}", "token="),
    (lambda value: re.sub("%[0-9A-F]{2}", lambda found: found[0].lower(), quote(value)), ""),
    (lambda value: f"<{repr(value)[1:-1]}>", "<>"),
    (lambda value: base64.b64encode(value.encode()).decode(), ""),
    (lambda value: base64.urlsafe_b64encode(value.encode() + b"\n").decode(), ""),
    (lambda value: base64.b64encode(b"u:" + value.encode()).decode(), "dTp"),
    (lambda value: base64.b64encode(b"me:" + value.encode()).decode(), "bWU6"),
    (lambda value: base64.b64encode(b"user:" + value.encode()).decode(), "dXNlcj"),
]


@pytest.mark.parametrize("value", [TOKEN, PHRASE])
@pytest.mark.parametrize(("written", "rest"), WRITTEN)
def test_a_value_is_replaced_in_every_form_that_programs_print(
    value: str, written: Callable[[str], str], rest: str
) -> None:
    redacted = Redactor({"S": value}).redact(written(value))
    before, mark, after = redacted.partition("[secret S]")
    assert mark
    # The first character of base64 behind others, and the last one, have bits of what stands beside the value.
    assert re.fullmatch(f"{re.escape(rest)}[A-Za-z0-9]{{0,1}}=*", before + after) or before + after == rest


@pytest.mark.parametrize("wrapped", [base64.encodebytes, lambda raw: _wrapped(raw, 64)])
def test_lines_of_wrapped_base64_are_replaced(wrapped: Callable[[bytes], bytes]) -> None:
    value = "".join(chr(33 + 7 * number % 90) for number in range(150))
    redacted = Redactor({"S": value}).redact(wrapped(value.encode()).decode())
    assert redacted == "[secret S]\n" * redacted.count("\n")


@pytest.mark.parametrize("value", [TOKEN, PHRASE])
@pytest.mark.parametrize("before", range(4))
@pytest.mark.parametrize("after", range(4))
def test_a_value_between_others_is_replaced_in_base64(value: str, before: int, after: int) -> None:
    written = base64.b64encode(b"x" * before + value.encode() + b"y" * after).decode()
    redacted = Redactor({"S": value}).redact(written)
    # Characters with bits of what stands beside the value are left: six bits are one.
    first, last = -(-before * 8 // 6), (before + len(value.encode())) * 8 // 6
    assert redacted == f"{written[:first]}[secret S]{written[last:] if after else ''}"


def _wrapped(raw: bytes, width: int) -> bytes:
    whole = base64.b64encode(raw)
    return b"".join(whole[at : at + width] + b"\n" for at in range(0, len(whole), width))


def test_lines_of_a_value_are_replaced_each_by_itself_and_escaped_together() -> None:
    redact = Redactor({"KEY": KEY}).redact
    assert redact(KEY) == "[secret KEY]\n" * 4
    assert redact(KEY.splitlines()[2]) == "[secret KEY]"
    assert redact(json.dumps(KEY)) == '"[secret KEY]"'


def test_a_value_twice_has_one_mark_wherever_the_stream_is_cut() -> None:
    redactor = Redactor({"A": TOKEN, "B": PHRASE})
    text = f"x{TOKEN}{TOKEN}{PHRASE}{PHRASE[:-1]} {TOKEN}".encode()
    whole = redactor.redact(text.decode()).encode()
    assert whole == f"x[secret A][secret B]{PHRASE[:-1]} [secret A]".encode()
    for size in (1, 2, 3, 31, 32, 33):
        stream = redactor.stream()
        passed = [stream.feed(text[at : at + size]) for at in range(0, len(text), size)]
        assert b"".join([*passed, stream.finish()]) == whole, size
    for cut in range(len(text)):
        stream = redactor.stream()
        assert stream.feed(text[:cut]) + stream.feed(text[cut:]) + stream.finish() == whole, cut


def test_what_follows_a_line_break_is_passed_on_at_once() -> None:
    stream = Redactor({"A": TOKEN}).stream()
    assert stream.feed(b"a line\nhf_") == b"a line\n"
    assert stream.feed(b"other" + b"." * LONGEST) == b"hf_other."
    assert stream.finish() == b"." * (LONGEST - 1)


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


@settings(max_examples=150)
@given(st.data())
def test_however_a_stream_is_cut_it_says_what_the_whole_text_says_and_no_value(data: st.DataObject) -> None:
    secrets = data.draw(st.dictionaries(st.sampled_from("ABC"), values | few, min_size=1))
    printed = st.one_of(values, few, st.sampled_from(sorted(secrets.values())))
    text = "".join(data.draw(st.lists(printed, max_size=6)))
    raw = text.encode()
    ends = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    redactor = Redactor(secrets)
    stream = redactor.stream()
    parts = zip([0, *ends], [*ends, len(raw)], strict=True)
    passed = [stream.feed(raw[first:last]) for first, last in parts]
    whole = b"".join([*passed, stream.finish()])
    assert whole.decode("utf-8", "replace") == redactor.redact(text)
    for value in secrets.values():
        for line in value.splitlines():
            if len(line.encode()) >= SHORTEST and not any(mark in line for mark in "[secret ABC]"):
                assert line.encode() not in whole


@settings(max_examples=60)
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


@pytest.mark.parametrize(
    ("value", "printed"),
    [
        ("postgresql://user:hunter2hunter2@db/x", "password hunter2hunter2 was refused"),
        ('{"type": "service_account", "password": "Hunter2hunter2"}', "login failed for Hunter2hunter2"),
        ('{"keys": [{"private": "-----BEGIN-----\\nAbCdEfGhIjKl\\n"}]}', "the key AbCdEfGhIjKl is no key"),
        (
            "HF_TOKEN=hf_abcdefgh1234\nexport OTHER='another value'",
            "tokens hf_abcdefgh1234 and another value",
        ),
    ],
)
def test_parts_of_a_structured_value_are_secret_by_themselves(value: str, printed: str) -> None:
    said = Redactor({"ONE": value}).redact(printed)
    assert "[secret ONE]" in said
    for part in ("hunter2", "Hunter2", "AbCdEf", "hf_abc", "another value"):
        assert part not in said


def test_everyday_words_of_a_structured_value_stay() -> None:
    value = '{"type": "service_account", "id": 5, "key": "Kxyzabcdefgh"}'
    assert Redactor({"ONE": value}).redact("a service_account is used") == "a service_account is used"
