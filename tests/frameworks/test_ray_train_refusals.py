"""What the shim for Ray Train cannot do is refused by its name, with what to do instead."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
#: Words of each refusal.
EXPECTED = {
    "jax": "NotImplementedError: JaxTrainer is not one of the trainers .*: .* write backend: jax",
    "datasets": "NotImplementedError: datasets of TorchTrainer .*prepare_data_loader",
    "validation_config": "NotImplementedError: validation_config .* validate in the training loop",
    "callbacks": r"NotImplementedError: RunConfig\(callbacks=...\) .* in the training loop",
    "runtime_env": r"NotImplementedError: RunConfig\(worker_runtime_env=...\) .* environment of the job",
    "task": r"NotImplementedError: this script uses a cluster of Ray \(ray.remote",
    "tuner": "NotImplementedError: Ray Tune .* array",
    "tune": "NotImplementedError: Ray Tune .* array",
    "workers": r"NotImplementedError: ScalingConfig\(num_workers=2\) .* the job has 3: .*",
    "upload_fn": r"NotImplementedError: ray.train.report\(checkpoint_upload_fn=...\)",
    "no_upload": r"NotImplementedError: ray.train.report\(checkpoint_upload_mode=NO_UPLOAD\)",
    "validation": r"NotImplementedError: ray.train.report\(validation=...\)",
    "shard": "NotImplementedError: ray.train.get_dataset_shard .* DataLoader",
    "all": "NotImplementedError: ray.train.get_all_reported_checkpoints",
    "empty": "ValueError: the folder of the checkpoint that was reported has no file in it",
    "second": r"RuntimeError: fit\(\) is called a second time",
}


def run(*words: str, said: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The shim with these arguments."""
    return subprocess.run(
        [sys.executable, "-m", "remora.integrations.ray_train", *words],
        cwd=HERE, capture_output=True, text=True, timeout=120,
        env={**os.environ, "SAID": str(said)},
    )  # fmt: skip


def test_what_is_not_supported_is_refused_by_name(tmp_path: Path) -> None:
    done = run("ray_train_refusals.py", said=tmp_path / "said.json")
    assert done.returncode == 0, done.stderr
    said = json.loads((tmp_path / "said.json").read_text())
    assert set(said) == set(EXPECTED)
    assert {name: text for name, text in said.items() if not re.match(EXPECTED[name], text)} == {}
    assert "ray.init() is left out" in done.stdout


def test_a_script_that_is_not_there_is_named() -> None:
    done = run("no.py", "--epochs", "3")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "there is no script no.py\n")
