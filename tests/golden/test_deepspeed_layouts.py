"""Models that several workers of DeepSpeed hold together: fewer or more whole copies go on with equal losses."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import remora
from remora.free_ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(600)]

WORKER = Path(__file__).with_name("layouts_worker.py")
SITE = Path(remora.__file__).parent / "deepspeed" / "site"


def run(out: Path, mode: str, layout: str, workers: int) -> tuple[int, str]:
    """Exit code, and what was said."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("REMORA_")}
    environment = {
        **kept, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SITE),
        "WORLD_SIZE": str(workers), "LOCAL_WORLD_SIZE": str(workers),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "REMORA_GLOBAL_BATCH": "8",
    }  # fmt: skip
    ended = subprocess.run(
        [sys.executable, str(WORKER), str(out), mode, layout],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    return ended.returncode, ended.stdout


def losses(out: Path, mode: str, layout: str, workers: int) -> dict[int, float]:
    """By step."""
    code, said = run(out, mode, layout, workers)
    assert code == 0, said[-4000:]
    reported = json.loads((out / f"losses-{mode}-{workers}.json").read_text())
    return {int(step): loss for step, loss in reported.items()}


@pytest.mark.backend("deepspeed", "resumes other size")
@pytest.mark.parametrize(
    ("layout", "saved_by", "resumed_by"),
    [
        ("pipeline", 2, 4),
        ("tensor", 4, 2),
        ("tensor", 2, 4),
        ("tensor, stage 3", 4, 2),
        ("3d", 8, 4),
    ],
)
def test_another_number_of_whole_copies_goes_on(
    tmp_path: Path, layout: str, saved_by: int, resumed_by: int
) -> None:
    undisturbed = losses(tmp_path, "save", layout, saved_by)
    resumed = losses(tmp_path, "resume", layout, resumed_by)
    assert list(resumed) == [4, 5, 6], "it goes on after the step that was saved"
    assert resumed == pytest.approx({step: undisturbed[step] for step in resumed}, rel=1e-6)


@pytest.mark.parametrize(
    ("layout", "workers", "said"),
    [
        (
            "tensor",
            3,
            r"autotp_size is 2 .* and 3 workers cannot be cut into whole copies .*\{multiple_of: 2\}",
        ),
        (
            "pipeline",
            3,
            r"has 2 stages, and 3 workers cannot be cut into whole pipelines.*\{multiple_of: 2\}",
        ),
        ("3d", 6, r"places for 4 workers, of which 4 hold .* and there are 6; .*\{multiple_of: 4\}"),
    ],
)
def test_workers_that_make_no_whole_copies_are_refused(
    tmp_path: Path, layout: str, workers: int, said: str
) -> None:
    code, text = run(tmp_path, "save", layout, workers)
    assert code != 0
    assert len([line for line in text.splitlines() if line.startswith("remora: ")]) == workers, text[-4000:]
    assert "Traceback" not in text
    (sentence,) = {line for line in text.splitlines() if line.startswith("remora: ")}
    assert re.search(said, sentence), sentence


def test_a_layout_that_deepspeed_cannot_split_again_ends_with_one_sentence_on_all_workers(
    tmp_path: Path,
) -> None:
    undisturbed = losses(tmp_path, "save", "short pipeline", 4)
    assert losses(tmp_path, "resume", "short pipeline", 4) == pytest.approx(
        {step: loss for step, loss in undisturbed.items() if step > 3}, rel=1e-6
    ), "as many workers as wrote it need no other form of it"
    code, text = run(tmp_path, "resume", "short pipeline", 2)
    assert code != 0
    assert "Traceback" not in text
    reported = [line for line in text.splitlines() if line.startswith("remora: ")]
    assert len(reported) == 2, text[-4000:]
    assert "DeepSpeed cannot reshard this checkpoint for another number of workers (Zero" in reported[0]
