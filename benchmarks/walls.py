"""What it costs that a job's commands run as a user or in namespaces of their own, beside the same without.

Starts are measured from the call to the command's first line, started and forked, with and without alternately.  Steps
are those of a loop in such a command, which multiplies, writes to its memory and reports nothing: also alternately.
The recovery from a SIGKILL to all processes of a node is that of `benchmarks.elastic`, once in each way.  A way that
this machine does not offer is left out.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.remora_cluster import RemoraCluster, Run, remora_cluster, until
from benchmarks.steps import after_loss, recovered
from remora.isolation import Isolation
from remora.machine_isolation import offered
from trainers.isolation.confined import confined_job
from trainers.isolation.mounts import Shown
from trainers.processes.child import Child
from trainers.processes.fork_server import PADDING_VARIABLE, SINGLE_THREADED
from trainers.processes.fork_server_client import ForkServer, server_environment
from trainers.supervisor.snapshot_memory import confined_space

#: Starts of each kind; the first of them is left out.
_STARTS = 30
#: Rounds of steps, and steps of a round.
_ROUNDS, _STEPS = 9, 400
#: Steps before a node is killed, and seconds until they are done.
_WARM, _WARM_S = 60, 180.0
_ROOT = Path(__file__).resolve().parents[1]
_LOOP = f"""
import time
import numpy
one = numpy.random.rand(256, 256)
shared = numpy.memmap("/dev/shm/steps", dtype="float64", mode="w+", shape=(256, 256))
times = []
for _ in range({_STEPS}):
    began = time.perf_counter()
    shared[:] = one @ one
    times.append(time.perf_counter() - began)
print(sorted(times)[{_STEPS} // 2])
"""


def run() -> dict[str, Any]:
    """Milliseconds to the first line, ratios of steps, and seconds of a recovery; {} where nothing is kept apart."""
    kinds = _kinds()
    if len(kinds) == 1:
        return {}
    with contextlib.ExitStack() as opened:
        stages = {kind: opened.enter_context(_stage(kind)) for kind in kinds}
        return {
            "start_ms": {way: _starts(stages, is_forked=way == "forked") for way in ("started", "forked")},
            "step_ratio": _step_ratios(stages),
            "recovery_s": {kind: _recovery(kind) for kind in kinds},
        }


def started_ms() -> dict[str, float]:
    """Milliseconds to the first line of a command that is not forked, by isolation; {} where nothing is kept apart."""
    kinds = _kinds()
    if len(kinds) == 1:
        return {}
    with contextlib.ExitStack() as opened:
        stages = {kind: opened.enter_context(_stage(kind)) for kind in kinds}
        return _starts(stages, is_forked=False)


def _kinds() -> tuple[Isolation, ...]:
    offer = offered("namespaces")
    ways: dict[Isolation, bool] = {
        "none": True,
        "users": offer.uids is not None,
        "namespaces": offer.has_namespaces,
    }
    return tuple(kind for kind, is_there in ways.items() if is_there)


class _Stage:
    """Starts commands in one way, as a supervisor does once its worker's folders are there."""

    def __init__(self, folder: Path, fork_server: ForkServer, confinement: Any) -> None:
        self._folder, self._fork_server, self._confinement = folder, fork_server, confinement

    def first_line(self, code: str, *, is_forked: bool) -> tuple[str, float]:
        """The first line that a command prints, and the seconds until it came."""
        came, lines = threading.Event(), list[tuple[str, float]]()

        def take(_: str, text: str) -> None:
            lines.append((text, time.perf_counter()))
            came.set()

        hidden = {PADDING_VARIABLE, *SINGLE_THREADED}
        kept = {name: value for name, value in server_environment(os.environ).items() if name not in hidden}
        began = time.perf_counter()
        child = Child(
            [sys.executable, "-c", code],
            folder=self._folder,
            environment={**kept, "OMP_NUM_THREADS": "1"},
            line_bytes=1000,
            grace_s=1.0,
            on_lines=take,
            on_message=lambda _: None,
            fork_server=self._fork_server if is_forked else None,
            confinement=self._confinement,
        )
        assert child.is_warm is is_forked
        status = child.wait()
        assert came.is_set(), status
        text, at = lines[0]
        return text, at - began


@contextlib.contextmanager
def _stage(isolation: Isolation) -> Iterator[_Stage]:
    with contextlib.ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="remora-walls-")))
        code = folder / "code"
        code.mkdir()
        server = ForkServer(folder / "fork-server", os.getpid(), ["numpy"])
        job = opened.enter_context(confined_job(isolation, f"bench {folder}", folder, folder))
        confinement = None
        if job is not None:
            space = opened.enter_context(confined_space("bench", 1, 0, job))
            job.own(code)
            shown = [Shown(source=code, target=code, is_read_only=False)]
            confinement = job.on_node(shown, None if space is None else space.confined)
        yield _Stage(code, server, confinement)


def _starts(stages: dict[Isolation, _Stage], *, is_forked: bool) -> dict[str, float]:
    seen: dict[str, list[float]] = {kind: [] for kind in stages}
    for _ in range(_STARTS):
        for kind, stage in stages.items():
            seen[kind].append(stage.first_line("print('here', flush=True)", is_forked=is_forked)[1])
    return {kind: round(1000 * statistics.median(times[1:]), 2) for kind, times in seen.items()}


def _step_ratios(stages: dict[Isolation, _Stage]) -> dict[str, float]:
    """Medians over rounds of the median step of a confined command over that of another one, by isolation."""
    ratios: dict[Isolation, list[float]] = {kind: [] for kind in stages if kind != "none"}
    for number in range(_ROUNDS):
        order = list(stages.items())[:: 1 if number % 2 else -1]
        times = {kind: float(stage.first_line(_LOOP, is_forked=False)[0]) for kind, stage in order}
        for kind, of_kind in ratios.items():
            of_kind.append(times[kind] / times["none"])
    return {kind: round(statistics.median(of_kind), 4) for kind, of_kind in ratios.items()}


def _recovery(isolation: Isolation) -> float:
    """Seconds from the end of one of three nodes to the next step of the others."""
    with remora_cluster(3) as cluster, tempfile.TemporaryDirectory(prefix="remora-walls-") as name:
        code = Path(name)
        shutil.copy(_ROOT / "benchmarks" / "elastic_train.py", code / "train.py")
        shutil.copy(_ROOT / "examples" / "elastic" / "train.py", code / "elastic_example.py")
        # Where a confined command may write, too.
        command = ["python", "train.py", "/dev/shm", "1000000"]  # noqa: S108
        return _killed(cluster, Run(cluster, code, command, isolation=isolation))


def _killed(cluster: RemoraCluster, attempt: Run) -> float:
    try:
        until(lambda: attempt.steps and attempt.steps[-1][1] >= _WARM, _WARM_S)
        killed_at = cluster.kill(cluster.provider.node_ids()[0])
        loss = after_loss(until(lambda: recovered(attempt.steps, killed_at), 60), killed_at)
        return float(loss["s"])
    finally:
        attempt.close()


if __name__ == "__main__":
    print(json.dumps(run(), indent=1))
