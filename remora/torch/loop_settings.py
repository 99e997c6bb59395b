"""What the user asked of a loop, checked; and the switches of torch that `bitwise` needs."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal, TypeVar, get_args

import torch

from remora.torch.agreement import CHECK_EVERY
from remora.torch.nonfinite import Nonfinite
from remora.torch.order import check_sizes

Exactness = Literal["sample-exact", "bitwise"]
Asked = TypeVar("Asked", int, str)


@dataclass(frozen=True)
class Settings:
    """Everything that must not change while a job lives."""

    global_batch: int
    shards: int
    micro_batch: int | None
    seed: int
    shuffle: bool
    drop_last: bool
    exactness: Exactness
    epochs: int | None
    total_steps: int | None
    #: Steps between two comparisons of the workers' weights; 0: none.
    check_every: int = CHECK_EVERY
    #: What follows a loss or gradients that are not finite; None: what the script makes of it.
    nonfinite: Nonfinite | None = None
    #: Steps between two in which workers compute shards of each other; None: never.
    verify_every: int | None = None
    #: Kind of the script's own sampler or batch sampler; empty: it has none.
    sampler: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        check_sizes(self.global_batch, self.shards, self.micro_batch)
        if self.exactness not in get_args(Exactness):
            known = " or ".join(map(repr, get_args(Exactness)))
            raise ValueError(f"exactness is {known}, not {self.exactness!r}")
        if self.nonfinite not in (None, *get_args(Nonfinite)):
            raise ValueError(f"nonfinite is 'stop', 'skip' or 'rollback', not {self.nonfinite!r}")
        if self.check_every < 0:
            raise ValueError(f"check_every is a number of steps, or 0 for never, not {self.check_every}")
        if self.verify_every is not None and self.verify_every < 1:
            raise ValueError(f"verify_every is a number of steps, at least 1, not {self.verify_every}")
        if self.verify_every is not None and self.exactness != "bitwise":
            raise ValueError(
                "verify_every compares bits, which are the same on all workers only with exactness='bitwise': use both,"
                " or none of them"
            )
        if self.epochs is None and self.total_steps is None:
            raise ValueError("say when training ends: total_steps=..., epochs=..., or both")
        for name, number in (("epochs", self.epochs), ("total_steps", self.total_steps)):
            if number is not None and number < 1:
                raise ValueError(f"{name} is at least 1, not {number}")

    def data_order(self) -> dict[str, int | str | bool]:
        """What a checkpoint must agree in, so that the order of the data goes on where it was."""
        own = {"sampler": self.sampler} if self.sampler else {}
        return {
            **own,
            "global_batch": self.global_batch,
            "shards": self.shards,
            "micro_batch": self.micro_batch or 0,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "drop_last": self.drop_last,
        }


def agreed(name: str, own: Asked | None, kind: Callable[[str], Asked]) -> Asked | None:
    """What script and job say about a setting, `own` being the script's value; None when neither gives one.

    The job's value is `elastic.<name>` of its specification and comes as an environment variable.
    Raises ValueError when they contradict each other.
    """
    given = os.environ.get(f"REMORA_{name.upper()}")
    if given is None:
        return own
    asked = kind(given)
    if own not in (None, asked):
        raise ValueError(
            f"the script says {name}={own!r} and the job's elastic.{name} is {asked!r}: "
            "make them the same, or leave it out of the script"
        )
    return asked


def needed(name: str, own: int | None) -> int:
    """The number that script or job gives, as in `agreed`; raises ValueError when neither does."""
    number = agreed(name, own, int)
    if number is None:
        raise ValueError(
            f"hand over {name}=... to Loop, or write elastic.{name} into the job's specification"
        )
    return number


def check_model(model: torch.nn.Module) -> None:
    """Raise ValueError for a model that a loop cannot train."""
    is_wrapped = isinstance(model, torch.nn.parallel.DistributedDataParallel)
    if is_wrapped:
        raise ValueError("hand over the plain model (ddp.module): Loop reduces the gradients itself")
    parameters = [one for one in model.parameters() if one.requires_grad]
    if not parameters:
        raise ValueError("the model has no parameter to train")
    if any(type(one).__name__ == "DTensor" for one in model.parameters()):
        raise ValueError("the model is sharded (FSDP): Loop trains models that every worker holds as a whole")
    if any(one.device.type not in ("cpu", "cuda") for one in parameters):
        raise ValueError(
            f"the model lies on {parameters[0].device}: Loop trains on processors and NVIDIA GPUs; on others use "
            "DistributedDataParallel with the backend that REMORA_COLLECTIVES names"
        )
    if len({one.device for one in parameters}) > 1:
        raise ValueError("the parameters lie on several devices: Loop trains models that fit on one")
    check_modules(model)


def check_modules(model: torch.nn.Module) -> None:
    """Raise ValueError where a module computes something with other workers, whatever shards they have."""
    for name, module in model.named_modules():
        synchronizes = isinstance(module, torch.nn.SyncBatchNorm)
        if synchronizes:
            raise ValueError(
                f"{name or 'the model'} is a SyncBatchNorm, which meets other workers in the middle of a shard: "
                "use BatchNorm, whose statistics follow shard 0"
            )


def apply_precision() -> None:
    """Let matrix products on processors round their factors to bfloat16 where the job says so.

    The environment variable of oneDNN that says it too does not reach them: torch asks for each of them by itself.
    """
    if os.environ.get("REMORA_PRECISION") == "bf16":
        torch.set_float32_matmul_precision("medium")


def make_deterministic() -> None:
    """Make torch compute the same bits for the same micro-batch in every worker of this job.

    The number of CPU threads changes the order of sums, so it is that of OMP_NUM_THREADS, or 1.  On GPUs operations
    without a deterministic form raise an error, and cuDNN does not look for the fastest kernel.
    """
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or "1"))
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True


def fingerprint(settings: Settings, parameters: Iterable[torch.Tensor]) -> int:
    """A number that is the same in two processes only when they train the same with the same settings."""
    shapes = [(tuple(one.shape), str(one.dtype)) for one in parameters]
    # What a release adds is left out where it is not used: workers of the release before are in one group with others.
    added = (settings.sampler,) if settings.sampler else ()
    return repr_hash((settings, shapes, torch.__version__, *added))


def repr_hash(value: object) -> int:
    """A number from 0 to 2**63 - 1 that follows from how a value is written."""
    return int.from_bytes(hashlib.blake2b(repr(value).encode(), digest_size=8).digest(), "big") >> 1
