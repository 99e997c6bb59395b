"""One worker's process: a script of Lightning as users write it, that also writes down which samples it trained."""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

from remora.script import channel
from tests.golden.gate import Gate
from tests.golden.subjects import CLASSES, FEATURES, Samples
from tests.golden.worker import Mishap


@dataclass(frozen=True)
class LightningJob:
    """What to train: `arguments` are those of Trainer."""

    arguments: dict[str, Any] = field(default_factory=dict)
    #: Of RemoraStrategy; None: a Trainer without it.
    strategy: dict[str, Any] | None = field(
        default_factory=lambda: {"shards": 4, "exactness": "bitwise", "seed": 7}
    )
    samples: int = 95
    batch_size: int = 5
    shuffle: bool = True
    #: Nothing is random, and nothing follows shard 0 alone: no noise, no dropout, no BatchNorm.
    is_still: bool = False
    dropout: float = 0.1
    #: The learning rate follows the epoch, and not the step.
    by_epoch: bool = False
    #: Stop after that many validations that are not better.
    patience: int | None = None
    learning_rate: float = 1e-2
    #: A validation takes seconds, until the file `go` is there.
    is_slow_to_validate: bool = False
    #: What is wrong with the script.
    fault: str | None = None


class StillSamples(Samples):
    """Without noise."""

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        return self.features[number], self.labels[number], number


def work(
    job: LightningJob,
    slot: int,
    out: str,
    variables: dict[str, str],
    end: socket.socket | None,
    mishap: Mishap | None,
) -> None:
    """Body of a process."""
    os.setpgid(0, 0)
    os.environ.update(variables)
    if end is not None:
        os.environ[channel.FD_VARIABLE] = str(end.detach())
    torch.set_num_threads(1)
    folder = Path(out)
    trainer, module = trainer_of(job, folder, slot)
    trainer.fit(module, *loaders_of(job))
    torch.save(module.net.state_dict(), folder / f"weights-{slot}.pt")
    callback = trainer.checkpoint_callback
    best = trainer.strategy.load_checkpoint(callback.best_model_path) if callback is not None else {}
    found = {
        "is_first": trainer.is_global_zero,
        "steps": trainer.global_step,
        "epochs": trainer.current_epoch,
        "metrics": {name: float(value) for name, value in trainer.callback_metrics.items()},
        "epoch_metrics": module.epoch_metrics,
        "rate": trainer.optimizers[0].param_groups[0]["lr"],
        "best": Path(callback.best_model_path).name if best else None,
        "best_score": float(callback.best_model_score) if best else None,
        "best_step": best.get("global_step"),
        "has_best_file": bool(best) and Path(callback.best_model_path).is_file(),
        "files": sorted(one.name for one in (folder / f"best-{slot}").glob("*.ckpt")),
    }
    (folder / f"found-{slot}.json").write_text(json.dumps(found))


def loaders_of(job: LightningJob) -> tuple[Any, Any]:
    """Training and validation data."""
    data = Samples(job.samples)
    still = [(features, label) for features, label in zip(data.features[:30], data.labels[:30], strict=True)]
    if job.is_still:
        data = StillSamples(job.samples)
    train: Any = DataLoader(data, batch_size=job.batch_size, shuffle=job.shuffle)
    if job.fault == "two loaders":
        train = [train, train]
    if job.fault == "no loader":
        train = [1, 2, 3]
    return train, DataLoader(still, batch_size=10)


def trainer_of(job: LightningJob, out: Path, slot: int = 0) -> tuple[Any, Any]:
    """The Trainer and the module of a script."""
    import lightning.pytorch as pl
    from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
    from torchmetrics.classification import MulticlassAccuracy

    from remora.integrations.lightning import RemoraStrategy

    gate = Gate(out)

    class Classifier(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(11)
            self.net = nn.Sequential(
                nn.Linear(FEATURES, 16),
                nn.Identity() if job.is_still else nn.BatchNorm1d(16),
                nn.ReLU(),
                nn.Dropout(0.0 if job.is_still else job.dropout),
                nn.Linear(16, CLASSES),
            )
            self.accuracy = MulticlassAccuracy(CLASSES, average="micro")
            self.epoch_metrics: list[float] = []
            self.automatic_optimization = job.fault != "manual"

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            features, labels, numbers = batch
            with (out / f"samples-{slot}.jsonl").open("a") as record:
                record.write(json.dumps([self.global_step + 1, numbers.tolist()]) + "\n")
            scores = self.net(features)
            loss = functional.cross_entropy(scores, labels)
            right = (scores.argmax(1) == labels).float().mean()
            self.log("accuracy", right, on_step=True, on_epoch=True)
            self.log_dict({"train_loss": loss}, on_epoch=True, on_step=False)
            if job.fault == "metric":
                self.accuracy(scores, labels)
                self.log("metric", self.accuracy)
            if job.fault == "sum":
                self.log("sum", right, reduce_fx="sum")
            if job.fault == "now and then" and int(numbers[0]) % 2:
                self.log("odd", right)
            return None if job.fault == "no loss" else {"loss": loss, "scores": scores}

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            if not self.trainer.sanity_checking:
                (out / f"validates-{slot}").touch()
            if job.is_slow_to_validate and not self.trainer.sanity_checking and not (out / "go").exists():
                time.sleep(0.2)  # what a large model takes, not a wait for anything
            scores = self.net(batch[0])
            self.accuracy(scores, batch[1])
            self.log("val_accuracy", self.accuracy)
            self.log("val_loss", functional.cross_entropy(scores, batch[1]))

        def on_validation_end(self) -> None:
            if not self.trainer.sanity_checking:
                (out / f"validated-{slot}").touch()

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            gate.stand(self.global_step - 1)

        def on_train_epoch_end(self) -> None:
            self.epoch_metrics.append(float(self.trainer.callback_metrics["train_loss"]))

        def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
            return -1 if job.fault == "ends an epoch" and batch_idx == 2 else None

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.net.parameters(), lr=job.learning_rate)
            if job.by_epoch:
                return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)]
            total = self.trainer.estimated_stepping_batches
            scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, int(total))
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

        if job.fault == "own backward":

            def backward(self, loss: torch.Tensor) -> None:
                loss.backward()

    callbacks: list[Any] = [ModelCheckpoint(dirpath=out / f"best-{slot}", monitor="val_loss", save_top_k=2)]
    if job.patience is not None:
        callbacks.append(EarlyStopping("val_loss", patience=job.patience))
    arguments = {
        "accelerator": "cpu", "devices": 1, "max_epochs": 6, "gradient_clip_val": 0.5, "log_every_n_steps": 1,
        "logger": False, "enable_progress_bar": False, "enable_model_summary": False, "callbacks": callbacks,
        "default_root_dir": str(out / f"root-{slot}"),
    }  # fmt: skip
    if job.strategy is not None:
        arguments["strategy"] = RemoraStrategy(**job.strategy)
    return pl.Trainer(**{**arguments, **job.arguments}), Classifier()


def error_of(job: LightningJob, out: Path) -> str:
    """What `fit` says to a script that has something wrong."""
    try:
        trainer, module = trainer_of(job, out)
        if job.fault in ("fits twice", "own checkpoint"):
            trainer.fit(module, *loaders_of(job))
        if job.fault == "own checkpoint":
            saved = trainer.checkpoint_callback.best_model_path
            trainer, module = trainer_of(job, out)
            trainer.fit(module, *loaders_of(job), ckpt_path=saved)
        trainer.fit(module, *loaders_of(job))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"
