"""Workers that no longer hold the same weights end their attempt, on real nodes."""

from __future__ import annotations

import pytest

from tests.integration.trainers.lab import Lab

pytestmark = [pytest.mark.slow, pytest.mark.soak]

SCRIPT = """
import torch
from remora.torch import Loop

torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.randn(64, 8)
loop = Loop(model, optimizer, data=data, global_batch=8, shards=2, total_steps=10000, check_every=10)
for step in loop:
    loss = step.backward(lambda model, batch: (model(batch) - batch).square().mean())
    optimizer.step()
    if step.number == 15 and loop.world.rank == 1:
        with torch.no_grad():
            model[1].bias.add_(1.0)
    step.report(loss=loss)
"""


def test_an_attempt_ends_with_the_first_parameter_that_differs(lab: Lab) -> None:
    lab.nodes(2)
    run = lab.run({"train.py": SCRIPT}, "python", "train.py", min_workers=2, max_workers=2)
    end = run.end()
    assert end["end_reason"] == "diverged"
    assert end["message"].startswith(
        "After step 20 rank 1 does not hold the weights of rank 0, first in 1.bias, and after step 10 they did."
    )
    run.close()
