"""A job brings its own packages: they are installed on its nodes before its workers start."""

from __future__ import annotations

from pathlib import Path

import pytest

from remora import Client
from remora.states import EndReason, JobState
from tests.e2e.embedded import Embedded
from tests.e2e.processes import PATIENCE_S
from tests.wheels import wheel

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SCRIPT = """
import os, pathlib, sys
import tiny, torch, remora.training as training

training.report(1, {"loss": 1.0})
print("packages of rank", os.environ["RANK"], tiny.VERSION, torch.__version__.split("+")[0])
print("environment", sys.prefix == os.environ["VIRTUAL_ENV"], pathlib.Path(torch.__file__).is_relative_to(sys.prefix))
"""


def test_workers_train_in_the_environment_of_their_job(
    service: Embedded, client: Client, folder: Path
) -> None:
    (folder / "train.py").write_text(SCRIPT)
    (folder / "requirements.txt").write_text(f"./{wheel(folder)}\n")
    (folder / "job.yaml").write_text(
        "code: .\ncommand: python train.py\nworkers: 2\nenvironment: {requirements: requirements.txt}\n"
    )
    submitted = service.remora("submit", "-q", "job.yaml", folder=folder)
    assert submitted.code == 0, submitted.err
    job_id = submitted.out.strip()
    assert client.wait(job_id, PATIENCE_S).state is JobState.SUCCEEDED, service.remora("logs", job_id).out
    log = service.remora("logs", job_id).out
    for rank in (0, 1):
        assert f"packages of rank {rank} 1.0 2." in log
    assert log.count("environment True False") == 2, "its own packages, and PyTorch of the nodes"
    assert "1 packages were installed" in log


def test_an_environment_that_cannot_be_built_ends_the_job_with_the_words_of_uv(
    service: Embedded, client: Client, folder: Path
) -> None:
    (folder / "job.yaml").write_text(
        "code: .\ncommand: python train.py\nenvironment: {pip: [./absent-1.0-py3-none-any.whl]}\n"
    )
    (folder / "train.py").write_text("print('never')")
    submitted = service.remora("submit", "-q", "job.yaml", folder=folder)
    assert submitted.code == 0, submitted.err
    job = client.wait(submitted.out.strip(), PATIENCE_S)
    assert (job.state, job.reason) == (JobState.FAILED, EndReason.ENVIRONMENT_FAILED)
    assert "absent-1.0-py3-none-any.whl" in str(job.message)
    assert len(client.attempts(job.id)) == 1
    assert "never" not in service.remora("logs", job.id).out
