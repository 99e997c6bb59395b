"""Steady step time of `remora.torch` under Remora beside the same loop in plain DDP under torchrun, two workers each.

Contestants train alternately (`benchmarks/contest.py`), and figures are medians over pairs of blocks
(`benchmarks/ratios.py`).
"""

from __future__ import annotations

import json
from typing import Any

from benchmarks.contest import contest, pack_examples
from benchmarks.ratios import Ratio, steady
from benchmarks.remora_cluster import RemoraCluster, remora_cluster

#: Rounds, and steps of each block, by model.
SIZES = {"digits": (24, 20), "gpt": (16, 4)}
#: Model -> our mode over which it is measured -> ratio of step times.
Ratios = dict[str, dict[str, Ratio]]


def run() -> Ratios:
    """Both models."""
    with remora_cluster(4) as cluster:
        return {what: measure(cluster, what, *size) for what, size in SIZES.items()}


def measure(cluster: RemoraCluster, what: str, rounds: int, steps: int) -> dict[str, Ratio]:
    """Of `sample-exact` over plain DDP, and of `bitwise` over `sample-exact`."""
    with contest(cluster, rounds=rounds, steps=steps) as match:
        script = pack_examples(match.code)
        match.torchrun("plain", [script, "plain", "plain", what])
        for exactness in ("sample-exact", "bitwise"):
            match.remora(exactness, ["python", script, exactness, exactness, what])
        match.hold()
        return {
            "plain": match.ratio("sample-exact", "plain"),
            "sample-exact": match.ratio("bitwise", "sample-exact"),
        }


def ratios(measured: Ratios) -> dict[str, Any]:
    """What of it stands in the document."""
    bitwise = measured["gpt"]["sample-exact"]
    return {
        **steady(**{what: one["plain"] for what, one in measured.items()}),
        "bitwise_ratio": bitwise.figure,
        "bitwise_quartiles": bitwise.quartiles,
    }


if __name__ == "__main__":
    print(json.dumps(ratios(run()), indent=1))
