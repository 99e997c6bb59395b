"""The example for FSDP by its users' roads: torchrun, and a job."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from remora import Client
from remora.states import JobState
from tests.e2e.embedded import Embedded

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(600)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "fsdp"


def test_torchrun_trains_it_on_two_workers() -> None:
    program = Path(sys.executable).with_name("torchrun")
    command = [
        str(program),
        "--standalone",
        "--nproc-per-node",
        "2",
        str(EXAMPLE / "train.py"),
        "--steps",
        "5",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.startswith("5 steps, loss ")


@pytest.mark.framework("FSDP2 with ShardedLoop", "runs")
@pytest.mark.framework("FSDP2 with ShardedLoop", "metrics")
@pytest.mark.backend("fsdp", "runs")
def test_a_job_trains_it_on_two_workers(service: Embedded, client: Client, tmp_path: Path) -> None:
    text = (EXAMPLE / "job.yaml").read_text()
    assert "command: python train.py\n" in text
    text = text.replace("code: .", f"code: {EXAMPLE}").replace("train.py\n", "train.py --steps 20\n")
    (tmp_path / "job.yaml").write_text(text)
    submitted = service.remora("submit", "-f", str(tmp_path / "job.yaml"))
    job = client.find("last")
    assert (submitted.code, job.name, job.state) == (0, "fsdp-digits", JobState.SUCCEEDED), submitted.out
    assert [point.step for point in client.metrics(job.id)] == list(range(1, 21))
    checkpoint = client.checkpoints(job.id)[-1]
    assert checkpoint.step == 20
    parts = {f"sharded-0000{rank}-of-00002.safetensors" for rank in (1, 2)}
    assert {"remora.pt", *parts} <= checkpoint.files.keys()
