"""What the forking of Ray's worker processes stands on: when an upgrade of Ray moves it, this fails first."""

from __future__ import annotations

import hashlib
import inspect
from pathlib import Path

import pytest
import ray
from ray._private import node, parameter, services

from cluster.ray import start as ray_start
from cluster.ray.workers import launcher

UPGRADE = (
    "Ray was upgraded: compare how its raylets start workers with cluster/ray/workers, above all what a worker reads"
    " from its environment while it is imported, then write the new value here"
)
WORKERS = Path(ray.__file__).parent / "_private" / "workers"


@pytest.mark.parametrize(
    ("script", "digest"),
    [
        ("default_worker.py", "797c8e149c698872"),
        ("setup_worker.py", "9b99dcb0e7405e3e"),
    ],
)
def test_the_scripts_of_workers_are_those_that_were_tried(script: str, digest: str) -> None:
    assert hashlib.sha256((WORKERS / script).read_bytes()).hexdigest()[:16] == digest, UPGRADE


def test_a_raylet_runs_the_script_before_the_workers_own() -> None:
    source = inspect.getsource(services.start_raylet)
    command = source[source.index("start_worker_command = (") :]
    assert (
        command.index("sys.executable") < command.index("setup_worker_path") < command.index("worker_path,")
    ), UPGRADE
    assert "_ray_params.setup_worker_path" in inspect.getsource(node.Node.start_raylet), UPGRADE


def test_the_launcher_is_that_script_where_no_setting_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameter.RayParams, "__init__", parameter.RayParams.__init__)
    ray_start.lead_workers_through(ray_start.LAUNCHER)
    assert parameter.RayParams().setup_worker_path == str(ray_start.LAUNCHER)
    assert parameter.RayParams(setup_worker_path="other").setup_worker_path == "other"
    assert ray_start.LAUNCHER.is_file()
    # By this name a raylet would leave it out.
    assert ray_start.LAUNCHER.name != "setup_worker.py"


@pytest.mark.parametrize(
    ("words", "is_plain"),
    [
        (["/ray/default_worker.py", "--raylet-name=/s/raylet", "--language=PYTHON"], True),
        (["/ray/default_worker.py", "--worker-type=WORKER", "--language=PYTHON"], True),
        (["/ray/default_worker.py", "--worker-type=SPILL_WORKER", "--language=PYTHON"], False),
        (["/ray/default_worker.py", "--language=PYTHON", "--serialized-runtime-env-context={}"], False),
        (["-s", "/ray/default_worker.py", "--language=PYTHON"], False),
        (["/ray/other_worker.py", "--language=PYTHON"], False),
        (["/ray/default_worker.py", "--language=JAVA"], False),
    ],
)
def test_only_plain_workers_are_forked(words: list[str], is_plain: bool) -> None:
    assert launcher._is_plain(words) is is_plain
