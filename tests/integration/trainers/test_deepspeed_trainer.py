"""An unmodified script whose Trainer of transformers trains with DeepSpeed loses a node: the result is the same."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from remora.states import EndReason
from tests.frameworks.transformers_environment import transformers_python
from tests.integration.trainers.lab import Lab, Running

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(900)]

#: Seconds in which groups of DeepSpeed and transformers start one after the other on a busy machine.
LONG_S = 300.0

SCRIPT = """
import json, sys, time
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

pause, fields = float(sys.argv[1]), {"gradient_accumulation_steps": 2, "max_steps": 30, **json.loads(sys.argv[2])}
count = fields.pop("samples", 80)
torch.manual_seed(3)
tokens = torch.randint(0, 32, (96, 12))
# Labels of unlike number: a mean over micro-batches is not the mean over the tokens of a step.
samples = [
    {"input_ids": one, "labels": torch.where(torch.arange(12) < 4 + i % 8, one, -100)} for i, one in enumerate(tokens)
]

class Slow(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        time.sleep(pause)

args = TrainingArguments(
    "out", deepspeed="ds.json", per_device_train_batch_size=2,
    learning_rate=0.02, warmup_steps=4, lr_scheduler_type="cosine", weight_decay=0.1, logging_steps=1,
    eval_strategy="steps", save_strategy="steps", eval_steps=3, save_steps=3, load_best_model_at_end=True,
    save_total_limit=2, use_cpu=True, report_to=[], disable_tqdm=True, seed=5, **fields,
)
model = GPT2LMHeadModel(GPT2Config(
    vocab_size=32, n_positions=12, n_embd=16, n_layer=1, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
))
trainer = Trainer(model, args, train_dataset=samples[:count], eval_dataset=samples[80:], callbacks=[Slow()])
print(f"{args.world_size} workers, {args.gradient_accumulation_steps} rounds of {args.per_device_train_batch_size}",
      flush=True)
trainer.train()
found = trainer.evaluate()
best = trainer.state.best_metric
print(f"evaluated {found['eval_loss']:.6f} best {best:.6f} of step {trainer.state.best_global_step}", flush=True)
"""

CONFIG: dict[str, Any] = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "bf16": {"enabled": "auto"},
    "fp16": {"enabled": "auto"},
    "optimizer": {
        "type": "AdamW",
        "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto", "torch_adam": True},
    },
    "scheduler": {
        "type": "WarmupDecayLR",
        "params": {
            "warmup_min_lr": "auto",
            "warmup_max_lr": "auto",
            "warmup_num_steps": "auto",
            "total_num_steps": "auto",
        },
    },
    "zero_optimization": {
        "stage": 2,
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
    },
}


def run(lab: Lab, config: dict[str, Any], pause_s: float = 0.0, args: str = "{}", **fields: Any) -> Running:
    asked = {
        "backend": "deepspeed",
        "elastic_variables": {"REMORA_GLOBAL_BATCH": "8"},
        "min_workers": 1,
        "max_workers": 2,
    }
    files = {"train.py": SCRIPT, "ds.json": json.dumps(config)}
    return lab.run(files, transformers_python(), "train.py", str(pause_s), args, **{**asked, **fields})


def metrics(running: Running) -> dict[int, dict[str, float]]:
    """By step; a step that was done again counts as it was at last."""
    found: dict[int, dict[str, float]] = {}
    for body in running.bodies("metric"):
        found[body["step"]] = body["values"]
    return found


@pytest.mark.framework("Trainer with DeepSpeed", "runs")
@pytest.mark.framework("Trainer with DeepSpeed", "resumes")
@pytest.mark.framework("Trainer with DeepSpeed", "exact samples")
@pytest.mark.framework("Trainer with DeepSpeed", "metrics")
def test_a_lost_node_changes_neither_losses_nor_learning_rates_nor_the_best_model(lab: Lab) -> None:
    compare_with_a_loss(lab, stage=2)


def test_the_best_weights_of_which_no_worker_has_all_survive_a_lost_node(lab: Lab) -> None:
    compare_with_a_loss(lab, stage=3)


def compare_with_a_loss(lab: Lab, stage: int) -> None:
    """Train with the stage of ZeRO undisturbed, and with a lost node; both end alike."""
    config = {**CONFIG, "zero_optimization": {**CONFIG["zero_optimization"], "stage": stage}}
    lab.nodes(2)
    undisturbed = run(lab, config)
    assert undisturbed.end(LONG_S)["end_reason"] == "completed", undisturbed.text()
    lab.nodes(2)
    running = run(lab, config, 0.3)
    running.until(lambda: 15 in running.checkpoints and running.step >= 17, "two workers train", LONG_S)
    lab.provider.kill(running.node_of(0))
    assert running.end(LONG_S)["end_reason"] == "completed", running.text()
    assert running.world_sizes == [2, 1]
    assert "2 workers, 2 rounds of 2" in running.text()
    assert "1 workers, 4 rounds of 2" in running.text()
    expected, found = metrics(undisturbed), metrics(running)
    assert sorted(found) == sorted(expected) == list(range(1, 31))
    compare(found, expected)
    evaluated, best, step = re.findall(r"[\d.]+", re.findall(r"evaluated .*", running.text())[-1])
    assert int(step) <= 15, "the worker that had saved the best weights is lost"
    assert evaluated == best
    assert f"evaluated {evaluated} best {best} of step {step}" in undisturbed.text()


def compare(found: dict[int, dict[str, float]], expected: dict[int, dict[str, float]]) -> None:
    """Whether the steps that were found are those that were expected."""
    for step, values in found.items():
        for name in ("loss", "learning_rate", "grad_norm", "eval_loss"):
            if name in values:
                assert values[name] == pytest.approx(expected[step][name], rel=1e-4), f"{name} of step {step}"


def test_workers_that_divide_the_batch_of_the_first_ones_train_it_too(lab: Lab) -> None:
    args = '{"gradient_accumulation_steps": 3, "max_steps": 3000, "samples": 72}'
    lab.nodes(2)
    running = run(lab, CONFIG, 0.3, args, elastic_variables={}, max_workers=3)
    running.until(lambda: 3 in running.checkpoints and running.step >= 5, "two workers train", LONG_S)
    assert running.progress["global_batch"] == 12
    lab.add_node()
    running.until(lambda: len(running.world_sizes) == 2, "a third one joins", LONG_S)
    at = running.step
    running.until(
        lambda: max(running.checkpoints) > at and running.step >= max(running.checkpoints) + 2,
        "three train past a checkpoint of their own",
        LONG_S,
    )
    lab.provider.kill(running.node_of(2))
    running.until(lambda: len(running.world_sizes) == 3, "two go on", LONG_S)
    at = running.step
    running.until(lambda: running.step > at + 5, "they train", LONG_S)
    lab.stop(running, EndReason.CANCELLED)
    assert running.end(LONG_S)["end_reason"] == "cancelled", running.text()
    assert running.world_sizes == [2, 3, 2]
    assert running.text().count("2 workers, 3 rounds of 2") == 4
    assert running.text().count("3 workers, 2 rounds of 2") == 3
    found = metrics(running)
    assert sorted(found) == list(range(1, max(found) + 1))

    lab.nodes(2)
    undisturbed = run(lab, CONFIG, 0.0, args, elastic_variables={}, max_workers=2)
    # Metrics of the last step may come in two parts.
    undisturbed.until(lambda: undisturbed.step > max(found), "an undisturbed run comes as far", LONG_S)
    lab.stop(undisturbed, EndReason.CANCELLED)
    assert undisturbed.end(LONG_S)["end_reason"] == "cancelled", undisturbed.text()
    compare(found, metrics(undisturbed))


def test_without_a_global_batch_in_the_job_that_of_the_first_workers_stays(lab: Lab) -> None:
    lab.nodes(2)
    running = run(lab, CONFIG, 0.3, '{"max_steps": 100000}', elastic_variables={}, max_workers=3)
    running.until(lambda: running.events("attempt.batch_kept"), "both have an engine", LONG_S)
    assert running.progress["global_batch"] == 8
    # There is no checkpoint yet from which the next group could learn it.
    lab.provider.kill(running.node_of(0))
    running.until(lambda: 3 in running.checkpoints, "one worker trains", LONG_S)
    lab.add_node()
    running.until(lambda: len(running.world_sizes) == 3, "two workers go on", LONG_S)
    lab.add_node()
    at = running.step
    # By then a third worker would have been asked for.
    running.until(lambda: running.step > at + 20, "they train", LONG_S)
    lab.stop(running, EndReason.CANCELLED)
    assert running.end(LONG_S)["end_reason"] == "cancelled", running.text()
    assert running.world_sizes == [2, 1, 2], "three workers do not divide it"
    assert "1 workers, 4 rounds of 2" in running.text()
    assert running.text().count("2 workers, 2 rounds of 2") == 4


@pytest.mark.parametrize(
    ("changes", "args", "said"),
    [
        ({"train_batch_size": 7}, "{}", "train_batch_size is 7 .* elastic.global_batch is 8 in the job"),
        pytest.param(
            {"train_micro_batch_size_per_gpu": 3},
            "{}",
            "train_micro_batch_size_per_gpu is 3 .* per_device_train_batch_size is 2",
            marks=pytest.mark.soak,
        ),
        pytest.param(
            {"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 2}},
            "{}",
            "load_best_model_at_end copies each worker's parts of the weights",
            marks=pytest.mark.soak,
        ),
        pytest.param(
            {},
            '{"train_sampling_strategy": "group_by_length"}',
            "an order that depends",
            marks=pytest.mark.soak,
        ),
    ],
)
def test_what_cannot_train_is_refused_with_one_sentence(
    lab: Lab, changes: dict[str, Any], args: str, said: str
) -> None:
    lab.nodes(1)
    running = run(lab, {**CONFIG, **changes}, 0.0, args, max_workers=1)
    end = running.end(LONG_S)
    assert end["end_reason"] == "start_failed", running.text()
    assert re.search(said, end["message"]), end["message"]
    assert "Traceback" not in running.text()
