"""The training loop of a Trainer, on `Loop`: the same calls in the same order, with the gradients of all workers.

It stands where `Trainer._inner_training_loop` does, and does what `_run_epoch` does for each step.  A micro-batch is
computed by the Trainer's `training_step`, whose backward pass is left to `Loop`.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from transformers import Trainer
from transformers.trainer_callback import PrinterCallback, ProgressCallback
from transformers.trainer_utils import TrainOutput

from remora import training
from remora.integrations.loader_data import training_data
from remora.integrations.sizes import batches_of, schedule_of
from remora.integrations.transformers.callback import RemoraCallback
from remora.integrations.transformers.own_metrics import OwnMetrics
from remora.integrations.transformers.refusals import check_supported
from remora.integrations.transformers.state import TrainerProgress
from remora.integrations.transformers.world import check_one_process, follow_rank
from remora.torch import Loop, Step
from remora.torch.loop_settings import agreed

#: Names in the metrics of a step of what is counted per sample and not reported.
_FLOS, _TOKENS = "remora.flos", "remora.tokens"


class TrainingLoop:
    """One call of `Trainer.train`."""

    def __init__(
        self, trainer: Trainer, callback: RemoraCallback, resume_from_checkpoint: str | None, trial: Any
    ) -> None:
        check_one_process(trainer)
        check_supported(trainer, trial)
        _check_first()
        _check_resume(resume_from_checkpoint)
        self._trainer = trainer
        self._callback = callback
        args = trainer.args
        trainer.accelerator.free_memory()
        loader = trainer.get_train_dataloader()
        seed = args.seed if args.data_seed is None else args.data_seed
        data = training_data(loader, seed)
        self._batches = batches_of(
            trainer._train_batch_size,
            args.gradient_accumulation_steps,
            shards=agreed("shards", callback.shards, int),
            global_batch=agreed("global_batch", callback.global_batch, int),
            is_alone="REMORA_JOB_ID" not in os.environ and training.world().world_size == 1,
        )
        self._schedule = schedule_of(
            data.samples,
            self._batches,
            max_steps=args.max_steps,
            num_train_epochs=args.num_train_epochs,
            drop_last=data.drop_last,
        )
        self._samples = data.samples
        self._prepare(loader)
        self._own_metrics = OwnMetrics(trainer)
        self._progress = TrainerProgress(trainer, self._own_metrics)
        self._loop = Loop(
            trainer.model,
            trainer.optimizer,
            data=data.dataset,
            global_batch=self._batches.global_batch,
            shards=self._batches.shards,
            micro_batch=self._batches.micro_batch,
            total_steps=self._schedule.total_steps,
            seed=seed,
            scheduler=trainer.lr_scheduler,
            scaler=self._scaler,
            state={"trainer": self._progress},
            collate_fn=data.collate,
            num_workers=data.num_workers,
            shuffle=data.shuffle,
            drop_last=data.drop_last,
            exactness=callback.exactness,
            check_every=callback.check_every,
            nonfinite=callback.nonfinite,
        )

    @property
    def _scaler(self) -> Any:
        return getattr(self._trainer.accelerator, "scaler", None)

    def _prepare(self, loader: Any) -> None:
        """State, model, optimizer and scheduler, as the Trainer makes them; the optimizer stays a plain one."""
        trainer, schedule = self._trainer, self._schedule
        trainer._init_training_state(
            schedule.total_steps, schedule.steps_per_epoch, schedule.epochs, None, None
        )
        accelerator = trainer.accelerator
        # Loop steps, saves and watches the optimizer itself, which a wrapper hides from it.
        accelerator.prepare_optimizer = lambda optimizer, **_: optimizer
        try:
            self._model, _ = trainer._prepare_for_training(schedule.total_steps, loader, None)
        finally:
            del accelerator.prepare_optimizer
        # Of the whole training, also where a checkpoint or other workers have done a part of it.
        trainer._initial_num_input_tokens_seen = trainer._initial_global_step = 0
        trainer._tr_loss = torch.tensor(0.0, device=trainer.args.device)
        trainer._total_loss_scalar = 0.0
        trainer._globalstep_last_logged = 0

    # --- the whole of it --------------------------------------------------------------------------------------------

    def run(self, ignore_keys: list[str] | None) -> TrainOutput:
        """Train to the end, and return what `train()` returns."""
        trainer = self._trainer
        if training.open_link() is not None and trainer.pop_callback(ProgressCallback) is not None:
            # A bar is one line that changes; the job's log has lines.
            trainer.add_callback(PrinterCallback)
        with self._saves():
            self._train(ignore_keys)
            if trainer.args.load_best_model_at_end:
                self._progress.load_best()
            return trainer._finalize_training(None, self._schedule.samples, self._progress.began)

    def _train(self, ignore_keys: list[str] | None) -> None:
        trainer = self._trainer
        steps = cast("Generator[Step]", iter(self._loop))
        # Here the state of a checkpoint, or of the workers that this one joins, replaces that of the start.
        step = next(steps, None)
        is_stopped = trainer.control.should_training_stop
        follow_rank(trainer)
        self._event("on_train_begin")
        trainer.control.should_training_stop |= is_stopped
        if trainer.args.eval_on_start and trainer.state.global_step == 0:
            trainer._evaluate(None, ignore_keys, skip_scheduler=True)
        if self._progress.is_evaluating:
            # The workers that this one joins are in the middle of it.
            self._log_save_evaluate(int(trainer.state.epoch), None, None, ignore_keys)
        epoch: int | None = None
        while step is not None and not trainer.control.should_training_stop:
            if step.epoch != epoch:
                if epoch is not None and self._samples is None:
                    self._end_epoch(epoch, None, None, ignore_keys)
                epoch = step.epoch
                self._event("on_epoch_begin")
            self._step(step, ignore_keys)
            if trainer.control.should_epoch_stop:
                raise RuntimeError(
                    "a callback ended an epoch early (should_epoch_stop), and an epoch reads each sample once: end"
                    " training with should_training_stop, or make the dataset smaller"
                )
            if trainer.control.should_training_stop:
                self._loop.stop()
            step = next(steps, None)
        if epoch is not None and self._samples is None:
            self._end_epoch(epoch, None, None, ignore_keys)
        steps.close()

    def _step(self, step: Step, ignore_keys: list[str] | None) -> None:
        trainer = self._trainer
        follow_rank(trainer)
        self._event("on_step_begin")
        loss = step.backward(self._compute)
        follow_rank(trainer)
        own = self._count(step, loss)
        grad_norm = None if step.was_skipped else self._clip()
        self._event("on_pre_optimizer_step")
        is_done = not step.was_skipped and self._optimize()
        self._event("on_optimizer_step")
        learning_rate = trainer._get_learning_rate()
        if is_done and not _follows_metrics(trainer.lr_scheduler):
            trainer.lr_scheduler.step()
        self._model.zero_grad()
        trainer.state.global_step = step.number
        trainer.state.epoch = step.epoch + (step.place + 1) / self._schedule.steps_per_epoch
        self._event("on_step_end")
        self._log_save_evaluate(step.epoch, grad_norm, learning_rate, ignore_keys)
        if self._samples is not None and step.place + 1 == self._schedule.steps_per_epoch:
            self._end_epoch(step.epoch, grad_norm, learning_rate, ignore_keys)
        metrics = {**own, "loss": loss, "learning_rate": learning_rate, "epoch": trainer.state.epoch}
        if grad_norm is not None:
            metrics["grad_norm"] = grad_norm
        step.report(**{**self._callback.take_logged(), **metrics})

    def _end_epoch(
        self, epoch: int, grad_norm: Any, learning_rate: Any, ignore_keys: list[str] | None
    ) -> None:
        self._event("on_epoch_end")
        self._log_save_evaluate(epoch, grad_norm, learning_rate, ignore_keys)

    def _log_save_evaluate(
        self, epoch: int, grad_norm: Any, learning_rate: Any, ignore_keys: list[str] | None
    ) -> None:
        trainer = self._trainer
        self._progress.is_evaluating = True
        trainer._maybe_log_save_evaluate(
            trainer._tr_loss,
            grad_norm,
            self._model,
            None,
            epoch,
            ignore_keys,
            self._progress.began,
            learning_rate=learning_rate,
        )
        self._progress.is_evaluating = False

    def _event(self, name: str) -> None:
        trainer = self._trainer
        handler = trainer.callback_handler
        trainer.control = getattr(handler, name)(trainer.args, trainer.state, trainer.control)

    def check_group(self) -> None:
        """Go on with another group where this one is to be left; for long work between two steps."""
        self._loop.check_group()
        follow_rank(self._trainer)

    # --- one step ---------------------------------------------------------------------------------------------------

    def _compute(self, model: torch.nn.Module, inputs: Any) -> Any:  # noqa: ARG002 - the Trainer has it wrapped
        """The loss of one micro-batch as `training_step` would take it back, and what is counted beside it."""
        trainer = self._trainer
        (batch, *_), items = trainer.get_batch_samples(iter([inputs]), 1, trainer.args.device)
        trainer.current_gradient_accumulation_steps = 1
        # Each with a count of 1: means over the micro-batches of the step come of it.
        metrics: dict[str, Any] = {_FLOS: (float(trainer.floating_point_ops(batch)), 1.0)}
        if trainer.args.include_num_input_tokens_seen != "no":
            metrics[_TOKENS] = (self._tokens(batch), 1.0)
        # A micro-batch without any label has a loss of zero, and not zero divided by zero.
        count = items.clamp(min=1) if isinstance(items, torch.Tensor) else items
        with self._own_metrics.apart() as own, _losses(trainer) as losses:
            trainer.training_step(self._model, batch, count)
        if len(losses) != 1:
            raise TypeError(
                f"training_step of {type(trainer).__name__} called accelerator.backward {len(losses)} times, and Loop"
                " needs one loss for each batch: call it once"
            )
        (loss,) = losses
        metrics.update(own)
        if items is None or not self._is_mean_over_items():
            return loss, metrics
        return (loss * count, items), metrics

    def _is_mean_over_items(self) -> bool:
        """Whether losses are sums that were divided by `num_items_in_batch`, by the Trainer's own rule for them."""
        trainer = self._trainer
        if trainer.loss_is_scaled_for_ga is not None:
            return bool(trainer.loss_is_scaled_for_ga)
        return bool(trainer.model_accepts_loss_kwargs or trainer.compute_loss_func is not None)

    def _tokens(self, batch: Any) -> float:
        """Input tokens of a micro-batch as the Trainer counts them."""
        state = self._trainer.state
        before = state.num_input_tokens_seen
        self._trainer._track_num_input_tokens(batch)
        found, state.num_input_tokens_seen = state.num_input_tokens_seen - before, before
        return float(found)

    def _count(self, step: Step, loss: torch.Tensor) -> dict[str, float]:
        """Add what the step has to the counts of the Trainer; returns the step's own metrics of it."""
        trainer = self._trainer
        samples = self._batches.global_batch
        if self._samples is not None:
            samples = min(samples, self._samples - step.place * samples)
        passes = self._batches.micro_batches(samples)
        trainer.current_flos += step.metrics.pop(_FLOS, 0.0) * passes
        trainer.state.num_input_tokens_seen += round(step.metrics.pop(_TOKENS, 0.0) * passes)
        own = self._own_metrics.take(step.metrics, passes)
        if trainer.args.logging_nan_inf_filter and not bool(torch.isfinite(loss)):
            # As the Trainer does: the mean of what was logged stands for it.
            steps = 1 + trainer.state.global_step - trainer._globalstep_last_logged
            trainer._tr_loss += trainer._tr_loss / steps
        else:
            trainer._tr_loss += loss
        return own

    def _clip(self) -> Any:
        """Clip the gradients of the global batch; returns their norm before."""
        trainer = self._trainer
        if self._scaler is not None:
            self._scaler.unscale_(trainer.optimizer)
        clipped = trainer._clip_grad_norm(self._model) if trainer.args.max_grad_norm > 0 else None
        return trainer._get_grad_norm(self._model, grad_norm=clipped)

    def _optimize(self) -> bool:
        """The optimizer's step; False when the scaler has left it out."""
        optimizer, scaler = self._trainer.optimizer, self._scaler
        if scaler is None:
            optimizer.step()
            return True
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        return bool(scaler.get_scale() >= before)

    # --- what is saved ----------------------------------------------------------------------------------------------

    @contextmanager
    def _saves(self) -> Iterator[None]:
        """Inside, the worker of rank 0 writes the Trainer's folders, all write a checkpoint, and all keep the best."""
        trainer = self._trainer
        save, determine = trainer._save_checkpoint, trainer._determine_best_metric

        def _save_checkpoint(model: Any, trial: Any) -> None:
            self._loop.checkpoint()
            if trainer.args.should_save:
                save(model, trial)

        def _determine_best_metric(metrics: dict[str, float], trial: Any) -> bool:
            is_best = bool(determine(metrics, trial))
            if is_best and trainer.args.load_best_model_at_end:
                self._progress.keep_best()
            return is_best

        trainer._save_checkpoint = _save_checkpoint
        trainer._determine_best_metric = _determine_best_metric
        # The folder of the best checkpoint is on the node of the worker that wrote it: each has the weights in memory.
        trainer._load_best_model = lambda: None
        try:
            yield
        finally:
            for name in ("_save_checkpoint", "_determine_best_metric", "_load_best_model"):
                delattr(trainer, name)


@contextmanager
def _losses(trainer: Trainer) -> Iterator[list[torch.Tensor]]:
    """Inside, `accelerator.backward` keeps the loss with its graph, for `Loop` to go back through."""
    accelerator = trainer.accelerator
    losses: list[torch.Tensor] = []
    accelerator.backward = lambda loss, **_: losses.append(loss)
    try:
        yield losses
    finally:
        del accelerator.backward


def _follows_metrics(scheduler: Any) -> bool:
    """Schedulers that are stepped after an evaluation, with its metric."""
    return (
        isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
        or type(scheduler).__name__ == "GreedyLR"
    )


#: A script has trained in this process.
_has_trained = False


def _check_first() -> None:
    global _has_trained
    if _has_trained and training.open_link() is not None:
        raise ValueError(
            "train() was called before in this script, and steps, metrics and checkpoints of a job are those of one"
            " training: submit a job for each"
        )
    _has_trained = True


def _check_resume(resume_from_checkpoint: str | None) -> None:
    is_resumed = training.resume_from() is not None or os.environ.get("REMORA_JOIN") == "1"
    if resume_from_checkpoint is not None and not is_resumed:
        raise ValueError(
            f"resume_from_checkpoint ({resume_from_checkpoint}) is a folder of the Trainer: Remora resumes by itself"
            " from its own checkpoints, so leave it out, or start from its weights with from_pretrained"
        )
