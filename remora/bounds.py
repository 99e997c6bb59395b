"""How much plain data may hold: counted before anything looks at what it means.  Pure."""

from __future__ import annotations

from collections.abc import Mapping


def exceeds(data: object, *, values: int, characters: int) -> str | None:
    """What plain data has too much of, as `more than 20000 values`; None when it is within the bounds.

    Keys count as characters only.  No more is looked at than the bounds allow, however often a value stands in it.
    """
    left, letters = values, characters
    waiting: list[object] = [data]
    while waiting:
        value = waiting.pop()
        left -= 1
        if isinstance(value, str):
            letters -= len(value)
        elif isinstance(value, Mapping):
            letters -= sum(len(key) for key in value if isinstance(key, str)) if len(value) <= left else 0
            left -= 0 if len(value) <= left else len(value)
            waiting.extend(value.values() if left >= 0 else ())
        elif isinstance(value, list | tuple):
            left -= 0 if len(value) <= left else len(value)
            waiting.extend(value if left >= 0 else ())
        if left < 0 or len(waiting) > left:
            return f"more than {values} values"
        if letters < 0:
            return f"more than {characters // 1024} KiB"
    return None
