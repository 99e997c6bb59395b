"""Replaces the values of secrets in what leaves a worker by `[secret NAME]` (pure).

What is searched for are the lines of a value, as they are and in the forms that programs print: base64 at each of its
three offsets (in a header for basic authentication a value stands behind `user:`), percent-encoded, escaped for JSON.
Each form is cut into parts of at most 32 bytes, and each part is replaced: one lookup of fixed length decides about a
place of the text, whatever the number of secrets, and of a long value that is cut its beginning goes too.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, quote_plus, unquote, urlsplit

import numpy as np

#: Bytes of the shortest line of a value that is searched for: shorter ones stand in too many other words.
SHORTEST = 8
#: Bytes of a part.
LONGEST = 32
#: Characters of a line of base64 as coreutils and MIME, and as PEM write it.
_WRAPPED = (76, 64)
#: Bits of the table that says which beginnings of eight bytes are possible, at least and at most.
_LEAST_BITS, _MOST_BITS = 12, 22
#: Spreads eight bytes over the bits of the table (Fibonacci hashing).
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
#: Parts of one value that are searched for by themselves.
_MOST_PARTS = 200
_WORDS = re.compile(r"[a-z_ -]*")
_BREAKS = re.compile(r"[\r\n]+")


def forms_of(value: str) -> set[bytes]:
    """All texts that stand for a value or a part of it, each without a line break and of at least SHORTEST bytes."""
    parts = itertools.islice(parts_of(value), _MOST_PARTS)
    return set().union(*map(_forms_of, {value, *parts}))


def parts_of(value: str) -> Iterator[str]:
    """What of a structured value is secret by itself: texts in JSON, values of NAME=VALUE lines, passwords of URLs.

    Words in lowercase letters, such as a kind of account, are left out: they stand in other lines, too.
    """
    with contextlib.suppress(ValueError, RecursionError):
        yield from (text for text in _texts_in(json.loads(value)) if not _WORDS.fullmatch(text))
    for line in _BREAKS.split(value):
        name, equals, assigned = line.partition("=")
        if equals and name.split()[-1:] and name.split()[-1].isidentifier():
            yield assigned.strip().strip("\"'")
        with contextlib.suppress(ValueError):
            yield unquote(urlsplit(line.strip()).password or "")


def _texts_in(found: object) -> Iterator[str]:
    match found:
        case str():
            yield found
        case list():
            for one in found:
                yield from _texts_in(one)
        case dict():
            for one in found.values():
                yield from _texts_in(one)


def _forms_of(value: str) -> set[bytes]:
    forms: set[str] = set()
    encoded = [(value.encode(), value)]
    # `echo SECRET | base64` has the line break of `echo`.
    encoded += [(f"{value}\n".encode(), value)]
    encoded += [(line.encode(), line) for line in _BREAKS.split(value)]
    for raw, text in encoded:
        for escaped in (json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1], repr(text)[1:-1]):
            forms |= {escaped, escaped.replace("/", "\\/")}
        for percent in (quote(text, safe=""), quote(text), quote_plus(text)):
            forms |= {percent, re.sub("%[0-9A-F]{2}", lambda found: found[0].lower(), percent)}
        for one in _base64_of(raw):
            forms |= {one, one.replace("+", "-").replace("/", "_"), quote(one, safe="")}
    lines = {line.encode() for form in forms for line in _BREAKS.split(form)}
    lines |= {line.encode() for line in _BREAKS.split(value)}
    return {line for line in lines if len(line) >= SHORTEST}


def _base64_of(raw: bytes) -> Iterator[str]:
    """Characters of base64 that only these bytes decide about, at each offset; and those of wrapped lines."""
    for before in range(3):
        whole = base64.b64encode(b"\0" * before + raw).decode()
        first = -(-before * 8 // 6)
        yield whole[first : (before + len(raw)) * 8 // 6]
        # Where nothing follows the bytes, the last character is known too.
        yield whole[first:]
    whole = base64.b64encode(raw).decode()
    for width in _WRAPPED:
        yield from (whole[at : at + width] for at in range(0, len(whole), width))


class Redactor:
    """The values of one worker's secrets, by name."""

    def __init__(self, values: Mapping[str, str]) -> None:
        #: Parts of LONGEST bytes or less, with the number of the secret's name.
        self._parts: dict[bytes, int] = {}
        self._names = list(values)
        for number, value in enumerate(values.values()):
            for form in forms_of(value):
                for part in _cut(form):
                    self._parts.setdefault(part, number)
        #: Lengths of the parts that begin with the same eight bytes, longest first.
        self._lengths: dict[bytes, tuple[int, ...]] = {}
        for part in self._parts:
            known = {*self._lengths.get(part[:SHORTEST], ()), len(part)}
            self._lengths[part[:SHORTEST]] = tuple(sorted(known, reverse=True))
        bits = min(_MOST_BITS, max(_LEAST_BITS, (len(self._lengths) * 64).bit_length()))
        self._shift = np.uint64(64 - bits)
        self._is_possible = np.zeros(1 << bits, dtype=np.bool_)
        for beginning in self._lengths:
            self._is_possible[self._places(np.frombuffer(beginning, dtype="<u8"))] = True

    def redact(self, text: str) -> str:
        """The text with each value replaced by `[secret NAME]`."""
        raw = text.encode("utf-8", "surrogatepass")
        found = self._found(raw, len(raw))
        return self._replaced(raw, found).decode("utf-8", "replace") if found else text

    def redact_all(self, value: Any) -> Any:
        """The same for all texts in plain data: mappings with their keys, lists, tuples."""
        if isinstance(value, str):
            return self.redact(value)
        if isinstance(value, Mapping):
            return {self.redact_all(key): self.redact_all(one) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return type(value)([self.redact_all(one) for one in value])
        return value

    def stream(self) -> RedactedStream:
        """Redacts one stream of bytes, in whatever parts it comes."""
        return RedactedStream(self)

    def _places(self, words: Any) -> Any:
        return (words * _MULTIPLIER) >> self._shift

    def _candidates(self, raw: bytes) -> list[int]:
        """Places where one of the possible beginnings may stand, in ascending order; all where one does."""
        count = len(raw) - SHORTEST + 1
        if count <= 0:
            return []
        padded = np.frombuffer(raw + b"\0" * SHORTEST, dtype=np.uint8)
        words = np.lib.stride_tricks.sliding_window_view(padded, SHORTEST)[:count]
        numbers = np.ascontiguousarray(words).view("<u8").ravel()
        places: list[int] = np.flatnonzero(self._is_possible[self._places(numbers)]).tolist()
        return places

    def _found(self, raw: bytes, before: int) -> list[tuple[int, int, int]]:
        """First byte, byte behind the last one and secret of every part that begins `before`.

        Those that overlap are joined, and those of one secret that touch; the first one gives the name.
        """
        found: list[tuple[int, int, int]] = []
        for at in self._candidates(raw[: before + LONGEST]):
            if at >= before:
                break
            for length in self._lengths.get(raw[at : at + SHORTEST], ()):
                number = self._parts.get(raw[at : at + length])
                if number is None:
                    continue
                end = at + length
                if found and at <= found[-1][1] and (at < found[-1][1] or number == found[-1][2]):
                    found[-1] = (found[-1][0], max(end, found[-1][1]), found[-1][2])
                else:
                    found.append((at, end, number))
                break
        return found

    def _replaced(self, raw: bytes, found: list[tuple[int, int, int]]) -> bytes:
        parts: list[bytes] = []
        done = 0
        for first, end, number in found:
            parts += [raw[done:first], self.mark(number)]
            done = end
        return b"".join([*parts, raw[done:]])

    def mark(self, number: int) -> bytes:
        """What stands for a secret."""
        return f"[secret {self._names[number]}]".encode()


def _cut(form: bytes) -> Iterator[bytes]:
    """Parts that cover a form; the last one overlaps the one before, so that those of a long form are equally long."""
    if len(form) <= LONGEST:
        yield form
        return
    for at in range(0, len(form) - LONGEST, LONGEST):
        yield form[at : at + LONGEST]
    yield form[-LONGEST:]


class RedactedStream:
    """One stream; what may be the beginning of a part is held back until its rest, or a line break, has come."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held = b""
        #: How many of the first held bytes belong to the secret that was replaced last, and its number.
        self._covered, self._number = 0, -1

    def feed(self, received: bytes) -> bytes:
        """What can be passed on."""
        raw = self._held + received
        # No part has a line break, so none goes on behind one.
        settled = max(len(raw) - LONGEST + 1, raw.rfind(b"\n") + 1, 0)
        return self._pass_on(raw, settled)

    def finish(self) -> bytes:
        """What was held back."""
        return self._pass_on(self._held, len(self._held))

    def _pass_on(self, raw: bytes, settled: int) -> bytes:
        """The text up to `settled`; every part that begins before that is whole."""
        parts: list[bytes] = []
        done, number = self._covered, self._number
        for first, end, secret in self._redactor._found(raw, settled):
            if first > done or (first == done and secret != number):
                parts += [raw[done:first], self._redactor.mark(secret)]
                number = secret
            done = max(done, end)
        if done < settled:
            parts.append(raw[done:settled])
            number = -1
        self._covered, self._number = max(0, done - settled), number
        self._held = raw[settled:]
        return b"".join(parts)
