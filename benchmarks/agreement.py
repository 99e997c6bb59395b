"""What it costs that workers compare their weights: seconds of one comparison over those of the steps between two.

Two workers train the networks of `benchmarks.steady` and compare after every few steps, so that there are many to take
the median of; the share is what one costs at the default of `remora.torch`.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from remora.free_ports import free_port

ROOT = Path(__file__).resolve().parents[1]
#: Steps between two comparisons here, and comparisons that are measured, by model.
SIZES = {"digits": (10, 30), "gpt": (3, 8)}


def run() -> dict[str, Any]:
    """The share of each model, as a document has it."""
    return {"agreement_share": {what: round(share(what), 5) for what in SIZES}}


def share(what: str) -> float:
    """Of the time of the steps between two comparisons, what one of these takes; rank 0 measures."""
    return measured(_train, what)


def measured(train: Callable[[str, str, str, Any], None], what: str) -> float:
    """The number that rank 0 of two workers puts into the queue; each runs `train(what, rank, port, queue)`."""
    processes = multiprocessing.get_context("spawn")
    port = str(free_port())
    overheads: Any = processes.Queue()
    both = [processes.Process(target=train, args=(what, str(rank), port, overheads)) for rank in range(2)]
    for one in both:
        one.start()
    try:
        found: float = overheads.get(timeout=600.0)
    finally:
        for one in both:
            one.join(30.0)
            one.kill()
    return found


def prepare(rank: str, port: str) -> None:
    """Make this process the worker `rank` of two, and `steady_train` importable."""
    os.environ.update(
        RANK=rank, WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port, GLOO_SOCKET_IFNAME="lo",
        OMP_NUM_THREADS="1",
    )  # fmt: skip
    for name, path in (("elastic_example", "elastic"), ("bytegpt_example", "bytegpt")):
        sys.modules[name] = _module(name, ROOT / "examples" / path / "train.py")
    sys.path.insert(0, str(ROOT / "benchmarks"))


def _train(what: str, rank: str, port: str, overheads: Any) -> None:
    prepare(rank, port)
    import torch
    from steady_train import digits, gpt, loss_of

    from remora.torch import Loop
    from remora.torch.agreement import CHECK_EVERY

    torch.set_num_threads(1)
    torch.manual_seed(3)
    models: dict[str, Callable[[], Any]] = {"digits": digits, "gpt": gpt}
    model, data, batch = models[what]()
    every, count = SIZES[what]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loop = Loop(
        model, optimizer, data=data, global_batch=batch, shards=2, total_steps=every * (count + 1), seed=3,
        check_every=every,
    )  # fmt: skip
    spent: list[float] = []
    rehearsals: list[float] = []

    def timed(part: Callable[..., Any], into: list[float]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            began = time.perf_counter()
            returned = part(*arguments)
            into.append(time.perf_counter() - began)
            return returned

        return call

    loop._check_data = timed(loop._check_data, spent)  # type: ignore[method-assign]
    loop._agree = timed(loop._agree, spent)  # type: ignore[method-assign]
    loop._check_unchanged = timed(loop._check_unchanged, spent)  # type: ignore[method-assign]
    loop._rehearse = timed(loop._rehearse, rehearsals)  # type: ignore[method-assign]
    steps: list[float] = []
    checks: list[float] = []
    began = time.perf_counter()
    for step in loop:
        step.backward(loss_of)
        optimizer.step()
        now = time.perf_counter()
        is_check = step.number > every and (step.number - 1) % every == 0
        (checks if is_check else steps).append(sum(spent) if is_check else now - began)
        began = now
        spent.clear()
    if rank == "0":
        # Of ten comparisons one is with a rehearsal.
        overheads.put((median(checks) + median(rehearsals) / 10) / (CHECK_EVERY * median(steps)))


def _module(name: str, path: Path) -> Any:
    import importlib.util

    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    print(json.dumps(run(), indent=1))
