"""What the machine and the libraries take for parts of a recovery when nothing of ours is around them, in milliseconds.

`python -m benchmarks.recovery_floors` prints them; a process of its own, because it forks.
"""

from __future__ import annotations

import datetime
import importlib.util
import json
import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from pathlib import Path
from statistics import median
from typing import Any

import torch.distributed as dist

from remora.free_ports import free_port

#: Times that each is measured.
TRIES = 7
_processes = multiprocessing.get_context("fork")
_TIMEOUT = datetime.timedelta(seconds=60)
#: The script that is submitted, and the workers that load it at the same time; one does when it joins others.
SCRIPT = Path(__file__).resolve().parents[1] / "examples" / "elastic" / "train.py"
WORKERS = 2


def run() -> dict[str, float]:
    """Medians: a closed socket seen, a fork, a script's imports and data, a process group of two processes."""
    return {
        "closed socket seen": _median(socket_closed_s),
        "interpreter forked": _median(fork_s),
        "script loaded": _median(script_loaded_s),
        "command forked, script loaded, first step": _median(lambda: script_loaded_s(WORKERS)),
        "process group formed": _median(group_formed_s),
    }


def socket_closed_s() -> float:
    """Seconds from SIGKILL of a process until the other end of its connection reads the end."""
    ours, theirs = socket.socketpair()
    process = _processes.Process(target=signal.pause)
    process.start()
    theirs.close()
    assert process.pid is not None
    began = time.perf_counter()
    os.kill(process.pid, signal.SIGKILL)
    ours.recv(1)
    seconds = time.perf_counter() - began
    ours.close()
    process.join()
    return seconds


def fork_s() -> float:
    """Seconds until a fork of an interpreter that has imported PyTorch runs."""
    ours, theirs = socket.socketpair()
    began = time.perf_counter()
    process = _processes.Process(target=theirs.sendall, args=(b"1",))
    process.start()
    ours.recv(1)
    seconds = time.perf_counter() - began
    process.join()
    ours.close()
    theirs.close()
    return seconds


def script_loaded_s(processes: int = 1) -> float:
    """Seconds until forks of an interpreter with PyTorch have imported what the script imports and read its data."""
    answers = _processes.SimpleQueue()
    began = time.perf_counter()
    forks = [_processes.Process(target=_load, args=(answers,)) for _ in range(processes)]
    for one in forks:
        one.start()
    for _ in forks:
        answers.get()
    seconds = time.perf_counter() - began
    for one in forks:
        one.join()
    return seconds


def _load(answers: Any) -> None:
    found = importlib.util.spec_from_file_location("script", SCRIPT)
    assert found is not None
    assert found.loader is not None
    script = importlib.util.module_from_spec(found)
    found.loader.exec_module(script)
    script.load_data()
    answers.put(None)


def group_formed_s() -> float:
    """Seconds in which two processes that are up meet in a store and connect with gloo, the slower one."""
    barrier, port, answers = _processes.Barrier(2), free_port(), _processes.SimpleQueue()
    both = [_processes.Process(target=_form, args=(rank, port, barrier, answers)) for rank in range(2)]
    for one in both:
        one.start()
    seconds = max(answers.get() for _ in both)
    for one in both:
        one.join()
    return float(seconds)


def _form(rank: int, port: int, barrier: Barrier, answers: Any) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    barrier.wait()
    began = time.perf_counter()
    store = dist.TCPStore("127.0.0.1", port, is_master=rank == 0, wait_for_workers=False, timeout=_TIMEOUT)
    group = dist.ProcessGroupGloo(store, rank, 2, _TIMEOUT)
    seconds = time.perf_counter() - began
    barrier.wait()
    answers.put(seconds)
    # The store is served by the first one.
    barrier.wait()
    del group


def _median(measure: Callable[[], float]) -> float:
    return round(1000 * median(measure() for _ in range(TRIES)), 1)


if __name__ == "__main__":
    print(json.dumps(run()))
