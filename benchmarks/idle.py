"""What a cluster without work computes: shares of one core, from half a minute after the service's start.

`idle_share`: `{"service": ..., "nodes": ..., "nodes_count": ...}`: processor time of `remora up`, the API and the
controller, and that of the head and the nodes with all that Ray and the node agents run there, as shares of the time
that passed.
"""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from tests.e2e.embedded import Embedded
from tests.e2e.processes import processes_with

NODES = 3
SETTLES_S = 30.0
MEASURED_S = 60.0


def run(settles_s: float = SETTLES_S, measured_s: float = MEASURED_S) -> dict[str, Any]:
    """One service with idle nodes; a minute and a half."""
    pause = threading.Event()
    with tempfile.TemporaryDirectory(prefix="remora-bench-") as folder:
        service = Embedded(Path(folder, "home"), nodes=NODES)
        try:
            service.start()
            pause.wait(settles_s)
            before, began = _seconds(service), time.monotonic()
            pause.wait(measured_s)
            after, passed_s = _seconds(service), time.monotonic() - began
        finally:
            service.end()
    spent = {part: sum(after[part].values()) - _of(before[part], set(after[part])) for part in after}
    return {
        "idle_share": {**{part: round(s / passed_s, 3) for part, s in spent.items()}, "nodes_count": NODES}
    }


def _seconds(service: Embedded) -> dict[str, dict[psutil.Process, float]]:
    """Processor time of each process so far; of one that began later all of it counts."""
    own = psutil.Process(service.process.pid)
    ours = {own, *own.children()}
    found: dict[str, dict[psutil.Process, float]] = {"service": {}, "nodes": {}}
    for process in {*ours, *processes_with(str(service.home))}:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        found["service" if process in ours else "nodes"][process] = times.user + times.system
    return found


def _of(seconds: dict[psutil.Process, float], processes: set[psutil.Process]) -> float:
    return sum(spent for process, spent in seconds.items() if process in processes)
