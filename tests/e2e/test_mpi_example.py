"""The example for MPI by its users' roads: plain mpirun, and a job."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from remora import Client
from remora.states import JobState
from tests.e2e.embedded import Embedded

pytestmark = [
    pytest.mark.slow,
    pytest.mark.soak,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("mpirun"),
]

EXAMPLE = Path(__file__).parents[2] / "examples" / "mpi"


def test_plain_mpirun_trains_it() -> None:
    script = [sys.executable, str(EXAMPLE / "train.py"), "--steps", "5"]
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMP_NUM_THREADS": "1"}
    command = ["mpirun", "--oversubscribe", "-n", "2", *script]
    done = subprocess.run(command, env={**os.environ, **allowed}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "2 ranks begin after step 0" in done.stdout
    assert "5 steps, loss" in done.stdout


@pytest.mark.framework("MPI", "runs")
@pytest.mark.framework("MPI", "metrics")
@pytest.mark.backend("mpi", "runs")
def test_a_job_trains_it(service: Embedded, client: Client, tmp_path: Path) -> None:
    text = (EXAMPLE / "job.yaml").read_text()
    text = text.replace("code: .", f"code: {EXAMPLE}").replace("train.py\n", "train.py --steps 20\n")
    text = text.replace("{min: 1, max: 2}", "2")
    (tmp_path / "job.yaml").write_text(text)
    submitted = service.remora("submit", "-f", str(tmp_path / "job.yaml"))
    job = client.find("last")
    assert (submitted.code, job.name, job.state) == (0, "mpi-sines", JobState.SUCCEEDED), submitted.out
    assert [point.step for point in client.metrics(job.id)] == list(range(1, 21))
    assert client.checkpoints(job.id)[-1].files.keys() == {"state.pt"}
    assert any(line.text == "2 ranks begin after step 0" for line in client.logs(job.id))
