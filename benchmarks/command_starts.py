"""What being kept apart costs at the start of a command: started with walls and without, in turns.

    python -m benchmarks.command_starts [--rounds N]

Prints one JSON document: milliseconds from the start of a command to its first line, as medians.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from remora.machine_isolation import offered
from trainers.isolation.confined import ConfinedJob, confined_job
from trainers.isolation.mounts import Shown
from trainers.processes.child import Child

#: It says something as soon as it runs, and needs nothing to do so.
COMMAND = ["/bin/sh", "-c", "echo started"]


def start_ms(folder: Path, job: ConfinedJob | None) -> float:
    """Milliseconds from the call to the first line of the command."""
    said, first = threading.Event(), [0.0]

    def on_lines(*_: str) -> None:
        if not said.is_set():
            first[0] = time.perf_counter()
            said.set()

    began = time.perf_counter()
    confinement = None
    if job is not None:
        job.own(folder)
        confinement = job.on_node([Shown(source=folder, target=folder, is_read_only=False)], None)
    child = Child(
        COMMAND,
        folder=folder,
        environment={"PATH": os.defpath},
        line_bytes=1000,
        grace_s=1.0,
        on_lines=on_lines,
        on_message=lambda _: None,
        confinement=confinement,
    )
    try:
        if not said.wait(30.0):
            raise TimeoutError("the command did not start")
        return (first[0] - began) * 1e3
    finally:
        child.stop(at_once=True)
        child.wait()


def measure(rounds: int) -> dict[str, Any]:
    """Medians with and without; None with what is missing where this machine cannot keep commands apart."""
    if offered().uids is None:
        return {"with_ms": None, "without_ms": None, "why_not": offered().why_not}
    with tempfile.TemporaryDirectory(prefix="remora-starts-") as name:
        root = Path(name)
        for each in ("work", "temporary", "apart", "beside"):
            (root / each).mkdir()
        with confined_job("users", f"starts-{os.getpid()}", root / "work", root / "temporary") as job:
            pairs = [
                (start_ms(root / "beside", None), start_ms(root / "apart", job)) for _ in range(rounds + 1)
            ]
    # The first ones import what the others find.
    without, apart = zip(*pairs[1:], strict=True)
    return {"with_ms": round(statistics.median(apart), 2), "without_ms": round(statistics.median(without), 2)}


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    with contextlib.suppress(KeyboardInterrupt):
        print(json.dumps(measure(parser.parse_args().rounds)))


if __name__ == "__main__":
    main()
