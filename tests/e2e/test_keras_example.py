"""The example of Keras' own `model.fit` and `BackupAndRestore` by its users' roads: by hand, and as a job."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from remora import Client
from remora.states import JobState
from tests.e2e.embedded import Embedded
from tests.integration.trainers.tensorflow_environment import tensorflow_python

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(600)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "keras"


def test_it_trains_by_hand(tmp_path: Path) -> None:
    script = [tensorflow_python(), str(EXAMPLE / "train.py"), "--epochs", "1", "--samples", "3200"]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
    done = subprocess.run(script, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "began with epoch 1, loss " in done.stdout
    assert [path.name for path in (tmp_path / "training").iterdir()] == ["model.keras"]


@pytest.mark.framework("Keras", "runs")
def test_a_job_trains_it_and_keeps_the_model(service: Embedded, client: Client, tmp_path: Path) -> None:
    text = (EXAMPLE / "job.yaml").read_text()
    text = text.replace("code: .", f"code: {EXAMPLE}")
    text = text.replace("python train.py ", f"{tensorflow_python()} train.py --epochs 2 --samples 3200 ")
    (tmp_path / "job.yaml").write_text(text)
    submitted = service.remora("submit", "-f", str(tmp_path / "job.yaml"))
    job = client.find("last")
    assert (submitted.code, job.name, job.state) == (0, "keras-sines", JobState.SUCCEEDED), submitted.out
    assert any(line.text.startswith("began with epoch 1, loss ") for line in client.logs(job.id))
    kept = service.remora("outputs", "last")
    assert "training/model.keras" in kept.out
    assert "training/backup" not in kept.out


REPORTING = """
import keras, numpy as np
from remora.integrations.keras import ReportSteps

x = np.random.default_rng(1).random((96, 1), dtype=np.float32)
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
model.compile(optimizer="adam", loss="mse")
model.fit(x, x, batch_size=16, epochs=2, validation_data=(x, x), verbose=0, callbacks=[ReportSteps()])
"""


@pytest.mark.framework("Keras", "metrics")
def test_a_callback_reports_every_batch_and_what_a_validation_finds(
    service: Embedded, client: Client, folder: Path
) -> None:
    (folder / "train.py").write_text(REPORTING)
    command = ["--", tensorflow_python(), "train.py"]
    submitted = service.remora("submit", "-f", "--backend", "tensorflow", "--code", str(folder), *command)
    job = client.find("last")
    assert (submitted.code, job.state, job.step, job.total_steps) == (0, JobState.SUCCEEDED, 12, 12)
    points = {(one.step, name) for one in client.metrics(job.id) for name in one.values}
    assert {step for step, name in points if name == "loss"} == set(range(1, 13))
    assert {step for step, name in points if name == "val_loss"} == {6, 12}
