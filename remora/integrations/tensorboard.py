"""TensorBoard's `SummaryWriter` for a job: one folder that all attempts write to, with every step in it once.

    from remora.integrations.tensorboard import summary_writer

    if training.world().rank == 0:
        writer = summary_writer()
        writer.add_scalar("loss", loss, step)

Needs torch and tensorboard.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

__all__ = ["summary_writer"]

#: Below the outputs folder.
_FOLDER = "tensorboard"


def summary_writer(
    log_dir: str | os.PathLike[str] | None = None, *, first_step: int | None = None, **options: Any
) -> SummaryWriter:
    """A writer that takes back the steps which are done again; call it on one rank.

    `log_dir`: by default `tensorboard` in the outputs folder, or in the working folder outside Remora; another one has
    to be an output of the job to outlive the machine.  `first_step`: the first step that is written here, by default
    the one after the checkpoint from which the job resumes, or 0.  `options`: those of `SummaryWriter`.  Raises
    ValueError for a `first_step` below 0 and for `purge_step`.
    """
    if "purge_step" in options:
        raise ValueError("summary_writer sets purge_step: say first_step")
    first = _after_resume() if first_step is None else first_step
    if first < 0:
        raise ValueError(f"first_step is a step, and {first} is below 0")
    if log_dir is None:
        log_dir = Path(os.environ.get("REMORA_OUTPUTS_DIR", "."), _FOLDER)
    return SummaryWriter(str(log_dir), purge_step=first, **options)


def _after_resume() -> int:
    resumed = os.environ.get("REMORA_RESUME_STEP", "")
    return int(resumed) + 1 if resumed.isdecimal() else 0
