"""Measures how busy a worker's command keeps its processors and GPUs: for people, and never for a decision."""

from __future__ import annotations

import logging
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainers.supervisor.worker_of_ray import worker_of_ray

log = logging.getLogger(__name__)

#: Seconds until the first look, so that one sees early whether a job computes at all, and between two looks.
FIRST_S, EVERY_S = 3.0, 15.0
#: Messages about it in a second, of all workers of a group together.
LOADS_PER_S = 64
#: A healthy nvidia-smi answers within a second or two; one that hangs hangs for ever.
_TIMEOUT_S = 20.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
#: Places in /proc/PID/stat after the name: begin with the process's own time, and end with that of its ended children.
_FIRST_TIME, _AFTER_TIMES = 11, 15


@dataclass(frozen=True)
class Load:
    """How busy a worker was since the look before."""

    #: Processors that its processes kept busy: 1.5 is one and a half of them.
    cpu: float
    #: The part of the time in which its GPUs computed, 0 to 1, their mean; None: it has none, or they do not say it.
    gpu: float | None
    #: Its GPUs of which that is the mean.
    gpus: int


class LoadWatch:
    """Looks at one command until `close`."""

    def __init__(
        self,
        processes: Callable[[], Iterable[int]],
        gpu_ids: Sequence[str],
        on_load: Callable[[Load], None],
        *,
        world_size: Callable[[], int] = lambda: 1,
        first_s: float = FIRST_S,
        every_s: float = EVERY_S,
        smi: str = "nvidia-smi",
    ) -> None:
        """`on_load` is called from another thread; in a large `world_size` more rarely."""
        self._processes, self._gpus, self._on_load = processes, Gpus(gpu_ids, smi), on_load
        self._world_size, self._first_s, self._every_s = world_size, first_s, every_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="load", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """Look no more, and wait for nothing: the driver of a GPU may hang.  May be called twice."""
        self._over.set()

    def _watch(self) -> None:
        before_s, began_at = processor_s(self._processes()), time.monotonic()
        pause_s = self._first_s
        while not self._over.wait(pause_s):
            used_s, now = processor_s(self._processes()), time.monotonic()
            # What ends without a parent that waits for it takes its time along.
            cpu = max(0.0, used_s - before_s) / max(now - began_at, 1e-3)
            before_s, began_at = used_s, now
            try:
                gpu, gpus = self._gpus.busy()
                if not self._over.is_set():
                    self._on_load(Load(round(cpu, 3), gpu, gpus))
            except Exception:
                # Nothing depends on it, so it may not be the end of the thread either.
                log.exception("the load of a command could not be reported")
            pause_s = max(self._every_s, self._world_size() / LOADS_PER_S)


def processor_s(pids: Iterable[int], root: Path = Path("/proc")) -> float:
    """Seconds of processors that these processes have had, with their children that ended; one that is gone has 0."""
    return sum(_ticks(root / str(pid) / "stat") for pid in pids) / _TICKS_PER_S


def _ticks(file: Path) -> int:
    try:
        text = file.read_bytes()
    except OSError:
        return 0
    # The name of a process may have spaces and brackets.
    fields = text[text.rfind(b")") + 2 :].split()
    return sum(map(int, fields[_FIRST_TIME:_AFTER_TIMES]))


class Gpus:
    """Some GPUs of NVIDIA, by their numbers or UUIDs on this machine."""

    def __init__(self, ids: Sequence[str], smi: str = "nvidia-smi") -> None:
        """`smi` is the program that is asked."""
        self._ids, self._smi = tuple(ids), smi

    def busy(self) -> tuple[float | None, int]:
        """The mean part of the time in which they computed, and of how many; once it hangs, it is asked no more."""
        if not self._ids:
            return None, 0
        command = [self._smi, f"--id={','.join(self._ids)}", "--query-gpu=utilization.gpu"]
        try:
            done = subprocess.run(
                [*command, "--format=csv,noheader,nounits"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            log.warning("nvidia-smi does not say how busy GPUs are: %s", error)
            self._ids = ()
            return None, 0
        # A part of a GPU (MIG) has "[N/A]".
        parts = [int(line) / 100 for line in done.stdout.splitlines() if line.strip().isdecimal()]
        if done.returncode or not parts:
            return None, 0
        return round(min(1.0, sum(parts) / len(parts)), 3), len(parts)


def assigned_gpus() -> list[str]:
    """The GPUs that Ray has given to this worker."""
    ray = worker_of_ray()
    return [str(one) for one in ray.get_gpu_ids()] if ray is not None and ray.is_initialized() else []
