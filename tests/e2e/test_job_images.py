"""A job names an image: its workers run in containers of it, train as on the nodes, and leave no container behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from remora import Client
from remora.states import EndReason, JobState
from tests.container_images import containers, image, podman
from tests.e2e.embedded import Embedded
from tests.e2e.processes import PATIENCE_S, JobProcesses, kill, until

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(600)]

#: Two ranks meet at the rendezvous, save, and wait in their first attempt; in the second one they go on and end.
SCRIPT = """
import json, os, pathlib, socket, sys, time
import remora.training as training

world = training.world()
address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if world.rank == 0:
    with socket.create_server(address) as server:
        print("rank 0 met", server.accept()[0].recv(10).decode())
else:
    for _ in range(1000):
        try:
            with socket.create_connection(address) as other:
                other.sendall(b"rank 1")
            break
        except ConnectionRefusedError:
            time.sleep(0.01)
print("image", os.environ["FROM_IMAGE"], os.environ["OWN"], pathlib.Path(os.environ["DATA"], "1.txt").read_text())
resumed = training.resume_from()
first = json.loads((resumed / "0.json").read_text())["step"] if resumed else 0
for step in range(first + 1, 100000):
    training.report(step, {"loss": 1.0 / step})
    if training.should_checkpoint():
        with training.checkpoint(step) as folder:
            (folder / f"{world.rank}.json").write_text(json.dumps({"step": step}))
    if resumed and step > first + 3:
        break
    time.sleep(0.01)
final = pathlib.Path(os.environ["REMORA_OUTPUTS_DIR"], "final")
if world.rank == 0:
    (final / "weights.txt").write_text(f"from {first}")
"""


def test_workers_train_in_containers_and_a_killed_supervisor_leaves_none(
    service: Embedded, client: Client, folder: Path
) -> None:
    name = image()
    (service.datasets / "pixels").mkdir(parents=True)
    (service.datasets / "pixels/1.txt").write_text("pixels")
    (folder / "train.py").write_text(SCRIPT)
    before = set(containers())
    job = client.submit(
        {
            "code": str(folder),
            "command": "python train.py",
            "workers": 2,
            "environment": {"image": name, "variables": {"OWN": "own", "DATA": "${{inputs.data}}"}},
            "inputs": {"data": {"store": "datasets", "path": "pixels"}},
            "outputs": {"final": {}},
            "checkpoint": {"interval": "250ms"},
        }
    )
    until(lambda: client.job(job.id).checkpoint_step, "a checkpoint is committed")
    assert len(set(containers()) - before) == 2
    kill(JobProcesses(service.home, job.id).supervisor(1))
    until(lambda: client.attempts(job.id)[0].end_reason, "the first attempt has ended")
    ended = client.wait(job.id, PATIENCE_S)
    log = service.remora("logs", job.id).out
    assert (ended.state, ended.attempt) == (JobState.SUCCEEDED, 2), log[-3000:]
    assert set(containers()) == before
    first, second = client.attempts(job.id)
    assert first.end_reason is EndReason.SUPERVISOR_LOST
    assert second.resumed_from_step
    assert first.environment == second.environment == podman("image", "inspect", "--format", "{{.Id}}", name)
    assert "rank 0 met rank 1" in log
    assert "image yes own pixels" in log
    client.download_outputs(job.id, folder / "out")
    assert (folder / "out/final/weights.txt").read_text() == f"from {second.resumed_from_step}"


def test_an_image_that_is_not_there_ends_the_job_with_a_sentence(client: Client) -> None:
    image()
    job = client.submit({"command": "true", "environment": {"image": "localhost/remora-absent"}})
    ended = job.wait(PATIENCE_S)
    assert (ended.state, ended.reason) == (JobState.FAILED, EndReason.ENVIRONMENT_FAILED)
    assert "this node has no image localhost/remora-absent; build it there" in str(ended.message)
    assert len(client.attempts(job.id)) == 1
