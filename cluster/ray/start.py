"""python -m cluster.ray.start start ...: `ray start`, whose worker processes are forked where the environment says so.

REMORA_FORKED_MODULES names the modules, separated by commas, that one process per node imports for all of them; empty
or left out: Ray starts its workers as it always does.  See `cluster/ray/workers/launcher.py`.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cluster.ray.joining import FORKED_VARIABLE

#: What a raylet runs in place of Ray's `setup_worker.py`, in front of Ray's `default_worker.py`.
LAUNCHER = Path(__file__).parent / "workers" / "launcher.py"


def lead_workers_through(launcher: Path) -> None:
    """Have the raylets that this process starts run `launcher` for every worker process.

    Ray has a parameter for that which no flag reaches; `tests/contracts/cluster/test_ray_internals.py` holds it.
    """
    from ray._private.parameter import RayParams

    made = RayParams.__init__

    @functools.wraps(made)
    def make(self: Any, *arguments: Any, **named: Any) -> None:
        made(self, *arguments, **named)
        if self.setup_worker_path is None:
            self.setup_worker_path = str(launcher)

    RayParams.__init__ = make


def end_when_retired() -> None:
    """Let this process end with 0 after its raylet did, as it does with the last work of a node that was drained.

    Ray itself takes that for expected, and would wait for ever without any process.
    """
    from ray._private.node import Node

    dead_processes = Node.dead_processes

    def look(self: Any) -> Any:
        found = dead_processes(self)
        if any(kind == "raylet" and process.returncode == 0 for kind, process in found):
            self.kill_all_processes(check_alive=False, allow_graceful=False)
            os._exit(0)
        return found

    Node.dead_processes = look


def serve_jobs_alone() -> None:
    """Let the head's HTTP server answer requests about Ray's jobs and its nodes: no logs, stacks or Serve.

    Ray has a flag of that process for it, which no flag of `ray start` reaches.
    """
    from ray._private import services
    from ray._private.ray_constants import PROCESS_TYPE_DASHBOARD

    start = services.start_ray_process

    @functools.wraps(start)
    def start_process(command: list[str], process_type: str, *rest: Any, **named: Any) -> Any:
        own = ["--modules-to-load=JobHead,NodeHead"]  # the second one passes the first where the head is
        return start(command + own * (process_type == PROCESS_TYPE_DASHBOARD), process_type, *rest, **named)

    services.start_ray_process = start_process


def name_type(arguments: Sequence[str]) -> None:
    """Call the node in `ray status` by its pool, whose label is among the flags."""
    labels = next((one for one in arguments if one.startswith("--labels=")), "--labels=")
    pairs = dict(one.partition("=")[::2] for one in labels.removeprefix("--labels=").split(","))
    if (pool := pairs.get("remora-pool")) is not None:
        os.environ["RAY_NODE_TYPE_NAME"] = pool


def main() -> None:
    """Be `ray`."""
    name_type(sys.argv)
    if os.environ.get(FORKED_VARIABLE) and sys.platform == "linux":
        lead_workers_through(LAUNCHER)
    if any(one.startswith("--labels=remora-role=drivers") for one in sys.argv):
        end_when_retired()
    if "--include-dashboard=true" in sys.argv:
        serve_jobs_alone()
    from ray.scripts.scripts import main as ray

    ray()


if __name__ == "__main__":
    main()
