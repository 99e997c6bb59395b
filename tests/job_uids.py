"""Numbers of users that no other process of the tests has: a job's end kills every process of its user."""

from __future__ import annotations

import os

from remora.isolation import UidRange

#: Numbers per process, above what a service gives to its jobs; with the highest process number of Linux they stay
#: below 2**31.
_EACH = 16


def own_uids(count: int) -> UidRange:
    """`count` (at most 16) numbers of users that belong to this process of the tests alone."""
    assert count <= _EACH
    first = 2_001_000_000 + _EACH * os.getpid()
    return UidRange(first=first, last=first + count - 1)
