"""A node that computes wrongly is named, the others go on without it, and the result is that of a run without it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.trainers.lab import Lab

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(600)]

STEPS, EVERY = 24, 4
#: The second worker's machine changes the lowest bit of one number from the twelfth step on.
SCRIPT = f"""
import json, os, sys
import torch
from torch.nn import functional
from remora.torch import Loop

torch.manual_seed(5)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loop = Loop(model, optimizer, data=torch.randn(96, 8), global_batch=12, shards=3, total_steps={STEPS},
            exactness="bitwise", verify_every={EVERY})

def wrong(gradient):
    if loop.steps_done < 11:
        return gradient
    bits = gradient.detach().clone()
    bits.view(-1)[:1].view(torch.int32).bitwise_xor_(1)
    return bits

if os.environ.get("RANK") == "1" and "REMORA_JOIN" not in os.environ:
    model[0].weight.register_hook(wrong)

losses = {{}}
for step in loop:
    loss = step.backward(lambda model, batch: functional.mse_loss(model(batch), batch[:, :1]))
    optimizer.step()
    losses[step.number] = float(loss)
    step.report(loss=loss)
if len(sys.argv) > 1:
    print(json.dumps(losses))
"""


def undisturbed(folder: Path) -> dict[int, float]:
    """The losses of one worker alone."""
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "train.py", "alone"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return {int(step): loss for step, loss in json.loads(done.stdout).items()}


def test_the_others_go_on_without_it_and_nothing_of_it_is_left(lab: Lab, tmp_path: Path) -> None:
    lab.nodes(3)
    asked = {"REMORA_VERIFY_EVERY": str(EVERY)}
    run = lab.run(
        {"train.py": SCRIPT}, "python", "train.py", min_workers=2, max_workers=3, elastic_variables=asked
    )
    assert run.end()["end_reason"] == "completed"
    (named,) = run.events("worker.miscomputed")
    assert named["data"]["rank"] == 1
    started = next(iter(run.events("worker_group.started")))
    assert named["data"]["address"] in started["data"]["addresses"]
    assert "rank 1 computes wrongly: in step 12" in named["message"]
    assert [one["data"]["world_size"] for one in run.events("worker_group.regrouped")][:1] == [2]
    steps = [one["step"] for one in run.bodies("metric")]
    assert steps == list(range(1, STEPS + 1)), "no step is lost or done twice"
    losses = {one["step"]: one["values"]["loss"] for one in run.bodies("metric")}
    assert losses == undisturbed(tmp_path / "alone")
