"""The frameworks that a job may name in `backend`."""

from __future__ import annotations

from typing import Literal, get_args

#: `trainers/backends/` has a module for each that needs more than torchrun's environment.
BackendName = Literal["ddp", "fsdp", "deepspeed", "tensorflow", "jax", "mpi", "command"]

BACKENDS: tuple[str, ...] = get_args(BackendName)
#: What a later version will have.
LATER_BACKENDS = ("horovod",)
#: `BACKENDS` as a sentence has them.
BACKEND_WORDS = f"{', '.join(BACKENDS[:-1])} or {BACKENDS[-1]}"
