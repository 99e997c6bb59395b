"""What two workers of DeepSpeed saved, one and three workers go on from, with equal losses in every stage of ZeRO."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import remora
from remora.free_ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(600)]

WORKER = Path(__file__).with_name("deepspeed_worker.py")
SITE = Path(remora.__file__).parent / "deepspeed" / "site"
STAGES = (0, 1, 2, 3)


def run(out: Path, mode: str, workers: int) -> dict[int, dict[int, float]]:
    """Losses by stage and step."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("REMORA_")}
    environment = {
        **kept, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SITE),
        "WORLD_SIZE": str(workers), "LOCAL_WORLD_SIZE": str(workers),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORTS": " ".join(str(free_port()) for _ in STAGES),
        "REMORA_GLOBAL_BATCH": "12", "STAGES": " ".join(map(str, STAGES)),
    }  # fmt: skip
    command = [sys.executable, str(WORKER), str(out), mode]
    logs = [out / f"{mode}-{workers}-{rank}.log" for rank in range(workers)]
    processes = []
    for rank, log in enumerate(logs):
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        with log.open("wb") as file:
            processes.append(
                subprocess.Popen(command, env={**environment, **place}, stdout=file, stderr=file)
            )
    codes = [process.wait() for process in processes]
    assert codes == [0] * workers, "\n".join(log.read_text()[-2000:] for log in logs)
    reported = {
        stage: json.loads((out / f"losses-{mode}-{workers}-{stage}.json").read_text()) for stage in STAGES
    }
    return {stage: {int(step): loss for step, loss in losses.items()} for stage, losses in reported.items()}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, dict[int, float]]]:
    """Where two workers have saved the third step, and the losses of all steps."""
    out = tmp_path_factory.mktemp("saved")
    undisturbed = run(out, "save", 2)
    assert set(undisturbed) == set(STAGES)
    return out, undisturbed


@pytest.mark.parametrize(
    "workers",
    [
        pytest.param(1, marks=pytest.mark.soak),
        pytest.param(2, marks=[pytest.mark.soak, pytest.mark.backend("deepspeed", "resumes same size")]),
        pytest.param(3, marks=pytest.mark.backend("deepspeed", "resumes other size")),
    ],
)
def test_every_stage_goes_on_with_other_numbers_of_workers(
    workers: int, saved: tuple[Path, dict[int, dict[int, float]]]
) -> None:
    out, undisturbed = saved
    resumed = run(out, "resume", workers)
    for stage in STAGES:
        assert list(resumed[stage]) == [4, 5, 6], "it goes on after the step that was saved"
        expected = {step: undisturbed[stage][step] for step in resumed[stage]}
        assert resumed[stage] == pytest.approx(expected, rel=1e-6), f"stage {stage}"
