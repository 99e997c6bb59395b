"""How much of something a job's workers hold, as one number (pure).

The dominant share of Ghodsi et al., Dominant Resource Fairness (NSDI 2011): of all resources the one of which they hold
the largest part.
"""

from __future__ import annotations

from collections.abc import Mapping


def dominant_part(whole: Mapping[str, float], worker: Mapping[str, float], workers: int) -> float | None:
    """Part of `whole` that `workers` workers of these resources hold; None where it has nothing that they use."""
    parts = [
        workers * amount / whole[name]
        for name, amount in worker.items()
        if amount > 0 and whole.get(name, 0.0) > 0
    ]
    return max(parts, default=None)
