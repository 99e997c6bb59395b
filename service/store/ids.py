"""Ids: a prefix that names the kind and a ULID, so that ids sort by the time they were made."""

from __future__ import annotations

import os
import re
import threading

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_RANDOM_BITS = 80


class _Newest:
    """The number of the newest id: ids of one process grow within a millisecond, and when the clock is set back."""

    lock = threading.Lock()
    value = 0


def new_id(prefix: str, now: float) -> str:
    """`prefix` (such as `job`), an underscore and 26 characters; grows with every call of this process."""
    value = (int(now * 1000) << _RANDOM_BITS) | int.from_bytes(os.urandom(10), "big")
    with _Newest.lock:
        value = max(value, _Newest.value + 1)
        _Newest.value = value
    return f"{prefix}_" + "".join(_ALPHABET[(value >> shift) & 31] for shift in range(125, -1, -5))


def is_id(prefix: str, text: str) -> bool:
    """True when the text could be an id of that kind; everything else can be refused without a query."""
    return re.fullmatch(rf"{prefix}_[0-9A-HJKMNP-TV-Z]{{26}}", text) is not None
