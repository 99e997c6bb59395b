"""A service whose storage is in Azure: code, checkpoints, outputs and inputs of a job, whose processes hold no key."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.storage.blob import BlobServiceClient

from remora.states import EndReason, JobState
from tests.azurite import CONTAINER, KEY, Azurite
from tests.container_images import image
from tests.e2e.embedded import CONTROLLER, Embedded
from tests.e2e.processes import PATIENCE_S, JobProcesses, kill, until
from tests.e2e.scripts import Steps

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(600)]

COPY = """
import os, pathlib, sys
read = (pathlib.Path(sys.argv[1]) / "a/1.txt").read_text()
(pathlib.Path(os.environ["REMORA_OUTPUTS_DIR"]) / "final" / "w.txt").write_text(read)
"""


@pytest.fixture
def embedded(azurite_server: Azurite, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Embedded]:
    """A service with its storage, and the store `datasets`, in Azurite; the parameter is its isolation."""
    stores = {"datasets": azurite_server.url()}
    found = Embedded(
        tmp_path / "home",
        variables={
            "REMORA_ISOLATION": request.param,
            "REMORA_STORAGE_URL": azurite_server.url(),
            "REMORA_STORES": json.dumps(stores),
            "REMORA_STORAGE_CREDENTIALS": str(azurite_server.credentials(tmp_path)),
        },
    )
    with BlobServiceClient.from_connection_string(azurite_server.connection_string) as client:
        name = stores["datasets"].rpartition("/")[2]
        client.get_blob_client(CONTAINER, f"{name}/images/a/1.txt").upload_blob(b"pixels")
    try:
        found.start()
        yield found
    finally:
        found.end()


# Its script is led by files of the test, which a job that is kept apart does not see.
@pytest.mark.parametrize("embedded", ["none"], indirect=True)
def test_a_job_goes_on_from_its_checkpoint(embedded: Embedded, tmp_path: Path) -> None:
    script = Steps(tmp_path, steps=40)
    with embedded.client() as client:
        job = client.submit(script.spec)
        script.allow(20)
        until(lambda: client.job(job.id).checkpoint_step, "a checkpoint is committed")
        # The next one grants what the attempts of this one ask for.
        embedded.kill_part(CONTROLLER)
        kill(JobProcesses(embedded.home, job.id).driver())
        script.allow_all()
        ended = client.wait(job.id, PATIENCE_S)
        assert (ended.state, ended.attempt) == (JobState.SUCCEEDED, 2), ended.message
        first, second = client.attempts(job.id)
        assert first.end_reason is EndReason.DRIVER_LOST
        assert second.resumed_from_step
        assert [point.step for point in client.metrics(job.id)] == list(range(1, 41))
    check_no_credential(embedded)


@pytest.mark.parametrize("embedded", ["auto"], indirect=True)
def test_inputs_are_copied_and_mounted_and_outputs_are_kept(embedded: Embedded, tmp_path: Path) -> None:
    with embedded.client() as client:
        data = {"store": "datasets", "path": "images"}
        copy = ["python", "-c", COPY, "${{inputs.data}}"]
        copied = client.submit({"command": copy, "outputs": {"final": {}}, "inputs": {"data": data}})
        assert client.wait(copied.id, PATIENCE_S).state is JobState.SUCCEEDED
        answer = embedded.remora("outputs", copied.id, "--download", str(tmp_path / "results"))
        assert answer.code == 0, answer.err
        assert (tmp_path / "results/final/w.txt").read_text() == "pixels"

        data = {"store": "datasets", "path": "images", "mode": "mount"}
        for environment in ({}, {"image": image()}):
            command = ["cat", "${{inputs.data}}/a/1.txt"]
            seen = client.submit({"command": command, "inputs": {"data": data}, "environment": environment})
            assert client.wait(seen.id, PATIENCE_S).state is JobState.SUCCEEDED
            log = embedded.remora("logs", seen.id).out
            assert "pixels" in log
            assert "1 files are mounted" in log

        model = {"job": copied.id, "output": "final"}
        shown = client.submit({"command": ["cat", "${{inputs.model}}/w.txt"], "inputs": {"model": model}})
        assert client.wait(shown.id, PATIENCE_S).state is JobState.SUCCEEDED
        assert "pixels" in embedded.remora("logs", shown.id).out
    check_no_credential(embedded)


def check_no_credential(embedded: Embedded) -> None:
    assert not (embedded.home / "storage").exists(), "nothing of it is on this disk"
    for path in (one for one in embedded.home.rglob("*") if one.is_file()):
        content = path.read_bytes()
        assert KEY.encode() not in content, f"{path} has the key of the account"
        assert b"sig=" not in content, f"{path} has a token"
