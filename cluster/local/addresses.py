"""Loopback addresses for machines that share one host.

Every living machine has an address of its own out of 127.0.0.0/8, so that nothing can mistake one for another by its
address.  Ray turns 127.0.0.1 into the host's outer address, so that one is not used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from pathlib import Path


def head_address(home: Path) -> str:
    """The head's address; different homes most probably get different ones."""
    return f"{_block(home)}.1"


def node_address(home: Path, taken: Collection[str]) -> str | None:
    """The lowest free address of this home, None when all 253 are taken."""
    block = _block(home)
    return next((free for n in range(2, 255) if (free := f"{block}.{n}") not in taken), None)


def _block(home: Path) -> str:
    digest = hashlib.sha256(str(home.resolve()).encode()).digest()
    return f"127.{64 + digest[0] % 64}.{digest[1]}"
