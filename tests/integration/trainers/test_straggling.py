"""A worker that is slower than the others is named, while all train as fast as it does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.trainers.lab import Lab

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(600)]

#: The second worker's part of a step takes long for a reason of its own.
UNEVEN = """
import os, pathlib, sys, time
import torch
from torch.nn import functional
from remora.torch import Loop

finish, is_slow = pathlib.Path(sys.argv[1]), os.environ["RANK"] == "1"
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def compute(model, batch):
    time.sleep(0.1 if is_slow else 0.01)
    return functional.mse_loss(model(batch), torch.zeros(len(batch), 1)), {"done": float(finish.exists())}

for step in Loop(model, optimizer, data=torch.ones(64, 2), global_batch=8, shards=2, total_steps=10**6):
    loss = step.backward(compute)
    optimizer.step()
    step.report(loss=loss)
    if step.metrics["done"] > 0:
        break
"""


def test_a_worker_that_the_others_wait_for_is_named(lab: Lab, tmp_path: Path) -> None:
    lab.nodes(2)
    run = lab.run({"train.py": UNEVEN}, "python", "train.py", str(tmp_path / "finish"))
    (event,) = run.until(lambda: run.events("worker.straggles"), "it is noticed")
    assert event["data"]["rank"] == 1
    assert event["data"]["own_s"] > 2 * event["data"]["others_s"]
    assert "Rank 1 is slower than the others" in event["message"]
    (tmp_path / "finish").touch()
    assert run.end()["end_reason"] == "completed"
