"""What a script leaves in its outputs folder outlives its worker group and its attempt, on real nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.trainers.lab import Lab

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(600)]

#: Knows nothing of Remora: goes on from its own snapshot, or writes one and waits for its machine to go.
OWN_SNAPSHOT = """
import os, sys, threading
folder, rank = sys.argv[1], os.environ["RANK"]
seen = sorted(os.listdir(folder))
print("rank", rank, "finds", *seen, flush=True)
if "snapshot-0" in seen:
    open(os.path.join(folder, "final"), "w").write(rank)
    open(os.path.join(folder, "log-" + rank), "w").write("done")
    sys.exit(int(sys.argv[2]))
path = os.path.join(folder, "snapshot-" + rank)
open(path, "w").write("state")
os.utime(path, (1e9, 1e9))
print("rank", rank, "waits", flush=True)
threading.Event().wait()
"""


def test_a_scripts_own_snapshot_survives_the_loss_of_a_node_and_of_the_attempt(lab: Lab) -> None:
    lab.nodes(2)
    command = ("python", "train.py", "${{outputs.model}}", "3")
    first = lab.run({"train.py": OWN_SNAPSHOT}, *command, outputs=("model",), min_workers=1)
    first.until(lambda: first.text().count("waits") == 2, "both ranks wait")
    first.until(lambda: first.bodies("output"), "what both had written is one version")
    assert "rank 0 finds\n" in first.text() + "\n", "the folder of an output is there from the start"
    lab.provider.delete(first.node_of(1))
    assert first.end()["exit_code"] == 3
    assert first.world_sizes == [2, 1]
    assert "rank 0 finds snapshot-0 snapshot-1" in first.text()
    assert set(first.bodies("output")[-1]["files"]) >= {"model/snapshot-0", "model/final", "model/log-0"}
    first.close()

    lab.nodes(2)
    plan = first.plan
    second = lab.run(
        {}, *plan.command[:-1], "0", bundle=plan.bundle, job_id=plan.job_id, attempt=2, outputs=("model",)
    )
    assert second.end()["end_reason"] == "completed"
    newest = second.bodies("output")[-1]
    assert {"model/snapshot-0", "model/final", "model/log-0", "model/log-1"} <= set(newest["files"])
    final = Path(newest["location"], newest["files"]["model/final"]["stored"])
    assert final.read_text() == "0", "of two ranks that write the same name the lowest one counts"
    second.close()


#: Saves as accelerate's `save_state` and Trainers do: every rank into one folder, rank 0 the model and a last file.
#: Goes on from the newest folder that there is.  Rank 0 is lost in the middle of its second save.
SAVES_TOGETHER = """
import os, pathlib, sys, threading, torch
folder, rank, world = pathlib.Path(sys.argv[1]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
found = sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name.partition("-")[2]))
if found:
    model = torch.load(found[-1] / "model.pt", weights_only=True)
    torch.load(found[-1] / f"random_states_{rank}.pt", weights_only=True)
    assert (found[-1] / "trainer_state.json").exists()
    print("rank", rank, "goes on from step", int(model["step"]), flush=True)
    sys.exit(0)

def save(step):
    into = folder / f"checkpoint-{step}"
    into.mkdir(exist_ok=True)
    torch.save({"rank": rank}, into / f"random_states_{rank}.pt")
    os.utime(into / f"random_states_{rank}.pt", (1e9, 1e9))
    print("rank", rank, "saved its part of", step, flush=True)
    if rank == 0:
        if step == 60:
            threading.Event().wait()
        torch.save({"step": torch.tensor(step)}, into / "model.pt")
        (into / "trainer_state.json").write_text("{}")

save(20)
go = pathlib.Path(sys.argv[2])
while not go.exists():
    threading.Event().wait(0.1)
save(60)
threading.Event().wait()
"""


def test_a_save_that_lost_a_rank_in_the_middle_leaves_the_one_before(lab: Lab, tmp_path: Path) -> None:
    lab.nodes(2)
    go = tmp_path / "go"
    command = ("python", "train.py", "${{outputs.model}}", str(go))
    job = lab.run({"train.py": SAVES_TOGETHER}, *command, outputs=("model",), min_workers=1)
    newest = job.until(lambda: job.bodies("output"), "the first save is a version")[-1]
    names = {"model.pt", "trainer_state.json", "random_states_0.pt", "random_states_1.pt"}
    whole = {f"model/checkpoint-20/{name}" for name in names}
    assert set(newest["files"]) == whole
    go.touch()
    job.until(lambda: job.text().count("part of 60") == 2, "both ranks are in the middle of the second save")
    lab.provider.delete(job.node_of(0))
    assert job.end()["end_reason"] == "completed"
    assert job.world_sizes == [2, 1]
    assert "rank 0 goes on from step 20" in job.text()
    assert set(job.bodies("output")[-1]["files"]) == whole
    job.close()


#: PyTorch's tutorial on torchrun: https://docs.pytorch.org/tutorials/beginner/ddp_series_fault_tolerance.html
SNAPSHOT = """
import os, threading, torch
epochs_run = 0
if os.path.exists("snapshot.pt"):
    epochs_run = torch.load("snapshot.pt", weights_only=True)["EPOCHS_RUN"]
    print(f"Resuming training from snapshot at Epoch {epochs_run}", flush=True)
for epoch in range(epochs_run, epochs_run + 2):
    torch.save({"EPOCHS_RUN": epoch + 1}, "snapshot.pt")
print("waits", flush=True)
if not epochs_run:
    threading.Event().wait()
"""


def test_a_script_that_saves_one_file_in_its_working_folder_goes_on_from_it(lab: Lab) -> None:
    lab.nodes(1)
    files = {"outputs": ("snapshot",), "output_files": {"snapshot.pt": "snapshot"}}
    job = lab.run({"train.py": SNAPSHOT}, "python", "train.py", min_workers=1, max_workers=1, **files)
    job.until(lambda: job.bodies("output"), "the snapshot is stored")
    lab.provider.delete(job.node_of(0))
    lab.add_node(wait=False)
    assert job.end()["end_reason"] == "completed"
    assert "Resuming training from snapshot at Epoch 2" in job.text()
    assert set(job.bodies("output")[-1]["files"]) == {"snapshot/snapshot.pt"}
    assert not job.events("worker_group.started_over")
    job.close()
