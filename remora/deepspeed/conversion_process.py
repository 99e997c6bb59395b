"""Begins and awaits the conversion of a checkpoint for another number of workers, in a process of its own.

The process begins with the interpreter of the first worker of each machine, so that it runs while the script imports
its libraries and builds its model; `remora.deepspeed.conversion_program` is what it runs.  Only the standard library is
needed here.  A folder holds what was converted, and a file beside it says whether that is under way:

- the file is locked before the folder is made and as long as the process lives, whichever interpreter started it;
- `OUTCOME` in the folder, written last, is `{"refused": null, "seconds": 2.5, "processes": 2}`, or has DeepSpeed's
  reason; without it the process was killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from remora import training
from remora.deepspeed.record import Record, read
from remora.deepspeed.refusal import Refused
from remora.script.channel import FD_VARIABLE

OUTCOME = "remora-conversion.json"
#: Names the descriptor of the lock for the process that converts.
LOCK_VARIABLE = "REMORA_CONVERSION_LOCK"
#: Processors that the workers of this machine have together; the backend sets it.
PROCESSES_VARIABLE = "REMORA_CONVERSION_PROCESSES"
#: Set once an interpreter has begun a conversion: those that it starts need not.
_BEGUN = "REMORA_CONVERSION_BEGUN"
#: Processes that convert at most: beyond, disks are what they wait for.
_MOST = 16
#: Files by which ZeRO's parts of the optimizer are known.
_PARTS = "*_optim_states.pt"
#: Files of a cgroup of version 1: its limit of memory, and what is used of it.
_NAMES_OF_VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes")
#: The folder of what DeepSpeed had swapped to NVMe, with one of each rank in it.
_OFFLOADED = "offloaded_tensors"
#: Ours in PYTHONPATH, which wraps DeepSpeed for scripts.
_SITE = str(Path(__file__).parent / "site")
#: Processes that this one has started: nothing waits for them by their ids.
_started: list[subprocess.Popen[bytes]] = []


def begin_ahead() -> None:
    """Begin the conversion that this worker group is going to need, if it is; for the start of an interpreter.

    Whether it is needed follows from the record of the checkpoint and the number of workers.  Raises OSError.
    """
    resume, world = training.resume_from(), training.world()
    if (
        resume is None
        or world.local_rank != 0
        or _BEGUN in os.environ
        or "REMORA_SCRATCH_DIR" not in os.environ
    ):
        return
    os.environ[_BEGUN] = "1"
    try:
        record = read(resume, os.environ.get("REMORA_RESUME_STEP", "?"))
        copies, rest = divmod(world.world_size, record.together)
        if rest == 0 and is_needed(resume, record, copies):
            _begin(resume / record.tag, folder_of(resume))
    except (Refused, ZeroDivisionError, TypeError, ValueError):
        # A script may have written the record itself.  The sentence is said where it loads the checkpoint.
        return


def is_needed(resume: Path, record: Record, copies: int) -> bool:
    """Whether this many copies of the model cannot read the checkpoint as it is.

    Raises Refused when it cannot be converted.
    """
    if record.copies == copies or not any((resume / record.tag).glob(_PARTS)):
        return False
    if (resume / record.tag / _OFFLOADED).is_dir():
        raise Refused(
            f"the state of the optimizer in this checkpoint was on NVMe, in files of each of {record.copies} workers,"
            f" and {copies} cannot divide it: start as many workers as wrote it"
        )
    return True


def folder_of(resume: Path) -> Path:
    """Where this worker has the converted form of the checkpoint in `resume`, or in a folder of that."""
    whole = training.resume_from()
    parts = resume.relative_to(whole).parts if whole is not None and resume.is_relative_to(whole) else ()
    return Path(os.environ["REMORA_SCRATCH_DIR"]) / "-".join(("universal", *parts))


def converted(source: Path, folder: Path) -> Path:
    """Wait until the checkpoint in `source` is converted, which may have begun; returns the folder that holds it.

    Several processes that fail, for example for the memory that they take, are followed by one that works alone.
    Raises Refused where DeepSpeed cannot convert it, or the machine cannot.
    """
    asked_at = time.monotonic()
    try:
        folder, outcome = _awaited(source, folder)
    except OSError as error:
        # The other ranks wait for what this one says.
        raise Refused(
            f"the checkpoint cannot be converted for another number of workers here: {error}"
        ) from error
    if outcome is None:
        raise Refused(
            "the process that reshards the checkpoint for another number of workers was killed twice; give the workers"
            " more memory, or more space in their folders, or start as many workers as wrote it"
        )
    if outcome["refused"] is not None:
        raise Refused(str(outcome["refused"])[:600])
    if training.world().rank == 0:
        _report(outcome, time.monotonic() - asked_at)
    return folder


def _awaited(source: Path, folder: Path) -> tuple[Path, dict[str, Any] | None]:
    """The folder of the conversion that counts, and its outcome; None where it was killed.  Raises OSError."""
    _begin(source, folder)
    outcome = _await(folder)
    if outcome is not None and (outcome["refused"] is None or outcome.get("processes") == 1):
        return folder, outcome
    shutil.rmtree(folder / source.name, ignore_errors=True)
    alone = folder.with_name(f"{folder.name}-again")
    _begin(source, alone, processes=1)
    return alone, _await(alone)


def _report(outcome: dict[str, Any], waited_s: float) -> None:
    """Say in the job's log what the conversion took, and what of it the script waited for."""
    print(
        f"remora: the checkpoint was converted for this number of workers in {outcome['seconds']:.1f} s by processes:"
        f" {outcome['processes']}; the script waited {waited_s:.1f} s for it",
        file=sys.stderr,
        flush=True,
    )


def _begin(source: Path, folder: Path, processes: int | None = None) -> None:
    """Start the process, unless one was started for this folder."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _lock_of(folder).open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # Another interpreter of this worker has come first.
            return
        try:
            folder.mkdir()
        except FileExistsError:
            return
        count = processes_for(source) if processes is None else processes
        program = [
            sys.executable,
            "-m",
            "remora.deepspeed.conversion_program",
            str(source),
            str(folder / source.name),
            str(count),
        ]
        process = subprocess.Popen(
            program,
            cwd=folder,
            env={**environment_of_process(), LOCK_VARIABLE: str(lock.fileno())},
            pass_fds=(lock.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        _started.append(process)


def _lock_of(folder: Path) -> Path:
    """The file that is locked while the process of this folder is started, and lives."""
    return folder.with_name(f"{folder.name}.lock")


def _await(folder: Path) -> dict[str, Any] | None:
    """What the process of this folder left when it ended; None where it was killed."""
    with _lock_of(folder).open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
    with contextlib.suppress(OSError, ValueError):
        outcome = json.loads((folder / OUTCOME).read_text())
        if isinstance(outcome, dict) and "refused" in outcome:
            return outcome
    return None


def environment_of_process() -> dict[str, str]:
    """The environment in which a checkpoint is converted, made of the script's."""
    # The channel is the script's own.
    kept = {name: value for name, value in os.environ.items() if name != FD_VARIABLE}
    folders = [one for one in kept.pop("PYTHONPATH", "").split(os.pathsep) if one not in ("", _SITE)]
    if folders:
        kept["PYTHONPATH"] = os.pathsep.join(folders)
    return {
        **kept,
        _BEGUN: "1",
        # Its processes are forked: with one thread and no device they may be.  Each has one processor.
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "DS_ACCELERATOR": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
    }


def processes_for(source: Path) -> int:
    """How many processes convert a checkpoint: one for each processor, as far as the memory goes.

    Each reads a whole file of the optimizer's state.  The workers of the machine need memory meanwhile, too.
    """
    try:
        asked = int(os.environ[PROCESSES_VARIABLE])
    except (KeyError, ValueError):
        asked = training.world().local_world_size
    largest = max((file.stat().st_size for file in source.glob(_PARTS)), default=1)
    return max(1, min(asked, len(os.sched_getaffinity(0)), _MOST, _free_bytes() // 2 // max(1, largest)))


def _free_bytes() -> int:
    """Bytes of memory that can be had: on this machine, and within the limits of this process; 0: that is not known."""
    of_machine = next((value * 1024 for name, value in _memory() if name == "MemAvailable"), 0)
    return max(0, min([of_machine, *_left_by_limits()]))


def _left_by_limits() -> Iterator[int]:
    """What each cgroup that has a limit of memory leaves, as in a container.

    Source: https://docs.kernel.org/admin-guide/cgroup-v2.html#memory
    """
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            names = ("memory.max", "memory.current") if not controllers else _NAMES_OF_VERSION_1
            if controllers and "memory" not in controllers.split(","):
                continue
            root = Path("/sys/fs/cgroup", "memory" if controllers else "")
            own = root / path.lstrip("/")
            for folder in (own, *own.parents):
                with contextlib.suppress(OSError, ValueError):
                    limit, used = (int((folder / name).read_text()) for name in names)
                    yield limit - used
                if folder == root:
                    break


def _memory() -> Iterator[tuple[str, int]]:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            name, _, value = line.partition(":")
            yield name, int(value.split()[0])
