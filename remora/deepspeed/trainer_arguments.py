"""TrainingArguments of transformers with DeepSpeed: the batch of a step is the job's, and the accumulation follows.

A script writes what one device trains at once, `per_device_train_batch_size`, and "auto" into its configuration.  The
numbers are replaced before transformers fills them into the configuration, so that its steps, its schedule and its
place in the data follow from them.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from remora import training
from remora.deepspeed.configuration import MICRO, ROUNDS, batch_of, check, check_resizable, filled
from remora.deepspeed.record import read
from remora.deepspeed.refusal import Refused, end_refused


def wrap_arguments(module: Any) -> None:
    """Have TrainingArguments of `transformers.training_args` follow the number of workers."""
    arguments = module.TrainingArguments
    original = arguments.__post_init__

    @functools.wraps(original)
    def __post_init__(self: Any) -> None:  # noqa: N807
        if self.deepspeed:
            try:
                fit(self)
            except Refused as refused:
                end_refused(refused)
        original(self)

    arguments.__post_init__ = __post_init__


def fit(arguments: Any) -> None:
    """Give these TrainingArguments the batch and the accumulation for the present workers.  Raises Refused."""
    config = config_of(arguments.deepspeed)
    if config is None:
        return
    if os.environ.get("REMORA_RESIZABLE") == "1":
        check_resizable(config)
    parts = config.get("tensor_parallel")
    if isinstance(parts, Mapping) and parts.get("autotp_size") not in (None, 0, 1):
        raise Refused(
            "tensor_parallel.autotp_size in the DeepSpeed configuration of a Trainer is not supported: leave it out,"
            " and use a stage of ZeRO"
        )
    micro, rounds = arguments.per_device_train_batch_size, arguments.gradient_accumulation_steps
    said = batch_of(config)
    _check_equal(MICRO, said.micro, "per_device_train_batch_size", micro)
    _check_equal(ROUNDS, said.rounds, "gradient_accumulation_steps", rounds)
    workers = training.world().world_size
    total = check(config, global_batch_of_job()) or batch_before() or _total_first(micro * rounds, workers)
    # What is fixed is the batch of a step; rounds that the script writes hold for one number of workers.
    numbers = filled({MICRO: micro}, workers, total)
    arguments.per_device_train_batch_size = numbers[MICRO]
    arguments.gradient_accumulation_steps = numbers[ROUNDS]
    arguments.deepspeed = {**config, **numbers}


def _check_equal(name: str, said: int | None, argument: str, value: int) -> None:
    if said not in (None, value):
        raise Refused(
            f"{name} is {said} in the DeepSpeed configuration and {argument} is {value} in TrainingArguments; make them"
            ' equal, or write "auto" in the configuration'
        )


def batch_before() -> int | None:
    """Samples of a step when the checkpoint that the job resumes from was written; None where there is none.

    Raises Refused for a checkpoint of another framework.
    """
    saved = training.resume_from()
    return None if saved is None else read(saved, os.environ.get("REMORA_RESUME_STEP", "?")).global_batch


def _total_first(of_one_worker: int, workers: int) -> int:
    """Samples of a step where neither job nor configuration says them: those of `shards`, or of the first group."""
    shards = os.environ.get("REMORA_SHARDS")
    return of_one_worker * (int(shards) if shards else workers)


def config_of(given: Any) -> dict[str, Any] | None:
    """A configuration: a dictionary, the path of a file, or a text of JSON; None for what only DeepSpeed can read.

    Raises Refused for a file that is none.
    """
    if isinstance(given, Mapping):
        return dict(given)
    if isinstance(given, str) and given.lstrip().startswith("{"):
        return _read(given, "the text that is given", json)
    if not isinstance(given, str | os.PathLike) or not Path(given).is_file():
        return None
    try:
        import hjson as reader
    except ImportError:
        reader = json
    try:
        text = Path(given).read_text()
    except (OSError, ValueError) as error:
        raise Refused(f"{given} cannot be read: {str(error).splitlines()[0]}") from None
    return _read(text, str(given), reader)


def _read(text: str, name: str, reader: Any) -> dict[str, Any]:
    try:
        return dict(reader.loads(text))
    except (ValueError, TypeError, RecursionError) as error:
        why = next(iter(str(error).splitlines()), "too many brackets")
        raise Refused(f"{name} is no DeepSpeed configuration: {why}") from None


def global_batch_of_job() -> int | None:
    """`elastic.global_batch` of the job."""
    asked = os.environ.get("REMORA_GLOBAL_BATCH")
    return int(asked) if asked else None
