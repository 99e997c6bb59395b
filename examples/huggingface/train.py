"""A small GPT-2 learns to add, with the Trainer of Hugging Face transformers, on workers that come and go.

Of Remora there is `RemoraCallback`; everything else is a script for one process.  It runs as it is in three ways, with
the same result: `python train.py`, `torchrun --nproc-per-node 2 train.py`, and `remora submit -f job.yaml`.
"""

from __future__ import annotations

import argparse
import random

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

from remora.integrations.transformers import RemoraCallback

CHARACTERS = "0123456789+="


def sums(count: int, seed: int) -> list[dict[str, list[int]]]:
    """Texts such as `27+58=085` as numbers of characters; only what follows `=` is to be learnt."""
    numbers = random.Random(seed)
    data = []
    for _ in range(count):
        a, b = numbers.randrange(100), numbers.randrange(100)
        ids = [CHARACTERS.index(one) for one in f"{a:02d}+{b:02d}={a + b:03d}"]
        data.append({"input_ids": ids, "labels": [-100] * 6 + ids[6:]})
    return data


def right_sums(prediction) -> dict[str, float]:
    """Share of the sums of which all digits are right."""
    predicted, labels = prediction.predictions[:, 5:-1], prediction.label_ids[:, 6:]
    return {"accuracy": float((predicted == labels).all(-1).mean())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--out", default="out")
    arguments = parser.parse_args()

    set_seed(7)
    config = GPT2Config(
        vocab_size=len(CHARACTERS), n_positions=16, n_embd=64, n_layer=2, n_head=4,
        resid_pdrop=0.0, embd_pdrop=0.05, attn_pdrop=0.0, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=TrainingArguments(
            output_dir=arguments.out,
            max_steps=arguments.steps,
            per_device_train_batch_size=16,
            learning_rate=3e-3,
            lr_scheduler_type="cosine",
            warmup_steps=50,
            weight_decay=0.01,
            logging_steps=50,
            eval_strategy="steps",
            eval_steps=100,
            save_strategy="no",
            report_to="none",
            use_cpu=not torch.cuda.is_available(),
        ),
        train_dataset=sums(8000, seed=1),
        eval_dataset=sums(200, seed=2),
        compute_metrics=right_sums,
        preprocess_logits_for_metrics=lambda logits, _: logits.argmax(-1),
        callbacks=[RemoraCallback(shards=4)],  # a step has 4 x 16 samples, whatever the number of workers
    )
    trainer.train()
    trainer.save_model()
    if trainer.is_world_process_zero():
        print(
            f"{trainer.state.global_step} steps, {trainer.evaluate()['eval_accuracy']:.0%} of the sums are right"
        )


if __name__ == "__main__":
    main()
