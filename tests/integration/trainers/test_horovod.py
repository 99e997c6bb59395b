"""Scripts for Horovod through MPI, in an environment that was built for them: `make horovod` takes many minutes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.integration.trainers.lab import Lab

pytestmark = [
    pytest.mark.slow,
    pytest.mark.soak,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("mpirun"),
]

PYTHON = Path(__file__).parents[3] / ".venv-horovod" / "bin" / "python"

#: As Horovod's manual has it, with checkpoints by `remora.training`.
TRAIN = """
import os, sys
import horovod.torch as hvd
import torch
from remora import training

hvd.init()
assert (str(hvd.rank()), str(hvd.size())) == (os.environ["RANK"], os.environ["WORLD_SIZE"])
assert str(hvd.local_rank()) == os.environ["LOCAL_RANK"]
steps = int(sys.argv[1])
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
begin = 0
if (saved := training.resume_from()) is not None:
    state = torch.load(saved / "state.pt")
    model.load_state_dict(state["model"])
    begin = state["step"]
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
print(f"rank {hvd.rank()} of {hvd.size()} begins after step {begin}", flush=True)
for step in range(begin + 1, steps + 1):
    x = torch.randn(96, 1, generator=torch.Generator().manual_seed(step))[hvd.rank() :: hvd.size()]
    optimizer.zero_grad()
    loss = ((model(x) - 3 * x - 1) ** 2).mean()
    loss.backward()
    optimizer.step()
    mean = hvd.allreduce(loss.detach()).item()
    training.report(step, {"loss": mean}, total_steps=steps)
    if training.should_checkpoint() or step == steps:
        with training.checkpoint(step) as folder:
            if hvd.rank() == 0:
                torch.save({"model": model.state_dict(), "step": step}, folder / "state.pt")
if hvd.rank() == 0:
    print(f"{steps} steps, loss {mean:.5f}", flush=True)
"""


@pytest.fixture
def python() -> str:
    """The interpreter that has Horovod; not built on the way, and so not asked of CI."""
    if not PYTHON.exists():
        pytest.skip("there is no environment with Horovod; build it: make horovod")
    return str(PYTHON)


def test_a_script_for_horovod_goes_on_with_fewer_workers_after_a_loss(lab: Lab, python: str) -> None:
    lab.nodes(2)
    run = lab.run(
        {"train.py": TRAIN}, python, "train.py", "3000",
        backend="mpi", min_workers=1, max_workers=2, checkpoint_interval_s=1.0,
    )  # fmt: skip
    run.until(lambda: run.checkpoints, "a checkpoint is committed")
    lab.provider.kill(run.node_of(1))
    assert run.end()["end_reason"] == "completed", run.text()
    assert run.world_sizes == [2, 1]
    begun = re.findall(r"rank (\d) of (\d) begins after step (\d+)", run.text("stdout"))
    assert sorted(begun[:2]) == [("0", "2", "0"), ("1", "2", "0")]
    ((rank, size, step),) = begun[2:]
    assert (rank, size) == ("0", "1")
    assert int(step) > 0
    assert "3000 steps, loss 0.00" in run.text("stdout")


def test_horovodrun_is_left_out(lab: Lab, python: str) -> None:
    lab.nodes(2)
    script = TRAIN.replace("steps = int(sys.argv[1])", "steps = 20")
    run = lab.run({"train.py": script}, "horovodrun", "-np", "2", python, "train.py", backend="mpi")
    assert run.end()["end_reason"] == "completed", run.text()
    assert "20 steps, loss" in run.text("stdout")
    assert run.events("attempt.launcher_left_out")[0]["data"]["command"] == [python, "train.py"]
