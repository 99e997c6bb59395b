"""A sharded model resumes where each node has a part of the checkpoint's files, and no node has all."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest
import torch

from tests.golden.sharded_worker import ShardedJob
from tests.golden.test_sharded import HYBRID, TENSOR, ShardedDriver, undisturbed
from trainers.checkpoints.manifest import Manifest, ShardFile
from trainers.checkpoints.parts import files_of_node

pytestmark = [pytest.mark.timeout(600)]
NODES = 2
SOAK = [pytest.mark.soak, pytest.mark.slow]


def divide(folder: Path, target: Path) -> None:
    """What the nodes fetch of a checkpoint, each into the folder with its number."""
    files = tuple(
        ShardFile(
            name=path.name,
            size_bytes=path.stat().st_size,
            sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
            rank=0,
        )
        for path in sorted(folder.iterdir())
    )
    manifest = Manifest(
        job_id="job_1", step=1, attempt=1, generation=1, world_size=1, committed_at=0.0, files=files
    )
    for node in range(NODES):
        (target / str(node)).mkdir(parents=True)
        for name in files_of_node(manifest, node, NODES):
            shutil.copyfile(folder / name, target / str(node) / name)


@pytest.mark.parametrize(
    ("job", "before", "other", "after"),
    [
        pytest.param(ShardedJob(), 2, ShardedJob(), 2, id="sharded 2 to 2", marks=SOAK),
        pytest.param(ShardedJob("resnet"), 2, ShardedJob("resnet"), 3, id="sharded 2 to 3"),
        pytest.param(HYBRID, 4, HYBRID, 2, id="hybrid 4 to 2", marks=SOAK),
        pytest.param(TENSOR, 4, ShardedJob("plain"), 3, id="tensor parallel 4 to sharded 3", marks=SOAK),
    ],
)
def test_nodes_with_parts_of_a_checkpoint_resume_together(
    job: ShardedJob, before: int, other: ShardedJob, after: int, tmp_path: Path
) -> None:
    with ShardedDriver(job, tmp_path / "first") as first:
        first.start(before)
        first.reach(3)
        saved = first.checkpoint()
        for worker in first.living:
            first.kill(worker.slot)
    divide(tmp_path / "first" / f"checkpoint-{saved}", tmp_path / "nodes")
    counts = [len(list((tmp_path / "nodes" / str(node)).glob("sharded-*"))) for node in range(NODES)]
    assert counts == [before // 2] * NODES, "no node has all"
    with ShardedDriver(other, tmp_path / "second", RESUME_ON_NODES=str(tmp_path / "nodes")) as second:
        second.start(after)
        second.finish()
        assert min(second.record()) == saved + 1
        weights, _ = undisturbed(ShardedJob(job.network))
        for name, value in second.weights().items():
            torch.testing.assert_close(value, weights[name], rtol=1e-5, atol=1e-5)
