"""A Trainer of transformers that trains with DeepSpeed: its steps and checkpoints are those of the job.

The script is unmodified.  A checkpoint of the job has the files of the Trainer's own checkpoint folder, of all ranks,
and the best weights where they are wanted at the end, because the node that holds the folder may be lost.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remora import training
from remora.deepspeed.files_shown import show
from remora.deepspeed.refusal import Refused, end_refused

if TYPE_CHECKING:
    from remora.deepspeed.best_weights import BestWeights

#: Methods of a Trainer that are wrapped or called.
NEEDED = (
    "_determine_best_metric",
    "_get_output_dir",
    "_init_training_state",
    "_load_best_model",
    "_maybe_log_save_evaluate",
    "_save_checkpoint",
    "train",
)
_STATE, _WEIGHTS = "trainer_state.json", "pytorch_model.bin"
#: The Trainer of this process that trains, or has.
_training: TrainerPart | None = None


def wrap_trainer(module: Any) -> None:
    """Have Trainers of `transformers.trainer` take part in the job where they train with DeepSpeed."""
    trainer = module.Trainer
    missing = [name for name in NEEDED if not hasattr(trainer, name)]
    _wrap_train(trainer, module, missing)
    if not missing:
        for name in ("_determine_best_metric", "_init_training_state", "_load_best_model"):
            _wrap(trainer, name, getattr(TrainerPart, name.lstrip("_")))
        _wrap(trainer, "_maybe_log_save_evaluate", TrainerPart.log_save_evaluate)
        _wrap(trainer, "_save_checkpoint", TrainerPart.save_checkpoint)


def _wrap_train(trainer: Any, module: Any, missing: list[str]) -> None:
    original = trainer.train

    @functools.wraps(original)
    def train(self: Any, resume_from_checkpoint: Any = None, *arguments: Any, **named: Any) -> Any:
        if self.is_deepspeed_enabled:
            try:
                _check_version(missing)
                saved = _begin(self, module, arguments, named).saved
            except Refused as refused:
                end_refused(refused)
            if saved is not None:
                resume_from_checkpoint = str(saved)
        return original(self, resume_from_checkpoint, *arguments, **named)

    trainer.train = train


def _wrap(trainer: Any, name: str, wrapping: Callable[..., Any]) -> None:
    """Have `wrapping(part, original, ...)` stand for a method of Trainers that take part."""
    original = getattr(trainer, name)

    @functools.wraps(original)
    def method(self: Any, *arguments: Any, **named: Any) -> Any:
        bound = functools.partial(original, self)
        if _training is None or _training.trainer is not self:
            return bound(*arguments, **named)
        return wrapping(_training, bound, *arguments, **named)

    setattr(trainer, name, method)


def _check_version(missing: list[str]) -> None:
    if missing:
        raise Refused(
            f"this version of transformers has no Trainer.{missing[0]}, which a Trainer with DeepSpeed needs here:"
            " install transformers 5.19 or newer, and a newer Remora where that is not enough"
        )


def _begin(trainer: Any, module: Any, arguments: Any, named: Any) -> TrainerPart:
    global _training
    if _training is not None:
        raise Refused("a job trains once: submit a job for each train() of the script")
    trial = named.get("trial", arguments[0] if arguments else None)
    if (text := next(_refused(trainer, trial), None)) is not None:
        raise Refused(text)
    _training = TrainerPart(trainer, module)
    return _training


def _refused(trainer: Any, trial: Any) -> Iterator[str]:
    """Why this Trainer cannot train with a changing number of workers, and what to do instead."""
    args = trainer.args
    if not args.deepspeed:
        yield (
            "DeepSpeed is configured by variables of accelerate, which do not follow the number of workers: write"
            " deepspeed='ds.json' into TrainingArguments"
        )
    if trial is not None:
        yield "hyperparameter_search trains several models in one script: submit a job for each of them"
    if args.auto_find_batch_size:
        yield "auto_find_batch_size may find another size on each worker: set per_device_train_batch_size"
    if args.train_sampling_strategy not in ("random", "sequential"):
        yield (
            f"train_sampling_strategy='{args.train_sampling_strategy}' makes an order that depends on the number of"
            " workers: use 'random' or 'sequential'"
        )
    if args.parallelism_config is not None or trainer.accelerator.split_batches:
        yield (
            "parallelism_config and split_batches divide batches in another way than elastic.global_batch: leave them"
            " out"
        )
    if args.save_on_each_node:
        yield "save_on_each_node writes the same files on several workers: leave it out, Remora stores those of all"
    if args.save_only_model:
        yield "save_only_model leaves out the state of the optimizer, from which a job resumes: leave it out"
    if args.load_best_model_at_end and (name := _hidden_parts(trainer)) is not None:
        yield (
            f"load_best_model_at_end copies each worker's parts of the weights, and with {name} DeepSpeed keeps them"
            " elsewhere: leave one of the two out"
        )


def _hidden_parts(trainer: Any) -> str | None:
    """The setting of stage 3 with which a worker's parts of the weights are not in its memory; None: they are there."""
    plugin = trainer.accelerator.state.deepspeed_plugin
    zero = plugin.deepspeed_config.get("zero_optimization", {})
    if plugin.zero_stage != 3:
        return None
    if (zero.get("offload_param") or {}).get("device") == "nvme":
        return "offload_param to nvme"
    several = ("zero_hpz_partition_size", "mics_shard_size")
    return next((name for name in several if int(zero.get(name) or 0) > 1), None)


class TrainerPart:
    """One Trainer whose steps and checkpoints are those of the job."""

    def __init__(self, trainer: Any, module: Any) -> None:
        self.trainer = trainer
        #: The checkpoint to resume from.
        self.saved = training.resume_from()
        self._rotate = module.rotate_checkpoints
        #: A checkpoint was asked for, and no step was saved since.
        self._is_due = False
        #: Newest step whose files the job has, and that is reported; numbers that were logged at that.
        self._kept = self._reported = -1
        self._numbers: dict[str, float] = {}
        self._new: dict[str, float] = {}
        #: The weights with the best metric, where they are to be loaded at the end.
        self._best = self._read_saved()
        trainer.add_callback(_callback_of(self, module))

    def _read_saved(self) -> BestWeights | None:
        if self.saved is not None and not (self.saved / _STATE).is_file():
            raise Refused(
                f"the checkpoint of step {os.environ.get('REMORA_RESUME_STEP', '?')} was not written by a Trainer;"
                " resume it with the script that wrote it, or submit the job again"
            )
        if not self.trainer.args.load_best_model_at_end:
            return None
        from remora.deepspeed.best_weights import best_weights_of

        return best_weights_of(self.trainer.accelerator.state.deepspeed_plugin.zero_stage, self.saved)

    # --- steps

    def step_ended(self) -> None:
        """Ask whether the job wants a checkpoint: ranks agree by counting these calls."""
        self._is_due |= training.should_checkpoint()

    def logged(self, logs: dict[str, Any]) -> None:
        """Keep numbers for the report of the step."""
        self._new.update(
            {
                name: float(value)
                for name, value in logs.items()
                if isinstance(value, int | float) and name != "step"
            }
        )

    def log_save_evaluate(self, original: Callable[..., Any], *arguments: Any, **named: Any) -> None:
        """As the Trainer's, which it calls after each step and after each epoch; then what the job wants."""
        original(*arguments, **named)
        self._report()
        if self._is_due and self._is_over():
            model = named.get("model", arguments[2] if len(arguments) > 2 else None)
            self.trainer._save_checkpoint(model, None)

    def _is_over(self) -> bool:
        """No evaluation at the end of the epoch follows this call, which a resume would leave out."""
        state, control = self.trainer.state, self.trainer.control
        is_last = control.should_training_stop or control.should_epoch_stop or state.epoch == int(state.epoch)
        return self._has_ended_epoch or not is_last

    _has_ended_epoch = False

    def epoch(self, has_ended: bool) -> None:
        """Know whether the Trainer is between two epochs."""
        self._has_ended_epoch = has_ended

    def _report(self) -> None:
        state = self.trainer.state
        step, new = int(state.global_step), self._new
        if step == self._reported and not new:
            return
        # A second report of a step stands for the first.
        self._numbers = {**self._numbers, **new} if step == self._reported else new
        self._reported, self._new = step, {}
        training.report(step, self._numbers, total_steps=int(state.max_steps))

    # --- the best weights

    def determine_best_metric(self, original: Callable[..., Any], *arguments: Any, **named: Any) -> bool:
        """As the Trainer's; keeps the weights where they are the best ones."""
        is_best = bool(original(*arguments, **named))
        if is_best and self._best is not None:
            self._best.keep(self.trainer.model)
        return is_best

    def init_training_state(self, original: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """As the Trainer's; its folder with the best weights may have been on a node that is lost."""
        made = original(*arguments, **named)
        trainer = self.trainer
        if self._best is not None and self._best.are_kept and trainer.state.best_global_step:
            folder = Path(trainer.args.output_dir) / f"checkpoint-{trainer.state.best_global_step}"
            if trainer.args.should_save and not folder.is_dir():
                folder.mkdir(parents=True)
                self._best.write_for_trainer(folder / _WEIGHTS)
            trainer.state.best_model_checkpoint = str(folder)
        return made

    def load_best_model(self, original: Callable[..., Any]) -> None:  # noqa: ARG002
        """In place of the Trainer's, which reads files of all ranks."""
        if self._best is not None and self._best.are_kept:
            self._best.load(self.trainer.model)

    # --- checkpoints

    def save_checkpoint(self, original: Callable[..., Any], model: Any, trial: Any) -> None:
        """As the Trainer's, and a checkpoint of the job."""
        trainer, step = self.trainer, int(self.trainer.state.global_step)
        self._report()
        self._is_due = False
        if step == self._kept:
            original(model, trial)
            return
        own_folder = trainer._get_output_dir(trial=trial)
        target = Path(own_folder) / f"checkpoint-{step}"
        with training.checkpoint(step) as folder:
            trainer._get_output_dir = lambda *_, **__: str(folder)
            try:
                original(model, trial)
            finally:
                del trainer._get_output_dir
            if trainer.state.best_global_step == step:
                trainer.state.best_model_checkpoint = str(target)
            written = folder / target.name
            written.mkdir(exist_ok=True)
            if trainer.args.should_save:
                self._complete(written)
            show(written, target)
            # The files of all ranks lie in one folder when the job resumes.
            for entry in list(written.iterdir()):
                entry.rename(folder / entry.name)
            written.rmdir()
            if self._best is not None and self._best.are_kept:
                self._best.write(folder, trainer.model)
        self._kept = step
        if trainer.args.should_save:
            self._rotate(
                output_dir=own_folder,
                save_total_limit=trainer.args.save_total_limit,
                best_model_checkpoint=trainer.state.best_model_checkpoint,
                use_mtime=True,
            )

    def _complete(self, written: Path) -> None:
        """Name the best folder as the script will find it, and not where it was handed over."""
        file = written / _STATE
        state = {
            **json.loads(file.read_text()),
            "best_model_checkpoint": self.trainer.state.best_model_checkpoint,
        }
        file.write_text(json.dumps(state, indent=2, sort_keys=True) + "\n")


def _callback_of(part: TrainerPart, module: Any) -> Any:
    class Callback(module.TrainerCallback):  # type: ignore[misc]  # known when transformers is imported
        """Shows the part where the Trainer is."""

        def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
            part.epoch(has_ended=False)

        def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
            part.epoch(has_ended=True)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
            part.step_ended()

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:  # noqa: ARG002
            part.logged(logs or {})

    return Callback()
