"""Which seeds are run: a few with the other tests, all by `make chaos`, one by `make chaos SEED=7`."""

from __future__ import annotations

import os

ALL_SEEDS = range(20)
#: With all other tests: together they have every kind of fault.
FEW_SEEDS = (3, 4, 7, 10)


def chosen_seeds() -> list[int]:
    """Seeds named by the environment variable REMORA_CHAOS_SEEDS: `all`, or numbers with commas between them."""
    wanted = os.environ.get("REMORA_CHAOS_SEEDS", "")
    if wanted == "all":
        return list(ALL_SEEDS)
    return [int(one) for one in wanted.split(",")] if wanted else list(FEW_SEEDS)
