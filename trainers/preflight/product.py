"""The product of two matrices whose result is known on every machine (pure).

All entries are small integers, and no sum exceeds 2^11, so that float32, TF32 and bfloat16 inputs with float32
sums give the same numbers in any order of the additions.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

#: Rows and columns of both matrices, and of the result.
SIZE = 512
#: Of the result, in rows, as 32-bit integers of the machine's order: those of x86 and ARM.
DIGEST = "c3ab73ede2faab276c8569db704358af31e1111e255fac589bb1d3162fa671e6"


def left(row: int, column: int) -> int:
    """An entry of the first matrix, -2 to 2."""
    return (row * 7 + column * 13 + row * column) % 5 - 2


def right(row: int, column: int) -> int:
    """An entry of the second matrix, -2 to 2."""
    return (row * 11 + column * 3 + (row ^ column)) % 5 - 2


def digest_of(entries: Sequence[int] | bytes) -> str:
    """The digest of a result: of its entries in rows, or of these as bytes of 32-bit integers, little-endian."""
    content = entries if isinstance(entries, bytes) else array("i", entries).tobytes()
    return hashlib.sha256(content).hexdigest()
