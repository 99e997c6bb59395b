"""One worker's process: a script of transformers as users write it, that also writes down which samples it trained."""

from __future__ import annotations

import copy
import json
import os
import random
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from remora.script import channel
from tests.golden.gate import Gate
from tests.golden.worker import Mishap

#: Characters of a sample; the first two say its number.
VOCABULARY = 12
LETTERS = "abcdefghijkl"


@dataclass(frozen=True)
class TrainerJob:
    """What to train: `arguments` are those of TrainingArguments."""

    arguments: dict[str, Any] = field(default_factory=dict)
    #: Of RemoraCallback; None: a Trainer without it.
    callback: dict[str, Any] | None = field(default_factory=lambda: {"shards": 4, "exactness": "bitwise"})
    samples: int = 95
    dropout: float = 0.1
    #: Stop after that many evaluations that are not better.
    patience: int | None = None
    library: str = "transformers"
    #: An evaluation takes seconds, until the file `go` is there.
    is_slow_to_evaluate: bool = False
    #: Losses are scaled as with fp16, and those of the first two steps overflow.
    is_scaled: bool = False
    #: The dataset has no length.
    is_stream: bool = False
    #: What is wrong with the script.
    fault: str | None = None


def samples_of(count: int) -> list[dict[str, list[int]]]:
    """Texts of unlike length."""
    numbers = random.Random(3)
    data = []
    for number in range(count):
        length = numbers.randrange(3, 9)
        ids = [number // 10, number % 10, *(numbers.randrange(VOCABULARY) for _ in range(length))]
        data.append({"input_ids": ids, "labels": [-100, -100, *ids[2:]]})
    return data


class Stream(torch.utils.data.IterableDataset):
    """Samples one after the other, in an order that random numbers decide."""

    def __init__(self, data: list[dict[str, list[int]]]) -> None:
        self._data = data

    def __iter__(self) -> Iterator[dict[str, list[int]]]:
        return (self._data[number] for number in torch.randperm(len(self._data)).tolist())


def padded(samples: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    longest = max(len(one["input_ids"]) for one in samples)
    fill = {"input_ids": 0, "labels": -100}
    batch = {
        name: torch.tensor([one[name] + [value] * (longest - len(one[name])) for one in samples])
        for name, value in fill.items()
    }
    return {**batch, "attention_mask": (torch.arange(longest) < lengths_of(samples)[:, None]).long()}


def lengths_of(samples: list[dict[str, list[int]]]) -> torch.Tensor:
    return torch.tensor([len(one["input_ids"]) for one in samples])


def model_of(dropout: float) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=16, n_embd=16, n_layer=1, n_head=2, loss_type="ForCausalLM",
        resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def trainer_of(job: TrainerJob, out: Path, slot: int = 0) -> Any:
    """The Trainer of a script."""
    from transformers import EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments, set_seed

    from remora.integrations.transformers import RemoraCallback

    gate = Gate(out)

    class Records(Trainer):
        def compute_loss(self, model: Any, inputs: Any, *arguments: Any, **named: Any) -> Any:
            if model.training:
                numbers = inputs["input_ids"][:, 0] * 10 + inputs["input_ids"][:, 1]
                with (out / f"samples-{slot}.jsonl").open("a") as record:
                    record.write(json.dumps([self.state.global_step + 1, numbers.tolist()]) + "\n")
            loss = super().compute_loss(model, inputs, *arguments, **named)
            return loss * 1e38 if model.training and job.is_scaled and self.state.global_step < 2 else loss

    class Stands(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            gate.stand(state.global_step)

        def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            (out / f"evaluates-{slot}").touch()
            if job.is_slow_to_evaluate and not (out / "go").exists():
                time.sleep(0.2)  # what a large model takes, not a wait for anything

        def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            (out / f"evaluated-{slot}").touch()

    class OwnLoop(Records):
        def _inner_training_loop(self, *arguments: Any, **named: Any) -> None:
            self.callback_handler.on_train_begin(self.args, self.state, self.control)

    class EndsEpoch(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_epoch_stop = True

    set_seed(11)
    arguments = {
        "output_dir": str(out / f"trainer-{slot}"),
        "per_device_train_batch_size": 5,
        "num_train_epochs": 6,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 4,
        "weight_decay": 0.1,
        "max_grad_norm": 0.5,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "seed": 7,
    }
    callbacks: list[Any] = [Stands()]
    if job.callback is not None:
        callbacks.append(RemoraCallback(**job.callback))
    if job.patience is not None:
        callbacks.append(EarlyStoppingCallback(job.patience))
    if job.fault == "ends an epoch":
        callbacks.append(EndsEpoch())
    data = samples_of(job.samples)
    return (OwnLoop if job.fault == "own loop" else Records)(
        model=model_of(job.dropout),
        args=TrainingArguments(**{**arguments, **job.arguments}),
        data_collator=padded,
        train_dataset=Stream(data) if job.is_stream else data,
        eval_dataset=data[:10],
        callbacks=callbacks,
    )


def work(
    job: TrainerJob,
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
    trainer = (trainer_of if job.library == "transformers" else trl_trainer_of)(job, folder, slot)
    if job.is_scaled:
        trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=7)
    output = trainer.train()
    log = list(trainer.state.log_history)
    torch.save(trainer.model.state_dict(), folder / f"weights-{slot}.pt")
    found = {
        "log": log,
        "is_first": trainer.is_world_process_zero(),
        "training_loss": output.training_loss,
        "best_metric": trainer.state.best_metric,
        "flos": trainer.state.total_flos,
        "tokens": trainer.state.num_input_tokens_seen,
        "best_eval_loss": trainer.evaluate()["eval_loss"] if job.patience is not None else None,
    }
    if job.fault == "trains twice":
        found["second"] = error_of(trainer)
    (folder / f"found-{slot}.json").write_text(json.dumps(found))


def error_of(trainer: Any, **named: Any) -> str:
    """What `train` says to a script that has something wrong."""
    try:
        trainer.train(**named)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def trl_trainer_of(job: TrainerJob, out: Path, slot: int = 0) -> Any:
    """A trainer of TRL: SFTTrainer with data that is tokens already, or DPOTrainer with texts."""
    from datasets import Dataset
    from transformers import TrainerCallback, set_seed
    from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

    from remora.integrations.transformers import RemoraCallback

    gate = Gate(out)

    class Stands(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            gate.stand(state.global_step)

    set_seed(11)
    data, model = samples_of(job.samples), model_of(job.dropout)
    if job.library == "dpo":
        texts = [" ".join(LETTERS[number] for number in one["input_ids"]) for one in data]
        rows = [{"prompt": one[:3], "chosen": one[3:], "rejected": one[:2:-1]} for one in texts]
        kind, config, named = DPOTrainer, DPOConfig, {"ref_model": copy.deepcopy(model)}
    else:
        rows = [{"input_ids": one["input_ids"]} for one in data]
        kind, config, named = SFTTrainer, SFTConfig, {}
    arguments = {
        "output_dir": str(out / f"trainer-{slot}"), "per_device_train_batch_size": 5, "num_train_epochs": 4,
        "learning_rate": 1e-2, "logging_steps": 2, "save_strategy": "no", "report_to": "none", "disable_tqdm": True,
        "use_cpu": True, "bf16": False, "seed": 7, "max_length": 16,
    }  # fmt: skip
    return kind(
        model=model,
        args=config(**{**arguments, **job.arguments}),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer_of(),
        callbacks=[Stands(), RemoraCallback(**(job.callback or {}))],
        **named,
    )


def tokenizer_of() -> Any:
    """One token for each letter."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {letter: number for number, letter in enumerate(LETTERS)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="a",
        eos_token="a",
        unk_token="a",
    )
