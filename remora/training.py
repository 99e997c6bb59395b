"""What a training script calls; standard library only, and harmless where Remora is not around.

    from remora import training

    start = 0
    if (saved := training.resume_from()) is not None:
        start = load(saved)
    for step in range(start + 1, steps + 1):
        loss = train_one_step()
        training.report(step, {"loss": loss}, total_steps=steps)
        if training.should_checkpoint() or step == steps:
            with training.checkpoint(step) as folder:   # on every rank; a rank with nothing to save leaves it empty
                if training.world().rank == 0:
                    save(folder)

Started by hand (`python train.py`) or by torchrun the same script trains as ever: nothing is reported, no checkpoint
is asked for, and `checkpoint` yields a folder that is thrown away.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from remora.script import channel, memory_folder
from remora.script.link import Link, Preemption

__all__ = [
    "Preemption",
    "World",
    "checkpoint",
    "preemption",
    "report",
    "resume_from",
    "should_checkpoint",
    "world",
]

#: Every whole number up to it survives JSON and any database.
_MAX_STEP = 2**53


@dataclass(frozen=True)
class World:
    """This process's ranks in its worker group; one worker of one without torchrun's environment variables."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int


def world() -> World:
    """Ranks from torchrun's environment variables, which Remora sets too."""

    def number(name: str, default: int) -> int:
        try:
            return int(os.environ[name])
        except (KeyError, ValueError):
            return default

    return World(
        rank=number("RANK", 0),
        world_size=number("WORLD_SIZE", 1),
        local_rank=number("LOCAL_RANK", 0),
        local_world_size=number("LOCAL_WORLD_SIZE", 1),
        node_rank=number("NODE_RANK", 0),
    )


def resume_from() -> Path | None:
    """Folder with the files of the newest complete checkpoint of this job (of all ranks together), or None.

    Where a worker group has several nodes it holds a share of the files that `remora.torch.sharded` has written, which
    reads them together.  Treat it as read-only.  Its step is in the environment variable `REMORA_RESUME_STEP`.
    """
    folder = os.environ.get("REMORA_RESUME_DIR")
    return Path(folder) if folder else None


def report(step: int, metrics: Mapping[str, float] | None = None, *, total_steps: int | None = None) -> None:
    """Report that `step` is done, with its metrics.

    Rank 0's values become the job's metrics; other ranks may call it too.  Values need `float()` to work on them.
    A step that is done again after a loss replaces its earlier values.
    Raises ValueError for a step below 0 or above 2**53.
    """
    global _reported
    step = _checked(step)
    _reported = True
    link = open_link()
    if link is not None:
        link.report(step, metrics or {}, None if total_steps is None else _checked(total_steps))


def should_checkpoint() -> bool:
    """True when this is the step at which all ranks shall call `checkpoint`.

    Call it on every rank once per step, at the same place: the ranks agree on one step by counting these calls.
    It costs nothing until a checkpoint is wanted.
    """
    link = open_link()
    return link is not None and link.reach_boundary() is not None


@contextlib.contextmanager
def checkpoint(step: int, *, size_bytes: int | None = None) -> Iterator[Path]:
    """A folder for this rank's files of the checkpoint of `step`.

    Every rank calls it with the same step; what they wrote lies in one folder when it is resumed from, so different
    ranks use different file names, and a rank with nothing to save leaves its folder empty.  The checkpoint becomes
    visible when all ranks have left the block.  If the script raises inside, there is none.
    When `size_bytes` says how many bytes come and the node has space for them, the folder lies in memory, so that the
    script does not wait for a disk; files that are handed over outlive it either way.
    Raises ValueError for a step below 0 or above 2**53.
    """
    began = time.monotonic()
    with hand_over(step, size_bytes=size_bytes) as folder:
        yield folder
    link = open_link()
    if link is not None:
        link.stalled(step, link.taken_at - began)


@contextlib.contextmanager
def hand_over(
    step: int,
    *,
    size_bytes: int | None = None,
    generation: int | None = None,
    is_tried_again: bool = False,
) -> Iterator[Path]:
    """As `checkpoint`, for a thread for which the training loop does not wait.  For `remora.torch`.

    `generation` is the worker group whose state it is, when that may not be the present one any more.
    `is_tried_again`: after an OSError the caller writes the same once more, so that it is not given up.
    """
    step = _checked(step)
    link = open_link()
    area, parent = _storage_area(size_bytes) if link is not None else (None, None)
    folder = Path(tempfile.mkdtemp(prefix=f"checkpoint-{step}-", dir=parent))
    if link is not None:
        link.send({"type": "saving", "step": step})
    try:
        yield folder
    except BaseException as error:
        if link is not None and not (is_tried_again and isinstance(error, OSError)):
            of = {} if generation is None else {"generation": generation}
            link.send({"type": "abandoned", "step": step, **of})
        shutil.rmtree(folder, ignore_errors=True)
        raise
    if link is not None:
        # Where the variables are gone the supervisor refuses it, and the job's log says so.
        link.hand_over(step, area or "scratch", folder.name if parent else str(folder), generation)
    shutil.rmtree(folder, ignore_errors=True)


def _storage_area(size_bytes: int | None) -> tuple[str, str | None]:
    """Name (`memory` or `scratch`) and folder of the storage area for a checkpoint of `size_bytes` bytes."""
    in_memory = memory_folder.folder_for(size_bytes)
    return ("memory", in_memory) if in_memory else ("scratch", os.environ.get("REMORA_SCRATCH_DIR"))


def preemption() -> Preemption | None:
    """The notice that a machine of this job is about to be taken, if there is one now."""
    link = open_link()
    return link.preemption if link is not None else None


def _checked(step: int) -> int:
    number = int(step)
    if not 0 <= number <= _MAX_STEP:
        raise ValueError(f"a step is a whole number from 0 to 2**53, not {number}")
    return number


#: The script has called `report`.
_reported = False


def has_reported() -> bool:
    """Whether the script itself reports its steps.  For `remora.deepspeed`, which reports them otherwise."""
    return _reported


_opened: Link | None = None
_opening = threading.Lock()


def open_link() -> Link | None:
    """The channel of this very process; None without a supervisor, and in a process forked from one that has it.

    For `remora.torch`; scripts need the calls above only.
    """
    global _opened
    if _opened is not None:
        return _opened if _opened.pid == os.getpid() else None
    with _opening:
        descriptor = os.environ.pop(channel.FD_VARIABLE, None)
        if descriptor is None:
            return None
        try:
            _opened = Link(int(descriptor))
        except (OSError, ValueError):
            return None
        return _opened
