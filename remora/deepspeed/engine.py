"""A DeepSpeed engine that takes part in the checkpoints of its job.

What the script saves with `engine.save_checkpoint` lies in the folder that it names, as ever, and is a checkpoint of
the job besides: it outlives the machine.  The first `engine.load_checkpoint` of a script that goes on after a loss or
another attempt reads the job's newest checkpoint, whatever number of workers wrote it.
"""

from __future__ import annotations

import atexit
import inspect
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from remora import training
from remora.deepspeed.files_shown import show
from remora.deepspeed.record import Record, check_fits, digest_of, read, relative_folder, write
from remora.deepspeed.refusal import Refused, end_refused
from remora.deepspeed.resharding import agree, readable_by
from remora.deepspeed.trainer_arguments import global_batch_of_job

#: The engine of this process that takes part; another one, as of a critic beside its actor, is the script's own.
_attached: AttachedEngine | None = None


def attach(engine: Any) -> None:
    """Have this engine save, load and step with Remora, if it is the first one of this process."""
    global _attached
    if _attached is not None:
        _attached.is_alone = False
        if training.world().rank == 0:
            print(
                "remora: this script has another DeepSpeed engine; the first one takes part in the job's checkpoints,"
                " and this one does not",
                file=sys.stderr,
                flush=True,
            )
        return
    attached = _attached = AttachedEngine(engine)
    engine.save_checkpoint = attached.save
    engine.load_checkpoint = attached.load
    for name in ("step", "train_batch"):
        if hasattr(engine, name):
            setattr(engine, name, attached.counting(getattr(engine, name)))


def is_first() -> bool:
    """Whether the next engine of this process is its first one."""
    return _attached is None


def copies_of(model: Any, mpu: Any, config: Mapping[str, Any]) -> int:
    """How many copies of the model the workers train."""
    world_size = training.world().world_size
    if hasattr(model, "topology") and hasattr(model, "num_stages"):
        return int(model.topology().get_dim("data") or 1)
    if mpu is not None:
        return int(mpu.get_data_parallel_world_size())
    parts = _parts(config)
    if world_size % parts:
        raise Refused(
            f"tensor_parallel.autotp_size is {parts} in the DeepSpeed configuration, and {world_size} workers cannot be"
            f" cut into whole copies of the model; write workers: {{multiple_of: {parts}}} into the job"
        )
    return world_size // parts


def counts_every_worker(model: Any, mpu: Any, config: Mapping[str, Any]) -> bool:
    """True where DeepSpeed takes each part of a tensor for a copy of the model when it checks the size of a batch."""
    return mpu is None and not hasattr(model, "num_stages") and _parts(config) > 1


def _parts(config: Mapping[str, Any]) -> int:
    """Into how many parts DeepSpeed splits tensors by itself."""
    tensor_parallel = config.get("tensor_parallel")
    asked = tensor_parallel.get("autotp_size") if isinstance(tensor_parallel, Mapping) else None
    return max(1, asked or 1)


class AttachedEngine:
    """An engine whose steps and checkpoints are those of the job."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._save, self._load = engine.save_checkpoint, engine.load_checkpoint
        self._working_folder = Path.cwd()
        self._resume = training.resume_from()
        #: A step that was done and is not reported yet: the script may report it itself.
        self._unreported: int | None = None
        #: No other engine was made in this process.
        self.is_alone = True
        self._has_reported_batch = False
        #: The newest step whose files the job has.
        self._kept: int | None = None
        atexit.register(self._report_step)

    # --- steps

    def counting(self, original: Any) -> Any:
        """The engine's method, which reports each step when it is done."""

        def counted(*arguments: Any, **named: Any) -> Any:
            self._report_batch()
            result = original(*arguments, **named)
            step = int(self._engine.global_steps)
            if step != self._unreported:
                self._report_step()
                self._unreported = step
                self._warn_of_forgotten_checkpoint()
            return result

        return counted

    def _report_batch(self) -> None:
        """Have the job keep the batch of its first worker group, where it names none itself; once.

        At the first step, when a script has made all of its engines: the job's batch would be that of each of them.
        """
        if self._has_reported_batch:
            return
        self._has_reported_batch = True
        link = training.open_link()
        if self.is_alone and link is not None and global_batch_of_job() is None:
            link.send({"type": "batch", "samples": _global_batch(self._engine)})

    def _report_step(self) -> None:
        step, self._unreported = self._unreported, None
        link = training.open_link()
        if step and link is not None and not training.has_reported():
            rates = self._engine.get_lr()
            link.report(step, {"lr": rates[0]} if rates else {}, None)

    def _warn_of_forgotten_checkpoint(self) -> None:
        if self._resume is not None:
            self._resume = None
            if training.world().rank == 0:
                print(
                    "remora: this job has a checkpoint, and the script trains without having called"
                    " engine.load_checkpoint; it begins from the start",
                    file=sys.stderr,
                    flush=True,
                )

    # --- saving

    def save(
        self, save_dir: Any, tag: Any = None, client_state: Any = None, *arguments: Any, **named: Any
    ) -> Any:
        """As `engine.save_checkpoint`, and for the job too."""
        step = int(self._engine.global_steps)
        tag = str(tag) if tag is not None else f"global_step{step}"
        client_state = {} if client_state is None else client_state
        if _is_handed_over(Path(save_dir)):
            return self._save_into(Path(save_dir), Path(save_dir), tag, client_state, *arguments, **named)
        if step == self._kept:
            return self._save(save_dir, tag, client_state, *arguments, **named)
        self._report_step()
        # The ranks agree on a checkpoint by counting these calls, and this one is the script's own.
        training.should_checkpoint()
        with training.checkpoint(step) as folder:
            result = self._save_into(folder, Path(save_dir), tag, client_state, *arguments, **named)
            show(folder, self._working_folder / save_dir)
            self._kept = step
        return result

    def _save_into(
        self, folder: Path, named_folder: Path, tag: str, client_state: Any, *arguments: Any, **named: Any
    ) -> Any:
        # Every rank has a folder of its own, and DeepSpeed makes one for all.
        (folder / tag).mkdir(parents=True, exist_ok=True)
        result = self._save(str(folder), tag, client_state, *arguments, **named)
        if training.world().rank == 0:
            shown_in = relative_folder(str(named_folder), self._working_folder)
            write(self._record(tag, shown_in), folder)
        return result

    def _record(self, tag: str, folder: str | None) -> Record:
        engine, parameters = self._engine, _shapes(self._engine.module)
        return Record(
            tag=tag,
            world_size=training.world().world_size,
            copies=_copies(engine),
            stage=int(engine.zero_optimization_stage()),
            global_batch=_global_batch(engine),
            folder=folder,
            parameters=_count(parameters),
            model=digest_of(parameters),
        )

    # --- loading

    def load(self, load_dir: Any, tag: Any = None, *arguments: Any, **named: Any) -> Any:
        """As `engine.load_checkpoint`; the first whole load of a script that goes on reads the job's checkpoint."""
        if self._resume is None or not self._is_whole(load_dir, tag, *arguments, **named):
            return self._load(load_dir, tag, *arguments, **named)
        resume, self._resume = self._resume, None
        try:
            return self._load_job(_asked_of(resume, load_dir), *arguments, **named)
        except Refused as refused:
            end_refused(refused)

    def _is_whole(self, *arguments: Any, **named: Any) -> bool:
        """True for a call that loads the state of the optimizer too."""
        try:
            given = inspect.signature(self._load).bind(*arguments, **named).arguments
        except TypeError:
            # DeepSpeed says itself what is wrong with such a call.
            return False
        return bool(given.get("load_optimizer_states", True) and not given.get("load_module_only"))

    def _load_job(self, resume: Path, *arguments: Any, **named: Any) -> Any:
        engine, step = self._engine, os.environ.get("REMORA_RESUME_STEP", "?")
        record = read(resume, step)
        present = self._record(record.tag, record.folder)
        agree(lambda: check_fits(record, present, step) if training.world().rank == 0 else None)
        folder, is_universal = readable_by(resume, record, present)
        engine._config.load_universal_checkpoint = is_universal
        try:
            found = self._load(str(folder), record.tag, *arguments, **named)
        except (RuntimeError, KeyError, FileNotFoundError, AssertionError) as error:
            why = next(iter(str(error).splitlines()), type(error).__name__)
            raise Refused(f"the checkpoint of step {step} cannot be loaded: {why}"[:600]) from error
        finally:
            engine._config.load_universal_checkpoint = False
        self._kept = int(engine.global_steps)
        return found


def _is_handed_over(folder: Path) -> bool:
    """True for a folder that `training.checkpoint` gave the script."""
    given = (os.environ.get("REMORA_SCRATCH_DIR"), os.environ.get("REMORA_MEMORY_DIR"))
    return any(one and folder.is_relative_to(one) for one in given)


def _asked_of(resume: Path, folder: Any) -> Path:
    """The part of the checkpoint to resume from that the script names, else all of it."""
    named = Path(str(folder))
    return named if named.is_relative_to(resume) else resume


def _copies(engine: Any) -> int:
    return int(engine.dp_world_size)


def _global_batch(engine: Any) -> int:
    """Samples of one step; `engine.train_batch_size()` counts them once for each part of a tensor."""
    return int(engine.train_micro_batch_size_per_gpu() * engine.gradient_accumulation_steps()) * _copies(
        engine
    )


def _shapes(module: Any) -> list[tuple[str, tuple[int, ...]]]:
    """Names and shapes of all parameters, whole ones where ZeRO has cut them."""
    return [
        (name, tuple(getattr(parameter, "ds_shape", parameter.shape)))
        for name, parameter in module.named_parameters()
    ]


def _count(shapes: list[tuple[str, tuple[int, ...]]]) -> int:
    total = 0
    for _, shape in shapes:
        size = 1
        for length in shape:
            size *= length
        total += size
    return total
