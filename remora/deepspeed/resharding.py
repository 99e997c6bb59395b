"""Reshards a DeepSpeed checkpoint where another number of workers reads it.

ZeRO writes the part of the optimizer that each worker holds, which only as many workers can read.  DeepSpeed's
universal checkpoint has every parameter whole; it is made when it is needed, once on each machine, in processes of its
own (`remora.deepspeed.conversion_process`).  Why not after each checkpoint:
`docs/decisions/0044-deepspeed-is-wrapped-at-its-import.md`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist

from remora import training
from remora.deepspeed.conversion_process import converted, folder_of, is_needed
from remora.deepspeed.record import Record
from remora.deepspeed.refusal import Refused

T = TypeVar("T")


def readable_by(resume: Path, record: Record, present: Record) -> tuple[Path, bool]:
    """The folder from which the present workers can load, and whether its files are a universal checkpoint.

    Every rank calls it.
    """
    if not is_needed(resume, record, present.copies):
        return resume, False
    world = training.world()

    def make() -> tuple[int, str] | None:
        if world.local_rank != 0:
            return None
        return world.node_rank, str(converted(resume / record.tag, folder_of(resume)))

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
