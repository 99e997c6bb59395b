"""The example for DeepSpeed by its users' road; its script knows nothing of Remora."""

from __future__ import annotations

from pathlib import Path

import pytest

from remora import Client
from remora.states import JobState
from tests.e2e.embedded import Embedded

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(600)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "deepspeed"


@pytest.mark.framework("DeepSpeed", "runs")
@pytest.mark.framework("DeepSpeed", "metrics")
@pytest.mark.backend("deepspeed", "runs")
@pytest.mark.backend("deepspeed", "unmodified script")
def test_a_job_trains_it(service: Embedded, client: Client, tmp_path: Path) -> None:
    assert "remora" not in (EXAMPLE / "train.py").read_text().split("import argparse")[1]
    text = (EXAMPLE / "job.yaml").read_text()
    text = text.replace("code: .", f"code: {EXAMPLE}").replace("train.py ", "train.py --steps 40 ")
    (tmp_path / "job.yaml").write_text(text)
    submitted = service.remora("submit", "-f", str(tmp_path / "job.yaml"))
    job = client.find("last")
    assert (submitted.code, job.name, job.state) == (0, "deepspeed-digits", JobState.SUCCEEDED), submitted.out
    assert [point.step for point in client.metrics(job.id)] == list(range(1, 41)), (
        "the engine reports its steps"
    )
    newest = client.checkpoints(job.id)[-1]
    assert newest.step == 40
    assert {
        "latest",
        "remora-deepspeed.json",
        "global_step40/mp_rank_00_model_states.pt",
    } <= newest.files.keys()
    lines = [line.text for line in client.logs(job.id)]
    assert any(text.endswith("begin after step 0, 96 samples a step") for text in lines)
    (loss,) = (float(text.split()[3]) for text in lines if text.startswith("step 40 loss"))
    assert loss < 1.0
