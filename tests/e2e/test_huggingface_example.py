"""The example of transformers by its users' roads: by hand, under torchrun, and as a job."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import torch

from remora import Client
from remora.states import JobState
from remora.torch.tensor_files import read_tensors
from tests.e2e.embedded import Embedded
from tests.frameworks.transformers_environment import transformers_python

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(600)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "huggingface"
STEPS = 40


def losses_by_hand(folder: Path, *launcher: str) -> list[str]:
    """What is logged when it is started without Remora."""
    done = subprocess.run(
        [transformers_python(), *launcher, str(EXAMPLE / "train.py"), "--steps", str(STEPS)],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count(f"{STEPS} steps, ") == 1, "the process of rank 0 says it, and no other one"
    assert (folder / "out" / "model.safetensors").exists()
    return re.findall(r"'(?:train_|eval_)?loss': '([0-9.]+)'", done.stdout)


@pytest.mark.framework("transformers", "exact samples")
def test_by_hand_and_under_torchrun_it_trains_the_same(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("alone", "several")]
    for folder in folders:
        folder.mkdir()
    alone = losses_by_hand(folders[0])
    assert len(alone) >= 2
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone")
    assert losses_by_hand(folders[1], *torchrun) == alone


@pytest.mark.framework("transformers", "runs")
@pytest.mark.framework("transformers", "metrics")
def test_a_job_trains_it_reports_every_step_and_keeps_the_model(
    service: Embedded, client: Client, tmp_path: Path
) -> None:
    text = (EXAMPLE / "job.yaml").read_text()
    text = text.replace("code: .", f"code: {EXAMPLE}").replace(
        "environment: {requirements: requirements.txt}", ""
    )
    text = text.replace("python train.py", f"{transformers_python()} train.py --steps {STEPS}")
    (tmp_path / "job.yaml").write_text(text)
    submitted = service.remora("submit", "-f", str(tmp_path / "job.yaml"))
    job = client.find("last")
    assert (submitted.code, job.name, job.state) == (0, "huggingface-sums", JobState.SUCCEEDED), submitted.out
    assert (job.step, job.total_steps) == (STEPS, STEPS)
    points = client.metrics(job.id)
    assert [point.step for point in points] == list(range(1, STEPS + 1))
    assert all({"loss", "grad_norm", "learning_rate", "epoch"} <= point.values.keys() for point in points)
    evaluated = [point.step for point in points if "eval_accuracy" in point.values]
    assert evaluated == [STEPS], "evaluations are reported with their step"
    assert {file.name for file in client.outputs(job.id)} >= {"model/model.safetensors", "model/config.json"}
    assert [one.step for one in client.checkpoints(job.id)][-1] == STEPS
    exported = service.remora(
        "export", job.id, "--format", "huggingface", "--out", str(tmp_path / "out"), "--json"
    )
    assert (exported.code, json.loads(exported.out)["notes"]) == (0, []), exported.err
    client.download_outputs(job.id, tmp_path / "saved")
    found, saved = (
        read_tensors(tmp_path / folder / "model.safetensors") for folder in ("out", "saved/model")
    )
    assert found.keys() == saved.keys(), "the checkpoint has what save_model wrote"
    assert all(torch.equal(found[name], one) for name, one in saved.items())
    assert (tmp_path / "out/config.json").read_bytes() == (tmp_path / "saved/model/config.json").read_bytes()
