"""What several processes wrote of a sharded model is exported as the model that they trained."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from remora.export_formats import ExportFormat
from remora.torch.exporting import export_checkpoint
from remora.torch.tensor_files import read_tensors
from tests.golden.sharded_worker import ShardedJob
from tests.golden.test_sharded import HYBRID, TENSOR, ShardedDriver

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    ("job", "workers"),
    [
        pytest.param(ShardedJob("resnet"), 2, id="two workers"),
        pytest.param(ShardedJob("resnet"), 3, id="three workers"),
        pytest.param(HYBRID, 4, id="hybrid"),
        pytest.param(TENSOR, 4, id="tensor parallel"),
    ],
)
def test_the_last_checkpoint_is_exported_as_the_trained_model(
    job: ShardedJob, workers: int, tmp_path: Path
) -> None:
    with ShardedDriver(job, tmp_path / "job") as driver:
        driver.start(workers)
        driver.finish()
        weights = driver.weights()
    for form in (ExportFormat.SAFETENSORS, ExportFormat.DCP):
        (tmp_path / form).mkdir()
        export_checkpoint(tmp_path / "job" / f"checkpoint-{job.steps}", tmp_path / form, form)
    found = read_tensors(tmp_path / "safetensors" / "model.safetensors")
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[name], one) for name, one in weights.items())
    loaded = {"model": {name: torch.zeros_like(one) for name, one in weights.items()}}
    dcp.load(loaded, checkpoint_id=tmp_path / "dcp", no_dist=True)
    assert all(torch.equal(loaded["model"][name], one) for name, one in weights.items())
    state = read_tensors(tmp_path / "safetensors" / "optimizer.safetensors")
    of_batch_norm = ("running_mean", "running_var", "num_batches_tracked")
    trained = {name for name in weights if not name.endswith(of_batch_norm)}
    assert {name for name in weights if f"state.{name}.exp_avg" in state} == trained
    assert all(state[f"state.{name}.exp_avg"].shape == weights[name].shape for name in trained)
