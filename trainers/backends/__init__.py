"""What differs between the frameworks that a job may name in `backend`."""

from __future__ import annotations

from collections.abc import Mapping

from remora.spec.backends import BackendName
from trainers.backends.backend import Backend
from trainers.backends.deepspeed import DeepSpeed
from trainers.backends.jax import Jax
from trainers.backends.mpi import Mpi
from trainers.backends.tensorflow import TensorFlow

_BACKENDS: Mapping[BackendName, Backend] = {
    "ddp": Backend(),
    # The same environment: what the models are cut into, and how they are put together again, is the script's affair.
    "fsdp": Backend(),
    "deepspeed": DeepSpeed(),
    "tensorflow": TensorFlow(),
    "jax": Jax(),
    "mpi": Mpi(),
    "command": Backend(),
}


def backend_of(name: BackendName) -> Backend:
    """The backend of that name."""
    return _BACKENDS[name]
