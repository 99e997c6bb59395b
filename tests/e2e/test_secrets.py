"""A job gets secrets of its project, says them in every way, and they stand nowhere but in one encrypted row."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import pytest

from cluster.local.folders import ClusterFolders
from remora import Client
from remora.errors import Invalid
from remora.states import EndReason, JobState
from tests.container_images import image
from tests.e2e.embedded import Embedded
from tests.e2e.processes import PATIENCE_S, JobProcesses, processes_with, until
from tests.needed import is_weaker
from tests.traces_of_a_value import files_with, memory_has, processes_showing

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SCRIPT = r"""
import base64, json, os, pathlib, sys, time, urllib.parse
import remora.training as training

token = os.environ["HF_TOKEN"]
folder = pathlib.Path(os.environ["REMORA_SECRETS"])
print("equal", token == (folder / "HF_TOKEN").read_text() == os.environ["AGAIN"], sorted(os.listdir(folder)))
print("length of the large one", len((folder / "LARGE").read_text()), "LARGE" in os.environ)
print("raw", token)
print("json", json.dumps(token), "url", urllib.parse.quote(token, safe=""))
print("base64", base64.b64encode(f"user:{token}".encode()).decode(), flush=True)
for letter in f"split {token}\n":
    os.write(2, letter.encode())
training.report(1, {"loss": 1.0, f"loss of {token}": 2.0})
while not pathlib.Path(os.environ["GO"]).exists():
    time.sleep(0.05)
raise SystemExit(f"cannot use {token}")
"""


def test_a_secret_reaches_its_workers_and_nothing_else(
    service: Embedded, client: Client, folder: Path, tmp_path: Path
) -> None:
    token = f'canary-{os.urandom(12).hex()}/+\\"ä'
    large = "".join(f"large-{os.urandom(24).hex()}\n" for _ in range(1150))
    # However it is escaped, its beginning stands there as it is.
    values = [
        token.split("/")[0].encode(),
        large.splitlines()[500].encode(),
        base64.b64encode(token.encode())[4:32],
    ]
    stored = service.remora("secrets", "set", "HF_TOKEN", "--project", "vision", stdin=f"{token}\n")
    assert stored.out == "HF_TOKEN of the project vision has version 1.\n", stored.err
    for name in ("LARGE", "OTHER"):
        # Together more than Ray passes in one argument of a call.
        assert client.set_secret(name, large, project="vision").version == 1
    assert "canary" not in service.remora("secrets", "list", "--project", "vision").out
    go = tmp_path / "go"
    (folder / "train.py").write_text(SCRIPT)
    job = client.submit(
        {
            "name": "secretive",
            "project": "vision",
            "code": str(folder),
            "command": ["bash", "-c", 'AGAIN="$(cat "$REMORA_SECRETS/HF_TOKEN")" exec python train.py'],
            "workers": 2,
            "environment": {
                "secrets": ["HF_TOKEN", {"name": "LARGE"}, {"name": "OTHER"}],
                "variables": {"GO": str(go)},
            },
            "retry": {"limit": 0},
        }
    )
    until(lambda: len([one for one in client.logs(job.id) if "split" in one.text]) == 2, "both have said it")
    _check_what_runs(service, job.id, token.encode(), values)
    go.touch()
    ended = job.wait(PATIENCE_S)
    log = service.remora("logs", job.id).out
    assert (ended.state, ended.reason) == (JobState.FAILED, EndReason.EXIT_CODE), log
    assert "cannot use [secret HF_TOKEN]" in str(ended.message)
    for line in (
        "equal True ['HF_TOKEN', 'LARGE', 'OTHER']",
        f"length of the large one {len(large)} False",
        "raw [secret HF_TOKEN]",
        'json "[secret HF_TOKEN]" url [secret HF_TOKEN]',
        "split [secret HF_TOKEN]",
    ):
        assert log.count(line) == 2, (line, log)
    given = [event for event in client.events(job.id) if event.kind == "attempt.secrets_given"]
    assert [event.data for event in given] == [{"versions": {"HF_TOKEN": 1, "LARGE": 1, "OTHER": 1}}]
    metrics = {name for point in client.metrics(job.id) for name in point.values}
    assert metrics == {"loss", "loss of [secret HF_TOKEN]"}
    assert files_with(values, service.home, ClusterFolders(service.home).temporary, *_memory()) == []
    assert all(not list(root.iterdir()) for root in _memory())


def _memory() -> list[Path]:
    root = Path(f"/dev/shm/remora-secrets-{os.getuid()}")
    return [root] if root.exists() else []


def _check_what_runs(service: Embedded, job_id: str, token: bytes, values: list[bytes]) -> None:
    """While the job runs: which processes and files have its secrets."""
    assert processes_showing(token, "cmdline") == []
    own = {process.pid for rank in (0, 1) for process in _family(service, job_id, rank)}
    assert {process.pid for process in processes_showing(token, "environ")} <= own
    assert files_with(values, service.home, ClusterFolders(service.home).temporary) == []
    servers = [one for one in processes_with(str(service.home)) if one.name() in ("gcs_server", "raylet")]
    assert len(servers) >= 4, "of the head and of two nodes"
    try:
        child = JobProcesses(service.home, job_id).child(0)
        assert memory_has(child.pid, values[:1]), "what is looked for is found where it is"
        assert [one for one in servers if memory_has(one.pid, values)] == []
    except PermissionError:
        is_weaker("the kernel does not let tests read the memory of Ray's servers")


def _family(service: Embedded, job_id: str, rank: int) -> list[object]:
    child = JobProcesses(service.home, job_id).child(rank)
    return [child, *child.children(recursive=True)]


def test_a_job_whose_secret_is_not_there_is_refused_and_one_that_lost_it_ends(
    service: Embedded, client: Client
) -> None:
    refused = (
        "the project default has no secret GONE; store it with: remora secrets set GONE --project default"
    )
    with pytest.raises(Invalid, match=refused):
        client.submit({"command": "true", "environment": {"secrets": "GONE"}})
    client.set_secret("GONE", "a-value-for-a-while")
    held = client.submit({"command": "true"})
    job = client.submit(
        {"command": "true", "environment": {"secrets": "GONE"}, "after": held.id, "workers": 1}
    )
    client.delete_secret("GONE")
    ended = job.wait(PATIENCE_S)
    assert (ended.state, ended.reason) == (JobState.FAILED, EndReason.ENVIRONMENT_FAILED)
    assert refused in str(ended.message)
    assert len(client.attempts(job.id)) == 1


def test_a_rotation_leaves_values_as_they_are(service: Embedded, client: Client) -> None:
    client.set_secret("TURNED", "turned-value-1")
    rotated = service.remora("secrets", "rotate", "--json").document
    assert rotated["rewritten"] >= 1
    assert json.loads((service.home / "secrets.key").read_text())["keys"][0]["id"] == rotated["key_id"]
    job = client.submit(
        {
            "command": [
                "bash",
                "-c",
                'test "$TURNED" = turned-value-1 && test "$(cat $REMORA_SECRETS/TURNED)" = "$TURNED"',
            ],
            "environment": {"secrets": ["TURNED"]},
        }
    )
    assert job.wait(PATIENCE_S).state is JobState.SUCCEEDED, service.remora("logs", job.id).out


CHECK = 'test "$(cat "$REMORA_SECRETS/PLACED")" = "$PLACED" && echo "rank $RANK has $PLACED"'


@pytest.mark.soak
def test_a_command_in_a_container_has_them(service: Embedded, client: Client) -> None:
    client.set_secret("PLACED", "value-for-a-container")
    job = client.submit(
        {
            "command": ["sh", "-c", CHECK],
            "workers": 2,
            "environment": {"image": image(), "secrets": ["PLACED"]},
        }
    )
    ended = job.wait(PATIENCE_S)
    log = service.remora("logs", job.id).out
    assert ended.state is JobState.SUCCEEDED, log
    for rank in (0, 1):
        assert f"rank {rank} has [secret PLACED]" in log


@pytest.mark.soak
def test_each_rank_of_mpi_has_them_and_mpirun_does_not(
    service: Embedded, client: Client, mpirun: str, tmp_path: Path
) -> None:
    del mpirun
    client.set_secret("PLACED", "value-for-ranks-of-mpi")
    go = tmp_path / "go"
    command = f"{CHECK} && until test -e {go}; do sleep 0.05; done"
    job = client.submit(
        {
            "command": ["bash", "-c", command],
            "backend": "mpi",
            "workers": 2,
            "environment": {"secrets": ["PLACED"]},
        }
    )

    def both() -> bool:
        return len([one for one in client.logs(job.id) if one.text.endswith("has [secret PLACED]")]) == 2

    until(both, "both ranks have said it")
    shown = processes_showing(b"value-for-ranks-of-mpi", "environ")
    assert shown
    assert {one.name() for one in shown} <= {"bash", "sleep"}
    go.touch()
    assert job.wait(PATIENCE_S).state is JobState.SUCCEEDED, service.remora("logs", job.id).out
