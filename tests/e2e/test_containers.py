"""The service in containers: a job trains on while the controllers are killed, and a backup is put in place."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from remora import Client
from remora.free_ports import free_port
from remora.states import JobState, NodeState
from tests.e2e.composed import Composed
from tests.e2e.processes import PATIENCE_S, until
from tests.needed import is_missing

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(900)]

HEAD = "127.0.0.87"
TRAIN = """
import pathlib, sys, time
from remora import training
step = 0
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.05)
    step += 1
    training.report(step, {"loss": 1.0 / step})
"""


@pytest.fixture
def port() -> int:
    return free_port("127.0.0.1")


@pytest.fixture
def composed(tmp_path: Path, port: int) -> Iterator[Composed]:
    if shutil.which("podman") is None:
        is_missing(
            "there is no podman, in which containers run: make test-tools installs it, as root on Debian"
        )
    settings = {
        "REMORA_DATABASE_URL": "",
        # The network is that of this machine, which other machines reach.
        "REMORA_HOST": "127.0.0.1",
        "REMORA_PORT": str(port),
        "REMORA_PUBLIC_URL": "",
        "REMORA_TLS_CERTIFICATE": "",
        "REMORA_TLS_KEY": "",
        "REMORA_RAY_ADDRESS": f"{HEAD}:{free_port(HEAD)}",
        "REMORA_NODES": "1",
        "REMORA_NODE_CPUS": "1",
        "REMORA_READY_DRIVERS": "1",
    }
    composed = Composed(tmp_path / "volumes", settings)
    try:
        yield composed
    finally:
        print(composed.close())


def test_a_job_trains_on_while_controllers_are_killed(composed: Composed, tmp_path: Path, port: int) -> None:
    state = tmp_path / "volumes/state"
    assert "is ready for release" in composed.run("prepare")
    for service in ("starter", "head", "drivers", "api"):
        composed.start(service)
    controllers = [composed.start("controller", number) for number in (1, 2)]
    until(lambda: composed.is_healthy("api"), "the API is healthy")
    until(lambda: composed.is_healthy("controller", 2), "a controller leads")
    token = (state / "home/operator.token").read_text().strip()
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    # Containers and this test see it at different paths.
    finish = state / "home/finish"
    with Client(f"http://127.0.0.1:{port}", token=token) as client:
        until(lambda: [one.state for one in client.nodes()] == [NodeState.READY], "the node is ready")
        job = client.submit(
            {
                "code": str(folder),
                "command": ["python", "train.py", "/var/lib/remora/home/finish"],
                "workers": {"min": 1, "max": 1},
                "resources": {"cpus": 1},
            }
        )

        def trains_beyond(step: int) -> bool:
            return (client.job(job.id).step or 0) > step

        until(lambda: trains_beyond(20), "it trains")
        (node,) = [one.id for one in client.nodes()]
        killed = {composed.kill(name) for name in controllers}
        before = client.job(job.id).step or 0
        until(
            lambda: all(composed.pid_of(name) not in {0, *killed} for name in controllers),
            "the engine starts them again",
        )
        until(lambda: composed.is_healthy("controller"), "another one leads")
        until(lambda: trains_beyond(before + 20), "it trains on")
        composed.run("prepare", "backup", "/var/lib/remora/backups/one.tar", "--prefix=/var/lib/remora")
        finish.touch()
        ended = client.wait(job.id, PATIENCE_S)
        assert (ended.state, ended.attempt, ended.repeated_steps) == (JobState.SUCCEEDED, 1, 0), ended.message
        assert [one.id for one in client.nodes() if one.state is NodeState.READY] == [node]
    assert (state / "backups/one.tar").stat().st_uid == 10001
