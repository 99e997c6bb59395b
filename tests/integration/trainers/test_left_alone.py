"""A worker leaves its loop although the others go on: for them it is lost, and the training ends as it would have."""

from __future__ import annotations

import pytest

from tests.integration.trainers.lab import Lab

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(600)]

LEAVES = """
import os
import torch
from torch.nn import functional
from remora.torch import Loop

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def compute(model, batch):
    return functional.mse_loss(model(batch), torch.zeros(len(batch), 1))

for step in Loop(model, optimizer, data=torch.ones(64, 2), global_batch=8, shards=2, total_steps=400):
    loss = step.backward(compute)
    optimizer.step()
    step.report(loss=loss)
    if step.number == 20 and os.environ["RANK"] == "0":
        break
print("rank", os.environ["RANK"], "left after step", step.number)
"""


def test_the_others_train_to_the_end(lab: Lab) -> None:
    lab.nodes(2)
    run = lab.run({"train.py": LEAVES}, "python", "train.py", min_workers=1)
    assert run.end()["end_reason"] == "completed"
    assert [event["data"]["ranks"] for event in run.events("node.lost")] == [[0]]
    assert (run.step, run.checkpoints) == (400, [400])
    assert run.text("stdout").splitlines() == ["rank 0 left after step 20", "rank 0 left after step 400"]
