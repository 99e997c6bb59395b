"""The strategy of a Trainer whose batches are steps of `Steps`: Lightning's own loops, on an elastic worker group."""

from __future__ import annotations

import os
from typing import Any

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch import Trainer
from lightning.pytorch.accelerators import Accelerator
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.trainer.states import TrainerFn

from remora import training
from remora.integrations.lightning.checkpoint_io import RemoraCheckpointIO
from remora.integrations.lightning.progress import LightningProgress
from remora.integrations.lightning.refusals import check_supported
from remora.integrations.lightning.step_loader import StepLoader
from remora.integrations.lightning.step_logs import StepLogs
from remora.integrations.sizes import Batches, SizeNames, batches_of
from remora.torch import OpenStep, Steps
from remora.torch.agreement import CHECK_EVERY
from remora.torch.loop_settings import Exactness, agreed
from remora.torch.nonfinite import Nonfinite

_NAMES = SizeNames("batch_size", "accumulate_grad_batches", "RemoraStrategy")


class RemoraStrategy(SingleDeviceStrategy):  # type: ignore[misc]  # lightning is not checked
    """Lets a Trainer lose and gain workers without another result.

    A step has `batch_size x accumulate_grad_batches x shards` samples, whatever the number of workers, which is at most
    `shards`.  To Lightning it is one batch of one process.

    - `shards`: parts of a step that workers carry.  Left out it follows from `global_batch`, from `elastic` in the
      job's specification, or is 1 where the script runs by hand.
    - `global_batch`: samples of a step; only needed in place of `shards`.
    - `exactness`, `nonfinite`, `check_every`: those of `remora.torch.Loop`.
    - `seed`: that of the order of samples and of random numbers; `seed_everything`'s, or 0, where it is left out.

    `fit()` raises ValueError for what cannot be elastic, with what to do instead.
    """

    strategy_name = "remora"

    def __init__(
        self,
        *,
        shards: int | None = None,
        global_batch: int | None = None,
        exactness: Exactness | None = None,
        nonfinite: Nonfinite | None = None,
        check_every: int = CHECK_EVERY,
        seed: int | None = None,
        accelerator: Accelerator | None = None,
        checkpoint_io: RemoraCheckpointIO | None = None,
        precision_plugin: Precision | None = None,
    ) -> None:
        self._files = checkpoint_io or RemoraCheckpointIO()
        super().__init__(_device(), accelerator, self._files, precision_plugin)
        self._shards, self._global_batch = shards, global_batch
        self._exactness, self._nonfinite, self._check_every = exactness, nonfinite, check_every
        self._seed = int(os.environ.get("PL_GLOBAL_SEED", "0")) if seed is None else seed
        self._loader: StepLoader | None = None
        self._steps: Steps | None = None
        self._progress: LightningProgress | None = None
        self._logs: StepLogs | None = None
        #: The first step, until Lightning takes it.
        self._first: OpenStep | None = None
        #: The step that Lightning is in.
        self._open: OpenStep | None = None
        #: Gradients of the step, until Lightning has cleared those of the step before.
        self._gradients: list[torch.Tensor | None] = []
        #: What the last validation logged, for the report of the step.
        self._validated: dict[str, float] = {}

    # --- the world as Lightning sees it -----------------------------------------------------------------------------

    @property
    def is_global_zero(self) -> bool:
        """Whether this worker has rank 0 now."""
        return training.world().rank == 0

    @property
    def global_rank(self) -> int:
        """Rank of this worker now."""
        return training.world().rank

    @global_rank.setter
    def global_rank(self, rank: int) -> None:
        """Nothing: the worker group says it."""

    @property
    def local_rank(self) -> int:
        """Rank of this worker on its node now."""
        return training.world().local_rank

    @local_rank.setter
    def local_rank(self, rank: int) -> None:
        """Nothing: the worker group says it."""

    def _follow_rank(self) -> None:
        rank_zero_only.rank = training.world().rank
        if self.is_global_zero:
            self._files.write_missing()

    # --- the beginning and the end of training ----------------------------------------------------------------------

    def process_dataloader(self, dataloader: object) -> object:
        """The training data as steps; raises ValueError where they cannot be."""
        trainer = self._trainer
        if trainer.state.fn != TrainerFn.FITTING or not trainer.training:
            return dataloader
        self._check_first()
        if self._loader is not None:
            raise ValueError("RemoraStrategy reads one training DataLoader: hand over one")
        self._loader = StepLoader(dataloader, self._seed, self._batches, self._take)
        # Micro-batches belong to workers; what is left is one batch for each step.
        trainer.accumulate_grad_batches = 1
        return self._loader

    def setup(self, trainer: Trainer) -> None:
        """Set up model and optimizer, form the worker group, and come to the state of the others or a checkpoint."""
        super().setup(trainer)
        if trainer.state.fn != TrainerFn.FITTING:
            return
        self._check_first()
        check_supported(trainer)
        trainer.fit_loop.setup_data()
        assert self._loader is not None
        self._logs = StepLogs(trainer.lightning_module)
        self._progress = LightningProgress(trainer, self._files)
        self._steps = self._made_steps(trainer, self._loader, self._progress)
        self._prepare_callbacks(trainer)
        # Here the state of a checkpoint, or of the workers that this one joins, replaces that of the start.
        self._first = self._steps.begin()
        self._follow_rank()
        if self._progress.is_restored:
            trainer.num_sanity_val_steps = 0
            self._let_loops_go_on(trainer)

    def _check_first(self) -> None:
        if self._steps is not None:
            raise ValueError(
                "fit() was called before with this strategy, and steps, metrics and checkpoints of a job are those of"
                " one training: submit a job for each"
            )

    def _made_steps(self, trainer: Trainer, loader: StepLoader, progress: LightningProgress) -> Steps:
        schedulers = [one.scheduler for one in self.lr_scheduler_configs]
        others = {f"scheduler-{number}": one for number, one in enumerate(schedulers[1:], 1)}
        max_epochs, max_steps = trainer.fit_loop.max_epochs, trainer.max_steps
        return Steps(
            trainer.lightning_module,
            self.optimizers[0],
            data=loader.data.dataset,
            global_batch=loader.batches.global_batch,
            shards=loader.batches.shards,
            micro_batch=loader.batches.micro_batch,
            epochs=None if max_epochs in (None, -1) else max_epochs,
            total_steps=None if max_steps == -1 else max_steps,
            seed=self._seed,
            scheduler=schedulers[0] if schedulers else None,
            scaler=getattr(self.precision_plugin, "scaler", None),
            state={"lightning": progress, **others},
            collate_fn=loader.data.collate,
            num_workers=loader.data.num_workers,
            shuffle=loader.data.shuffle,
            drop_last=loader.data.drop_last,
            exactness=self._exactness,
            check_every=self._check_every,
            nonfinite=self._nonfinite,
        )

    def _prepare_callbacks(self, trainer: Trainer) -> None:
        for one in trainer.callbacks:
            if isinstance(one, ModelCheckpoint):
                # All workers give files the same names, whatever their nodes have.
                one.file_exists = lambda path, _: self._files.keeps(path)
        if training.open_link() is not None and trainer.progress_bar_callback is not None:
            # A bar is one line that changes; the job's log has lines.
            trainer.progress_bar_callback.disable()

    def _let_loops_go_on(self, trainer: Trainer) -> None:
        progress, loop = self._progress, trainer.fit_loop.epoch_loop
        assert progress is not None
        start = loop.on_run_start

        def on_run_start(fetcher: Any) -> None:
            del loop.on_run_start
            start(fetcher)
            progress.go_on()
            if progress.is_validating:
                # The workers that this one joins are in the middle of it.
                loop.on_advance_end(fetcher)

        loop.on_run_start = on_run_start

    def _batches(self, batch_size: int) -> Batches:
        return batches_of(
            batch_size,
            self._trainer.accumulate_grad_batches,
            shards=agreed("shards", self._shards, int),
            global_batch=agreed("global_batch", self._global_batch, int),
            is_alone="REMORA_JOB_ID" not in os.environ and training.world().world_size == 1,
            names=_NAMES,
        )

    def teardown(self) -> None:
        """Training that was over when it began ends here."""
        if self._first is not None:
            self._finish()
        super().teardown()

    def on_train_end(self) -> None:
        """All workers have the last step before any of them goes on."""
        self._finish()

    def _finish(self) -> None:
        if self._steps is None:
            return
        self._commit()
        self._first = None
        self._steps.stop()
        rest = self._steps.begin()
        assert rest is None
        self._follow_rank()

    def on_exception(self, exception: BaseException) -> None:  # noqa: ARG002
        """Nothing is committed any more."""
        self._steps = self._open = self._first = None

    # --- one step ---------------------------------------------------------------------------------------------------

    def _take(self) -> OpenStep | None:
        """The next step, after that which Lightning is through with."""
        assert self._steps is not None
        self._commit()
        first, self._first = self._first, None
        self._open = first or self._steps.begin()
        self._follow_rank()
        return self._open

    def _commit(self) -> None:
        step, self._open = self._open, None
        if step is None:
            return
        if not step.is_done:
            raise RuntimeError(
                "on_train_batch_start returned -1 and ended an epoch early, and an epoch reads each sample once: leave"
                " it out, or make the dataset smaller"
            )
        assert self._progress is not None
        self._progress.add_sums()
        validated, self._validated = self._validated, {}
        rate = self.optimizers[0].param_groups[0]["lr"]
        step.report(**{**validated, "learning_rate": rate, "loss": step.loss})
        step.commit()

    def batch_to_device(self, batch: Any, device: torch.device | None = None, dataloader_idx: int = 0) -> Any:
        """The batch on the device; a step has none, and its micro-batches come later."""
        return (
            batch if isinstance(batch, OpenStep) else super().batch_to_device(batch, device, dataloader_idx)
        )

    def training_step(self, *given: Any, **named: Any) -> Any:
        """The forward and backward passes of a step, of all workers together: its mean loss."""
        step, *others = given
        if not isinstance(step, OpenStep):
            return super().training_step(*given, **named)
        assert self._logs is not None
        assert self._progress is not None
        while True:
            for batch in step.batches():
                with self._logs.apart() as logged:
                    returned = super().training_step(self._transferred(batch), *others, **named)
                step.backward(_loss_of(returned), logged)
            if step.reduce():
                break
        self._follow_rank()
        # Lightning clears gradients only now.
        parameters = list(self.lightning_module.parameters())
        self._gradients = [one.grad for one in parameters]
        for one in parameters:
            one.grad = None
        self._logs.relay(step)
        # Before this step may end an epoch.
        self._progress.add_sums()
        return {"loss": step.loss}

    def _transferred(self, batch: Any) -> Any:
        batch = self.precision_plugin.convert_input(batch)
        batch = self.lightning_module._on_before_batch_transfer(batch, dataloader_idx=0)
        return super().batch_to_device(batch, dataloader_idx=0)

    def backward(self, closure_loss: torch.Tensor, optimizer: Any, *_: Any, **__: Any) -> torch.Tensor:  # noqa: ARG002
        """Give the parameters the gradients of the step, with the hooks of a backward pass around it."""
        module = self.lightning_module
        self.precision_plugin.pre_backward(closure_loss, module)
        for one, gradient in zip(module.parameters(), self._gradients, strict=True):
            one.grad = gradient
        self._gradients = []
        loss: torch.Tensor = self.precision_plugin.post_backward(closure_loss, module)
        return loss

    # --- validation and files ---------------------------------------------------------------------------------------

    def validation_step(self, *given: Any, **named: Any) -> Any:
        """Validate a batch, as each worker does with all; between two it leaves a group that has lost a worker."""
        output = super().validation_step(*given, **named)
        if self._steps is not None and not self._trainer.sanity_checking and self._open is not None:
            self._steps.check_group()
            self._follow_rank()
        return output

    def on_validation_end(self) -> None:
        """Keep what was logged for the report of the step."""
        if self._logs is not None and not self._trainer.sanity_checking:
            metrics = self._trainer.callback_metrics.items()
            self._validated = {name: float(value) for name, value in metrics if not self._logs.has(name)}

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """Keep a checkpoint on all workers, and write one of the job at the same step."""
        if self._steps is not None and self._open is not None:
            self._steps.checkpoint()
        self._files.save_checkpoint(checkpoint, filepath, storage_options)

    def remove_checkpoint(self, filepath: str | os.PathLike[str]) -> None:
        """Remove a checkpoint on all workers."""
        self._files.remove_checkpoint(filepath)

    @property
    def _trainer(self) -> Trainer:
        return self.lightning_module.trainer


def _device() -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", training.world().local_rank % torch.cuda.device_count())


def _loss_of(returned: Any) -> Any:
    loss = returned.get("loss") if isinstance(returned, dict) else returned
    if loss is None:
        raise TypeError(
            "training_step returned no loss, and a step needs that of all its batches: return one of zero"
        )
    return loss
