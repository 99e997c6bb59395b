"""How fast a DeepSpeed checkpoint is converted for another number of workers, by 1, 2 and 4 processes.

    python -m benchmarks.conversion [--rounds 3] [--stage 2]

Four workers save 384 MB of state.  Its conversion is measured with each number of processes.  Then a
script that imports PyTorch and DeepSpeed, as all do, waits for the converted checkpoint: with a conversion that begins
when it loads, and with one that begins with its interpreter.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import remora
from remora.deepspeed.conversion_process import OUTCOME, PROCESSES_VARIABLE, environment_of_process
from remora.deepspeed.record import Record, write
from remora.free_ports import free_port

PROCESSES = (1, 2, 4)
WORKERS, TAG = 4, "step1"
SITE = Path(remora.__file__).parent / "deepspeed" / "site"
TRAIN = Path(__file__).with_name("conversion_train.py")

#: A script up to the load of its checkpoint; prints the seconds that it waits there.
SCRIPT = """
import time
import torch, deepspeed
from remora import training
from remora.deepspeed.conversion_process import converted, folder_of
saved = training.resume_from()
began = time.monotonic()
converted(saved / "step1", folder_of(saved))
print("waited", time.monotonic() - began)
"""


def run(rounds: int = 3, stage: int = 2) -> dict[str, Any]:
    """Seconds, speed and speed-up by the number of processes, and what a script waits; medians of the rounds."""
    with tempfile.TemporaryDirectory(prefix="remora-conversion-") as name:
        folder = Path(name)
        saved = checkpoint(folder, stage)
        size = sum(file.stat().st_size for file in (saved / TAG).iterdir())
        taken: dict[int, list[float]] = {count: [] for count in PROCESSES}
        waited: dict[str, list[float]] = {"from_load": [], "from_start": []}
        for _ in range(rounds):
            for count in PROCESSES:
                taken[count].append(conversion_s(folder, saved / TAG, count))
            for way, found in waited.items():
                found.append(waited_s(folder, saved, is_ahead=way == "from_start"))
    return {"conversion": figures(size, taken, waited)}


def checkpoint(folder: Path, stage: int) -> Path:
    """A folder with a checkpoint of DeepSpeed, and our record of it."""
    saved = folder / "saved"
    command = [sys.executable, str(TRAIN), str(saved), str(WORKERS), str(stage), str(free_port())]
    quiet = {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    subprocess.run(command, env={**os.environ, **quiet}, check=True, stdout=subprocess.DEVNULL)
    record = Record(
        tag=TAG,
        world_size=WORKERS,
        copies=WORKERS,
        stage=stage,
        global_batch=WORKERS,
        folder=None,
        parameters=1,
        model="m",
    )
    write(record, saved)
    return saved


def conversion_s(folder: Path, source: Path, processes: int) -> float:
    """Seconds of one conversion, without the start of its process."""
    with new_folder(folder) as target:
        command = [
            sys.executable,
            "-m",
            "remora.deepspeed.conversion_program",
            str(source),
            str(target / TAG),
            str(processes),
        ]
        subprocess.run(command, env=environment_of_process(), check=True, stdout=subprocess.DEVNULL)
        outcome = json.loads((target / OUTCOME).read_text())
        if outcome["refused"] is not None:
            raise RuntimeError(outcome["refused"])
        return float(outcome["seconds"])


def waited_s(folder: Path, saved: Path, *, is_ahead: bool) -> float:
    """Seconds that a script waits at its load, as the first of two workers."""
    with new_folder(folder) as scratch:
        variables = {
            "REMORA_RESUME_DIR": str(saved), "REMORA_SCRATCH_DIR": str(scratch), "WORLD_SIZE": "2", "RANK": "0",
            "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", PROCESSES_VARIABLE: str(os.cpu_count() or 1),
            "PYTHONPATH": f"{SITE}:{Path.cwd()}", "DS_ACCELERATOR": "cpu",
        }  # fmt: skip
        if not is_ahead:
            variables["REMORA_CONVERSION_BEGUN"] = "1"
        ran = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, **variables},
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        return next(float(line.split()[1]) for line in ran.stdout.splitlines() if line.startswith("waited "))


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder that is gone afterwards, so that every conversion writes to free space."""
    made = Path(tempfile.mkdtemp(dir=folder))
    try:
        yield made
    finally:
        shutil.rmtree(made)


def figures(size: int, taken: dict[int, list[float]], waited: dict[str, list[float]]) -> dict[str, Any]:
    """What is printed, of seconds by the number of processes and of waits; pure."""
    middle = {count: median(found) for count, found in taken.items()}
    return {
        "state_mb": round(size / 1e6),
        "cores": len(os.sched_getaffinity(0)),
        "seconds": {str(count): round(seconds, 2) for count, seconds in middle.items()},
        "mb_per_s": {str(count): round(size / 1e6 / seconds) for count, seconds in middle.items()},
        # Of conversions that ran right after one another.
        "speed_up": {
            str(count): round(median(one / many for one, many in zip(taken[1], found, strict=True)), 2)
            for count, found in taken.items()
            if count > 1
        },
        "waited_s": {way: round(median(found), 2) for way, found in waited.items()},
    }


def main() -> None:
    """Print the figures as a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="conversions of each kind")
    parser.add_argument("--stage", type=int, default=2, choices=(1, 2, 3), help="of ZeRO")
    asked = parser.parse_args()
    print(json.dumps(run(asked.rounds, asked.stage)))


if __name__ == "__main__":
    main()
