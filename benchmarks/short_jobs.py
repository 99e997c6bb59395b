"""How many short jobs a small cluster ends in a minute, in peace and while its nodes are killed.

`jobs_per_minute`: `{"peace": {...}, "kills": {...}}`, each with `rate`, the jobs that ended in a minute from the first
submission to the last end, `jobs` and `kills`.  The jobs are of one worker and one second each, on three nodes of one
CPU; in the second run a node is killed every half minute.  A job that did not end once and well, or whose command ran
twice in one attempt, is no figure but an error, as is anything that is left behind.

It starts the service as `remora up` does, with the queue and the checks of the soak (`tests/chaos`).
"""

from __future__ import annotations

import random
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from cluster.local.provider import LocalProvider
from tests.chaos.soak_queue import Queue
from tests.e2e.embedded import Embedded

NODES = 3
#: Of each run; each does ten steps of a tenth of a second.
JOBS = 120
STEPS = 10
KILL_EVERY_S = 30.0


def run(jobs: int = JOBS) -> dict[str, Any]:
    """Both runs; minutes."""
    return {"jobs_per_minute": {"peace": measured(jobs), "kills": measured(jobs, kill_every_s=KILL_EVERY_S)}}


def measured(jobs: int, kill_every_s: float | None = None) -> dict[str, Any]:
    """One run with a service of its own.  Raises AssertionError when a job is wrong or something is left behind."""
    with tempfile.TemporaryDirectory(prefix="remora-bench-") as folder:
        service = Embedded(Path(folder, "home"), nodes=NODES)
        killing = Killing(service, kill_every_s)
        try:
            service.start()
            queue = Queue(service.url, Path(folder))
            began = time.monotonic()
            killing.start()
            queue.submit(((1, STEPS),) * jobs)
            queue.wait()
            took_s = time.monotonic() - began
            killing.stop()
            queue.check()
        finally:
            killing.stop()
            # It asserts that no process, socket or temporary folder of the service is left.
            service.end()
    return {"rate": round(60.0 * jobs / took_s, 1), "jobs": jobs, "kills": killing.count}


class Killing:
    """Kills one node of the service at a fixed interval in seconds, or none, in a thread of its own."""

    def __init__(self, service: Embedded, every_s: float | None) -> None:
        self._service = service
        self._every_s = every_s
        self._is_over = threading.Event()
        self._dice = random.Random("remora short jobs")
        self._thread = threading.Thread(target=self._run, name="killing", daemon=True)
        #: How many it has killed.
        self.count = 0

    def start(self) -> None:
        """Begin, where it is to kill anything."""
        if self._every_s is not None:
            self._thread.start()

    def stop(self) -> None:
        """Kill no more; fine when repeated."""
        self._is_over.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        home = self._service.home
        provider = LocalProvider(home, (home / "ray.address").read_text().strip())
        while not self._is_over.wait(self._every_s):
            running = [node.node_id for node in provider.list() if node.is_running]
            if running:
                provider.kill(self._dice.choice(running))
                self.count += 1
