"""Which seeds are run: one with the other tests, all by `make chaos`, one by `make chaos SEED=7`."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

ALL_SEEDS = range(20)
CHANGES = Path(__file__).parents[2] / "CHANGELOG.md"


def chosen_seeds() -> list[int]:
    """Seeds named by the environment variable REMORA_CHAOS_SEEDS: `all`, or numbers with commas between them.

    Without it there is one, another one whenever CHANGELOG.md is written to, so that changes are tried with all of
    them one after another. (Not by the number of commits: what is tested need not have a history.)
    """
    wanted = os.environ.get("REMORA_CHAOS_SEEDS", "")
    if wanted == "all":
        return list(ALL_SEEDS)
    return [int(one) for one in wanted.split(",")] if wanted else [seed_of(CHANGES.read_bytes())]


def seed_of(changes: bytes) -> int:
    """The seed for this list of changes."""
    return ALL_SEEDS[zlib.crc32(changes) % len(ALL_SEEDS)]
