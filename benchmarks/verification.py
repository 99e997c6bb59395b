"""What `elastic.verify` costs: time of training with checks of each other's shards over that without.

Two workers with one shard each train the networks of `benchmarks.steady` in `bitwise` mode.  They check every few
steps, so that there are many to take the median of.  What a step with a check takes more than others is spread over the
steps between two checks.  A check computes one shard, so with one shard for each worker it costs most.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from benchmarks.agreement import measured, prepare

#: Steps between two checks here, and checks that are measured, by model.
SIZES = {"digits": (4, 60), "gpt": (3, 12)}
#: Steps between two checks of which the ratio is computed.
PERIODS = (500, 50)


def run() -> dict[str, Any]:
    """By model the ratio for each period, and for a single step with a check (`1`)."""
    return {"verify_ratio": {what: ratios(measured(_train, what)) for what in SIZES}}


def ratios(of_one: float) -> dict[str, float]:
    """The ratios, given how often as long a step with a check takes as one without (pure)."""
    return {str(every): round(1 + (of_one - 1) / every, 5) for every in (1, *PERIODS)}


def _train(what: str, rank: str, port: str, found: Any) -> None:
    prepare(rank, port)
    import torch
    from steady_train import digits, gpt, loss_of

    from remora.torch import Loop

    torch.set_num_threads(1)
    torch.manual_seed(3)
    models: dict[str, Callable[[], Any]] = {"digits": digits, "gpt": gpt}
    model, data, batch = models[what]()
    every, count = SIZES[what]
    total = every * (count + 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    # No comparison of weights after the first step: it would be part of some steps' time.
    loop = Loop(
        model, optimizer, data=data, global_batch=batch, shards=2, total_steps=total, seed=3,
        exactness="bitwise", check_every=total + 1, verify_every=every,
    )  # fmt: skip
    checked: list[float] = []
    others: list[float] = []
    began = time.perf_counter()
    for step in loop:
        step.backward(loss_of)
        optimizer.step()
        now = time.perf_counter()
        if step.number > every:  # the first ones warm everything up
            (checked if step.number % every == 0 else others).append(now - began)
        began = now
    if rank == "0":
        found.put(median(checked) / median(others))


if __name__ == "__main__":
    print(json.dumps(run(), indent=1))
