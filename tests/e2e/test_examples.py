"""The examples by their users' road: a torchrun script as it is, and a byte-level GPT that is made elastic."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from remora import Client
from remora.states import JobState
from tests.e2e.embedded import Embedded

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(600)]

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.backend("ddp", "unmodified script")
def test_an_unmodified_torchrun_script_trains_on_two_workers(service: Embedded, client: Client) -> None:
    script = EXAMPLES / "torchrun"
    assert "remora" not in (script / "train.py").read_text().split("import argparse")[1]
    submitted = service.remora(
        "submit", "--workers", "2", "--json", "-f", "--", "python", "train.py", folder=script
    )
    *events, job = submitted.lines
    assert submitted.code == 0, job
    assert (job["state"], job["attempt"]) == ("succeeded", 1)
    assert "worker_group.started" in [event["kind"] for event in events]
    lines = list(client.logs(job["id"]))
    for rank in (0, 1):
        epochs = [line.text for line in lines if line.text.startswith(f"[{rank}] Epoch")]
        assert [text.split(" |")[0] for text in epochs] == [f"[{rank}] Epoch {number}" for number in range(6)]
        assert all(line.rank == rank for line in lines if line.text in epochs)
    assert any("Training snapshot saved at snapshot.pt" in line.text for line in lines if line.rank == 0)


@pytest.mark.framework("DDP", "runs")
@pytest.mark.framework("DDP", "metrics")
@pytest.mark.backend("ddp", "runs")
def test_a_byte_level_gpt_trains_and_its_checkpoint_is_kept(
    service: Embedded, client: Client, tmp_path: Path
) -> None:
    spec = {
        "name": "bytegpt",
        "code": str(EXAMPLES / "bytegpt"),
        "command": "python train.py --steps 4",
        "workers": 2,
        "resources": {"cpus": 1},
    }
    (tmp_path / "job.json").write_text(json.dumps(spec))
    submitted = service.remora("submit", "-f", str(tmp_path / "job.json"))
    job = client.find("last")
    assert (submitted.code, job.name, job.state) == (0, "bytegpt", JobState.SUCCEEDED), submitted.out
    points = client.metrics(job.id)
    assert [point.step for point in points] == [1, 2, 3, 4]
    loss = [point.values["loss"] for point in points]
    assert all(value is not None and 0 < value < 12 for value in loss), loss
    checkpoint = client.checkpoints(job.id)[-1]
    assert checkpoint.step == 4
    assert sum(checkpoint.files.values()) == checkpoint.size_bytes > 2**20


def test_an_azure_ml_job_trains_as_it_is_and_its_output_becomes_a_model(
    service: Embedded, client: Client, tmp_path: Path
) -> None:
    submitted = service.remora("submit", "--json", "-f", str(EXAMPLES / "azureml" / "job.yml"))
    *_, job = submitted.lines
    assert (submitted.code, job["name"], job["project"], job["state"]) == (
        0,
        "digits",
        "vision",
        "succeeded",
    ), job
    printed = [line.text for line in client.logs(job["id"])]
    for rank in (0, 1):
        assert [text.split(", loss")[0] for text in printed if text.startswith(f"[{rank}]")] == [
            f"[{rank}] epoch {number} of 4" for number in (1, 2, 3, 4)
        ]
    (accuracy,) = [float(text.split()[1]) for text in printed if text.startswith("accuracy ")]
    assert accuracy > 0.85
    other, output = client.outputs(job["id"])
    assert (other.name, output.name) == ("default/accuracy.json", "model/snapshot.pt")
    model = client.model_versions("digits")[0]
    assert (model.job_id, model.output, model.code) == (job["id"], "model", job["spec"]["code"])
    fetched = service.remora("models", "download", "digits", str(tmp_path / "model"))
    assert fetched.code == 0, fetched.err
    content = (tmp_path / "model" / "snapshot.pt").read_bytes()
    assert hashlib.sha256(content).hexdigest() == output.sha256
