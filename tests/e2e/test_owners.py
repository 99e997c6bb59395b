"""What owners ask of a service with real nodes: functions, order, arrays, pauses, another size, schedules, deletion."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from remora import Client
from remora.states import JobState
from tests.e2e.embedded import Embedded
from tests.e2e.processes import PATIENCE_S, until

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(600)]

#: Counts until the file is there, with a checkpoint when it is asked for one.
COUNTS = """
import json, pathlib, time
from remora import training

def main(finish, log=None, value=None):
    folder = training.resume_from()
    step = json.loads((folder / "state.json").read_text()) if folder else 0
    if log:
        with open(log, "a") as file:
            file.write(f"{value}\\n")
    while not pathlib.Path(finish).exists():
        step += 1
        time.sleep(0.05)
        training.report(step=step)
        if training.should_checkpoint():
            with training.checkpoint(step) as target:
                (target / "state.json").write_text(json.dumps(step))
"""


def submit(service: Embedded, folder: Path, spec: dict[str, object]) -> str:
    file = folder.parent / "job.json"
    file.write_text(json.dumps({"code": str(folder), **spec}))
    answer = service.remora("submit", "-q", str(file), folder=folder)
    assert answer.code == 0, answer.err
    return answer.out.strip()


def test_a_function_is_paused_goes_on_where_it_was_and_another_job_follows_it(
    service: Embedded, client: Client, folder: Path, tmp_path: Path
) -> None:
    (folder / "work.py").write_text(COUNTS)
    finish = tmp_path / "finish"
    first = submit(service, folder, {"entrypoint": "work:main", "arguments": {"finish": str(finish)}})
    after = service.remora("submit", "-q", "--after", first, "--no-code", "--", "true").out.strip()
    until(lambda: (client.job(first).step or 0) > 5, "it trains")
    assert client.job(after).reason == "waiting_for_jobs"
    assert service.remora("pause", first).code == 0
    paused = until(lambda: (job := client.job(first)).state is JobState.PAUSED and job, "it is paused")
    assert paused.checkpoint_step == paused.step
    assert service.remora("resume", first).code == 0
    until(lambda: (client.job(first).step or 0) > paused.checkpoint_step + 5, "it goes on")
    finish.touch()
    done = client.wait(first, PATIENCE_S)
    assert (done.state, done.attempt, done.repeated_steps) == (JobState.SUCCEEDED, 2, 0)
    assert client.wait(after, PATIENCE_S).state is JobState.SUCCEEDED
    assert service.remora("delete", first, "--yes").code == 0
    assert service.remora("show", first).code == 3
    storage = service.home / "storage" / "jobs" / first
    until(lambda: not storage.exists(), "its files are gone")


def test_an_array_runs_one_after_the_other(
    service: Embedded, client: Client, folder: Path, tmp_path: Path
) -> None:
    (folder / "work.py").write_text(COUNTS)
    log, finish = tmp_path / "log", tmp_path / "finish"
    finish.touch()
    spec = {
        "entrypoint": "work:main",
        "arguments": {"finish": str(finish), "log": str(log), "value": "${{array.value}}"},
        "array": {"grid": {"value": [3, "a b", 1]}, "most_at_once": 1},
    }
    array_id = submit(service, folder, spec)
    until(lambda: client.array(array_id).terminal, "all have ended")
    assert client.array(array_id).jobs == {"succeeded": 3}
    assert log.read_text().splitlines() == ["3", "a b", "1"]
    assert "value=a b" in service.remora("arrays", "show", array_id).out
