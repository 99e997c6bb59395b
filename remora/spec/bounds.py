"""How much plain data, and JSON, may hold: counted before anything looks at what it means.  Pure."""

from __future__ import annotations

from collections.abc import Mapping


def exceeds(data: object, *, values: int, characters: int) -> str | None:
    """What plain data has too much of, as `more than 20000 values`; None when it is within the bounds.

    Keys count as characters only.  No more is looked at than the bounds allow, however often a value stands in it.
    """
    left, left_characters = values, characters
    waiting: list[object] = [data]
    while waiting:
        value = waiting.pop()
        left -= 1
        if isinstance(value, str):
            left_characters -= len(value)
        elif isinstance(value, Mapping):
            left_characters -= (
                sum(len(key) for key in value if isinstance(key, str)) if len(value) <= left else 0
            )
            left -= 0 if len(value) <= left else len(value)
            waiting.extend(value.values() if left >= 0 else ())
        elif isinstance(value, list | tuple):
            left -= 0 if len(value) <= left else len(value)
            waiting.extend(value if left >= 0 else ())
        if left < 0 or len(waiting) > left:
            return f"more than {values} values"
        if left_characters < 0:
            return f"more than {characters // 1024} KiB"
    return None


def has_more_values(text: bytes, most: int) -> bool:
    """True when a JSON text certainly has more values than the limit: their commas are counted, and nothing is built.

    A parser builds every value in one call that holds Python's lock, 0.1 s for the empty lists that 2 MB hold.
    """
    # What is left of each string has no quotes but its own two.
    plain = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    # A value is a string at most, and so is its key.
    quotes = 4 * (most + 1)
    parts = plain.split(b'"', quotes + 1)
    return len(parts) > quotes + 1 or sum(part.count(b",") for part in parts[::2]) > most
