"""Reshards a DeepSpeed checkpoint where another number of workers reads it.

ZeRO writes the part of the optimizer that each worker holds, which only as many workers can read.  DeepSpeed's
universal checkpoint has every parameter whole; it is made when it is needed, once on each machine.  Why not after each
checkpoint: `docs/decisions/0044-deepspeed-is-wrapped-at-its-import.md`.

Source: https://www.deepspeed.ai/tutorials/universal-checkpointing/
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist

from remora import training
from remora.deepspeed.record import Record
from remora.deepspeed.refusal import Refused

T = TypeVar("T")

#: Files by which ZeRO's parts of the optimizer are known.
_PARTS = "*_optim_states.pt"
#: The folder of what DeepSpeed had swapped to NVMe, with one of each rank in it.
_OFFLOADED = "offloaded_tensors"


def readable_by(resume: Path, record: Record, present: Record) -> tuple[Path, bool]:
    """The folder from which the present workers can load, and whether its files are a universal checkpoint.

    Every rank calls it.
    """
    if record.copies == present.copies or not any((resume / record.tag).glob(_PARTS)):
        return resume, False
    if (resume / record.tag / _OFFLOADED).is_dir():
        raise Refused(
            f"the state of the optimizer in this checkpoint was on NVMe, in files of each of {record.copies} workers,"
            f" and {present.copies} cannot divide it: start as many workers as wrote it"
        )
    world = training.world()
    target = Path(os.environ["REMORA_SCRATCH_DIR"]) / "universal"

    def make() -> tuple[int, str] | None:
        if world.local_rank != 0:
            return None
        convert(resume / record.tag, target / record.tag)
        return world.node_rank, str(target)

    # Workers of one machine share what the first of them made.
    made = dict(one for one in agree(make) if one is not None)
    return Path(made[world.node_rank]), True


def agree(work: Callable[[], T]) -> list[T]:
    """Do something on every rank, and return what each made; when one refuses, all do, with its sentence.

    Every rank calls it.  A rank that ended alone would leave the others with an error of their network.
    """
    own: tuple[T | None, str | None]
    try:
        own = (work(), None)
    except Refused as refused:
        own = (None, str(refused))
    answers: list[Any] = [None] * training.world().world_size
    dist.all_gather_object(answers, own)
    for _, refusal in answers:
        if refusal is not None:
            raise Refused(refusal)
    return [made for made, _ in answers]


def convert(source: Path, target: Path) -> None:
    """Write the universal form of a checkpoint's folder; raises Refused where DeepSpeed cannot."""
    from deepspeed.checkpoint.ds_to_universal import main

    target.parent.mkdir(parents=True, exist_ok=True)
    wanted = argparse.Namespace(
        input_folder=str(source),
        output_folder=str(target),
        # Worker processes would be forked from one that has threads of gloo or CUDA.
        num_extract_workers=1,
        num_merge_workers=1,
        keep_temp_folder=False,
        strict=True,
        inject_missing_state=True,
    )
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            main(wanted)
    except Exception as error:  # DeepSpeed's converter fails in many ways at layouts that it does not know.
        why = next(iter(str(error).splitlines()), "no reason is given")
        raise Refused(
            f"DeepSpeed cannot reshard this checkpoint for another number of workers ({type(error).__name__}: {why});"
            " start as many workers as wrote it"[:600]
        ) from error
