"""The internals of Ray that we stand on: when an upgrade moves them, this fails first and says which.

What they *do* is checked on real raylets in `tests/integration/cluster`.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import ray
import ray.cloudpickle
import ray.exceptions
from ray._private import function_manager, serialization, services, state
from ray._raylet import AuthenticationTokenLoader, Config, InnerGcsClient
from ray.core.generated import autoscaler_pb2

from cluster.ray import job_api

UPGRADE = "Ray was upgraded: run tests/integration/cluster, look at whatever of cluster imports ray"


def test_the_version_is_the_one_that_was_tried() -> None:
    assert ray.__version__ == "2.60.0", UPGRADE


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (state.state, "get_draining_nodes"),
        (InnerGcsClient, "drain_node"),
        (InnerGcsClient, "get_cluster_resource_state"),
        (InnerGcsClient, "internal_kv_put"),
        (Config, "initialize"),
        (AuthenticationTokenLoader, "instance"),
        (autoscaler_pb2, "DRAIN_NODE_REASON_PREEMPTION"),
        (autoscaler_pb2.NodeState(), "idle_duration_ms"),
    ],
)
def test_what_is_used_is_there(owner: object, name: str) -> None:
    assert hasattr(owner, name), UPGRADE


@pytest.mark.parametrize("module", [serialization, function_manager, ray.exceptions])
def test_what_others_send_is_unpickled_by_one_function(module: Any) -> None:
    assert module.pickle is ray.cloudpickle, UPGRADE
    assert "pickle.loads(" in inspect.getsource(module), UPGRADE


def test_the_packages_of_the_job_api_are_those_that_ray_imports_first() -> None:
    source = Path(ray.__file__).with_name("dashboard") / "optional_deps.py"
    imported = re.findall(r"^(?:import|from) ([\w.]+)", source.read_text(), re.MULTILINE)
    assert {one for one in imported if not one.startswith("aiohttp.")} == set(job_api._NEEDED), UPGRADE


def test_the_head_of_the_job_api_is_started_by_one_function_with_these_flags() -> None:
    source = inspect.getsource(services.start_api_server)
    assert (
        "process_info = start_ray_process(\n            command,\n            ray_constants.PROCESS_TYPE_DASHBOARD"
        in source
    )
    assert "--modules-to-load=" in source, UPGRADE


def test_the_flags_of_ray_start_are_there() -> None:
    from ray.scripts.scripts import start

    flags = {flag for parameter in start.params for flag in parameter.opts}
    used = {
        *(
            "--head",
            "--address",
            "--port",
            "--block",
            "--node-ip-address",
            "--temp-dir",
            "--object-store-memory",
        ),
        *(
            "--include-log-monitor",
            "--include-dashboard",
            "--dashboard-host",
            "--dashboard-port",
            "--no-monitor",
            "--disable-usage-stats",
        ),
        *("--ray-client-server-port", "--num-cpus", "--num-gpus", "--memory", "--resources", "--labels"),
    }
    assert used <= flags, UPGRADE
    assert inspect.isfunction(start.callback)
