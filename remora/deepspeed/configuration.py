"""Numbers of a DeepSpeed configuration that the job decides (pure).

`train_batch_size` = `train_micro_batch_size_per_gpu` x `gradient_accumulation_steps` x copies of the model, where the
copies are the workers divided by those that hold one model together.  The first stays the same whatever happens to the
workers, so the learning rate does; the other two follow.

Source: https://www.deepspeed.ai/docs/config-json/#batch-size-related-parameters
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from remora.deepspeed.refusal import Refused

TOTAL, MICRO, ROUNDS = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
_AUTO = "auto"
#: DeepSpeed has no default of its own where these are "auto".
_NEEDED = ("optimizer", "scheduler", "fp16", "bf16", "gradient_clipping", "tensor_parallel")


@dataclass(frozen=True)
class Batch:
    """How a global batch is divided among the workers; None: not given."""

    total: int | None
    #: Samples of one forward pass of one worker.
    micro: int | None
    #: Forward passes of one step.
    rounds: int | None


def batch_of(config: Mapping[str, Any]) -> Batch:
    """What a configuration says about batches, "auto" left out; raises Refused for what is no number."""
    return Batch(*(_count(config, name) for name in (TOTAL, MICRO, ROUNDS)))


def check_resizable(config: Mapping[str, Any]) -> None:
    """Raise Refused for a configuration whose checkpoints only as many workers can load as wrote them.

    What DeepSpeed offloads to NVMe lies in files of each rank, which its checkpoints have as they are, and which no
    other number of ranks can divide among themselves.  Below stage 3 it offloads to the memory, whatever is named.
    """
    zero = config.get("zero_optimization")
    if not isinstance(zero, Mapping) or zero.get("stage") != 3:
        return
    for name in ("offload_optimizer", "offload_param"):
        section = zero.get(name)
        if isinstance(section, Mapping) and section.get("device") == "nvme":
            raise Refused(
                f'zero_optimization.{name}.device is "nvme" in the DeepSpeed configuration, of which DeepSpeed can load'
                " checkpoints only with as many workers as wrote them, and the job may have other numbers of workers;"
                ' write "cpu" there, or make workers.min and workers.max of the job equal'
            )


def check(config: Mapping[str, Any], global_batch: int | None) -> int | None:
    """The global batch that job and configuration agree on; None when neither says one.  Raises Refused."""
    if isinstance(elasticity := config.get("elasticity"), Mapping) and elasticity.get("enabled"):
        raise Refused(
            "elasticity.enabled is true in the DeepSpeed configuration, and Remora changes the number of workers"
            " itself; leave that section out"
        )
    said = batch_of(config)
    if global_batch is not None and said.total not in (None, global_batch):
        raise Refused(
            f"{TOTAL} is {said.total} in the DeepSpeed configuration and elastic.global_batch is {global_batch} in the"
            ' job; make them equal, or write "auto" in the configuration'
        )
    total = global_batch or said.total
    if total and said.micro and said.rounds and total % (said.micro * said.rounds):
        raise Refused(
            f"{MICRO} is {said.micro} and {ROUNDS} is {said.rounds} in the DeepSpeed configuration, of which no number"
            f' of workers makes the global batch of {total}; write "auto" for one of them'
        )
    return total


def filled(config: Mapping[str, Any], copies: int, global_batch: int | None) -> dict[str, Any]:
    """The configuration for this number of copies of the model, with every "auto" of a batch replaced.  Raises Refused.

    A micro-batch that is given is what fits on a device: it is made smaller where it does not divide a worker's share.
    Rounds that are given hold for the number of workers that they make the global batch with.
    """
    total = check(config, global_batch)
    if unknown := next(_unknown(config), None):
        raise Refused(
            f'{unknown} is "auto" in the DeepSpeed configuration, and the job does not say it; write a value there'
        )
    said = batch_of(config)
    rest = {name: value for name, value in config.items() if name not in (TOTAL, MICRO, ROUNDS)}
    if total is None:
        if said.micro is None:
            raise Refused(
                f"neither the DeepSpeed configuration nor the job says how large a batch is; write"
                f" elastic.global_batch into the job, or {TOTAL} into the configuration"
            )
        return {**rest, MICRO: said.micro, ROUNDS: said.rounds or 1}
    if total % copies:
        raise Refused(
            f"a global batch of {total} samples cannot be divided equally among {copies} workers that each train a copy"
            " of the model; change elastic.global_batch or workers"
        )
    micro, rounds = _divided(total // copies, said)
    return {**rest, TOTAL: total, MICRO: micro, ROUNDS: rounds}


def _divided(share: int, said: Batch) -> tuple[int, int]:
    """Micro-batch and rounds of one worker's share."""
    if said.micro is None:
        rounds = next(n for n in range(min(said.rounds or 1, share), share + 1) if share % n == 0)
        return share // rounds, rounds
    micro = next(n for n in range(min(said.micro, share), 0, -1) if share % n == 0)
    return micro, share // micro


def _count(config: Mapping[str, Any], name: str) -> int | None:
    value = config.get(name)
    if value is None or value == _AUTO:
        return None
    if type(value) is not int or value < 1:
        raise Refused(
            f'{name} is {value!r} in the DeepSpeed configuration; write a whole number above 0, or "auto"'
        )
    return value


def _unknown(config: Mapping[str, Any]) -> Iterator[str]:
    for name in _NEEDED:
        yield from _autos(name, config.get(name))


def _autos(name: str, value: object) -> Iterator[str]:
    if value == _AUTO:
        yield name
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from _autos(f"{name}.{key}", one)
