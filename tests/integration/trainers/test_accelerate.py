"""A loop with `Accelerator` of Hugging Face accelerate: it starts again from its checkpoint, as one with DDP does."""

from __future__ import annotations

import pytest

from tests.frameworks.transformers_environment import transformers_python
from tests.integration.trainers.lab import Lab

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(600)]

SCRIPT = """
import os, sys, time
import torch
from accelerate import Accelerator
from remora import training

steps = int(sys.argv[1])
torch.manual_seed(3)
x = torch.randn(96, 4)
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

start = 0
if (saved := training.resume_from()) is not None:
    accelerator.load_state(str(saved))
    start = int(os.environ["REMORA_RESUME_STEP"])
accelerator.print(f"{accelerator.num_processes} processes begin after step {start}", flush=True)

def batches():
    while True:
        yield from loader

for step, (features, targets) in zip(range(start + 1, steps + 1), batches()):
    loss = torch.nn.functional.mse_loss(model(features), targets)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    training.report(step, {"loss": loss.item()}, total_steps=steps)
    if training.should_checkpoint() or step == steps:
        with training.checkpoint(step) as folder:
            accelerator.save_state(str(folder))
    time.sleep(0.01)
accelerator.print(f"{steps} steps, loss {loss.item():.4f}", flush=True)
accelerator.end_training()
"""


@pytest.mark.framework("accelerate", "runs")
@pytest.mark.framework("accelerate", "resumes")
@pytest.mark.framework("accelerate", "metrics")
def test_a_loop_with_accelerator_goes_on_with_one_worker_from_what_two_saved(lab: Lab) -> None:
    lab.nodes(2)
    run = lab.run(
        {"train.py": SCRIPT}, transformers_python(), "train.py", "600",
        min_workers=1, max_workers=2, checkpoint_interval_s=1.0,
    )  # fmt: skip
    run.until(lambda: run.checkpoints, "a checkpoint is committed")
    lab.provider.kill(run.node_of(1))
    assert run.end()["end_reason"] == "completed", run.text()
    begun = [line for line in run.text("stdout").splitlines() if "begin after step" in line]
    # Each node has a local main process, which prints.
    assert begun[:2] == ["2 processes begin after step 0"] * 2
    assert begun[2].startswith("1 processes begin after step ")
    assert int(begun[2].rsplit(" ", 1)[1]) > 0
    assert "600 steps, loss 0.0" in run.text("stdout")
    assert (run.step, run.progress["total_steps"]) == (600, 600)
