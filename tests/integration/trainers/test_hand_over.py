"""A checkpoint that a script has handed over outlives the script, on a real attempt."""

from __future__ import annotations

import pytest

from tests.integration.trainers.lab import Lab

pytestmark = [pytest.mark.slow, pytest.mark.soak]

#: Hands a checkpoint of step 20 (4 MB) over and kills itself at once; when it is started again, it ends well.
SUDDEN = """
import os, torch
from remora import training
from remora.torch import Loop

torch.manual_seed(1)
model = torch.nn.Linear(1000, 1000)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(64, 1000))
loop = Loop(model, optimizer, data=data, global_batch=8, shards=2, total_steps=25)
resumed = training.resume_from()
for step in loop:
    if resumed is None and step.number == 21:
        loop._saving.wait()
        os.kill(os.getpid(), 9)
    step.backward(lambda model, batch: (model(batch[0]) - batch[0]).square().mean())
    optimizer.step()
    step.report(weight=float(model.weight.detach().sum()))
    if resumed is None and step.number == 20:
        # As if the service had asked for a checkpoint of this step.
        loop._link._target, loop._link._action = 20, "checkpoint"
print("resumed", resumed is not None, "after", os.environ.get("REMORA_RESUME_STEP"))
"""


@pytest.mark.backend("ddp", "resumes same size")
def test_a_script_that_is_killed_after_the_hand_over_resumes_from_that_very_step(lab: Lab) -> None:
    lab.nodes(1)
    first = lab.run({"train.py": SUDDEN}, "python", "train.py", min_workers=1, max_workers=1)
    assert first.end()["end_reason"] == "signal"
    assert first.checkpoints == [20]
    _, manifest = lab.manifest_of(first, 20)
    assert {file["name"] for file in manifest["files"]} == {"remora.pt", "remora-00001-of-00001.safetensors"}
    first.close()

    plan = first.plan
    second = lab.run(
        {}, *plan.command, bundle=plan.bundle, job_id=plan.job_id, attempt=2, previous_step=first.step,
        min_workers=1, max_workers=1,
    )  # fmt: skip
    assert second.end()["end_reason"] == "completed"
    assert "resumed True after 20" in second.text()
    assert second.bodies("metric")[0]["step"] == 21, "nothing is done again"
    second.close()


#: Trains as many steps as its argument says, and is not sudden.
LONG = (
    SUDDEN.replace("total_steps=25", "total_steps=int(sys.argv[1])")
    .replace("import os", "import os, sys")
    .replace("== 21", "== -1")
    .replace("== 20", "== -1")
)


@pytest.mark.framework("DDP", "resumes")
@pytest.mark.backend("ddp", "resumes other size")
def test_what_two_workers_wrote_in_parts_one_worker_resumes_from(lab: Lab) -> None:
    lab.nodes(2)
    first = lab.run({"train.py": LONG}, "python", "train.py", "1000000", checkpoint_interval_s=0.2)
    first.until(lambda: first.checkpoints, "a checkpoint is there")
    for rank in (0, 1):
        first.child(rank).kill()
    first.end()
    newest = first.checkpoints[-1]
    _, manifest = lab.manifest_of(first, newest)
    parts = {f"remora-{rank + 1:05d}-of-00002.safetensors": rank for rank in (0, 1)}
    assert {file["name"]: file["rank"] for file in manifest["files"]} == parts | {"remora.pt": 0}
    first.close()

    plan = first.plan
    second = lab.run(
        {}, "python", "train.py", str(newest + 10), bundle=plan.bundle, job_id=plan.job_id, attempt=2,
        previous_step=first.step, min_workers=1, max_workers=1,
    )  # fmt: skip
    assert second.end()["end_reason"] == "completed"
    assert f"resumed True after {newest}" in second.text()
    before, after = (
        {one["step"]: one["values"]["weight"] for one in run.bodies("metric")} for run in (first, second)
    )
    assert sorted(after) == list(range(newest + 1, newest + 11))
    again = before.keys() & after.keys()
    assert [after[step] for step in again] == pytest.approx([before[step] for step in again], rel=1e-4)
    second.close()
