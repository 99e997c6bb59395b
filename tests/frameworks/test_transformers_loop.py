"""The Trainer of transformers on `Loop`: what a plain one does, whatever the number of workers and when it changes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest

from tests.frameworks.transformers_environment import Scenarios

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

#: Of what was logged, how fast it went.
SPEEDS = ("_runtime", "_per_second")


@pytest.fixture(scope="module")
def scenarios(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scenarios]:
    made = Scenarios(tmp_path_factory.mktemp("scenarios"))
    yield made
    made.close()


def logged(facts: dict[str, Any]) -> list[dict[str, float]]:
    return [{name: value for name, value in one.items() if not name.endswith(SPEEDS)} for one in facts["log"]]


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Weights bit for bit, every log, and every sample of every step."""
    assert found["digest"] == expected["digest"]
    assert logged(found) == logged(expected)
    assert found["losses"] == expected["losses"]
    assert found["record"] == expected["record"]
    assert found["best_metric"] == expected["best_metric"]
    assert found["same_on_all"], "all workers hold the same at the end"


def test_alone_it_does_what_a_plain_trainer_with_the_same_batch_does(scenarios: Scenarios) -> None:
    """Losses, norms, learning rates, evaluations and counts, with gradients accumulated over four batches."""
    facts = scenarios.facts("same_as_trainer")
    plain, elastic = facts["plain"], facts["alone"]
    assert elastic["record"] == plain["record"]
    assert len(logged(plain)) == 30 + 6 + 1, "steps, evaluations, and the end"
    for found, expected in zip(logged(elastic), logged(plain), strict=True):
        assert found == pytest.approx(expected, rel=1e-5)
    assert elastic["weights"] == pytest.approx(plain["weights"], abs=1e-3)
    assert (elastic["tokens"], elastic["flos"]) == (plain["tokens"], pytest.approx(plain["flos"], rel=1e-5))


@pytest.mark.soak
def test_a_dataset_without_a_length_is_read_once_in_an_epoch(scenarios: Scenarios) -> None:
    facts = scenarios.facts("streamed")
    assert_same(facts["lost"], facts["alone"])
    record = list(facts["alone"]["record"].values())
    assert sorted(sample for samples in record[:5] for sample in samples) == list(range(95))
    assert record[:5] != record[5:10], "in another order"
    assert len(record) == 24
    assert "train() was called before in this script" in facts["alone"]["second"], "a job is one training"


@pytest.mark.soak
def test_steps_whose_scaled_gradients_overflow_change_neither_weights_nor_the_learning_rate(
    scenarios: Scenarios,
) -> None:
    facts = scenarios.facts("scaled")
    steps = logged(facts["alone"])[:30]
    assert [one["learning_rate"] for one in steps[:5]] == [0.0, 0.0, 0.0, 0.0025, 0.005], "two steps late"
    assert all(math.isnan(one["grad_norm"]) == (one["step"] <= 2) for one in steps)
    assert facts["lost"]["digest"] == facts["alone"]["digest"]
    assert facts["lost"]["losses"].keys() == facts["alone"]["losses"].keys()


@pytest.mark.framework("transformers", "resumes")
@pytest.mark.framework("transformers", "in place")
@pytest.mark.framework("transformers", "exact samples")
def test_a_lost_rank_0_a_new_worker_and_a_resume_change_nothing(scenarios: Scenarios) -> None:
    facts = scenarios.facts("lost")
    alone, lost, resumed = facts["alone"], facts["lost"], facts["resumed"]
    assert lost["world_sizes"] == [3, 2, 3]
    assert_same(lost, alone)
    saved = resumed["saved"]
    later = {step: one for step, one in alone["losses"].items() if int(step) > saved}
    assert (resumed["losses"], resumed["digest"]) == (later, alone["digest"])
    assert logged(resumed) == logged(alone), "also what was logged before the checkpoint"


def test_from_pretrained_loads_an_exported_checkpoint(scenarios: Scenarios) -> None:
    """One file, and several with an index; lm_head has the weights of the embedding, which are there once."""
    facts = scenarios.facts("exported")
    assert facts["whole"]["files"][-2:] == ["optimizer.safetensors", "training_state.json"]
    assert "model.safetensors" in facts["whole"]["files"]
    assert "model.safetensors.index.json" in facts["cut"]["files"]
    for name in ("whole", "cut"):
        assert (facts[name]["differ"], facts[name]["is_tied"]) == ([], True)
    assert (facts["load_file"], facts["load_model"]) == ([], [])


@pytest.mark.soak
def test_samplers_and_bfloat16_follow_the_step_and_not_the_worker(scenarios: Scenarios) -> None:
    facts = scenarios.facts("grouped")
    assert_same(facts["lost"], facts["alone"])
    lengths = [len(one) for one in facts["alone"]["record"].values()]
    assert lengths == [20, 20, 20, 20, 15] * 4, "each sample once in an epoch"


@pytest.mark.soak
def test_the_best_model_and_early_stopping_survive_the_worker_that_saved_it(scenarios: Scenarios) -> None:
    facts = scenarios.facts("best")
    alone = facts["alone"]
    evaluations = {one["step"]: one["eval_loss"] for one in alone["log"] if "eval_loss" in one}
    assert list(evaluations) == [5, 10, 15, 20], "the last one was not better"
    assert alone["best_metric"] == evaluations[15]
    assert alone["best_eval_loss"] == pytest.approx(evaluations[15], rel=1e-5), (
        "the weights are those of step 15"
    )
    assert_same(facts["lost"], alone)


@pytest.mark.soak
def test_a_worker_is_lost_and_another_one_joins_while_all_evaluate(scenarios: Scenarios) -> None:
    facts = scenarios.facts("evaluating")
    lost = facts["lost"]
    assert lost["world_sizes"] == [3, 3]
    assert not lost["has_evaluated"], "they left the group in the middle of it"
    assert_same(lost, facts["alone"])


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ("no shards", "say with RemoraCallback(shards=...), or elastic.shards of the job, how many shards"),
        (
            "sizes",
            "global_batch is 24, and per_device_train_batch_size x gradient_accumulation_steps (5 x 1) times 4",
        ),
        ("auto_find_batch_size", "set per_device_train_batch_size"),
        ("batch_rebalance", "use 'random', 'sequential' or 'group_by_length'"),
        ("enable_jit_checkpoint", "which Remora does by itself: leave it out"),
        ("no callback", "add callbacks=[RemoraCallback(...)]"),
        ("too little", "15 samples make no step of 20"),
        ("own loop", "has a training loop of its own"),
        ("ends an epoch", "end training with should_training_stop"),
        ("resume", "Remora resumes by itself from its own checkpoints, so leave it out"),
    ],
)
def test_what_cannot_be_elastic_is_refused(refused: dict[str, str], asked: str, answer: str) -> None:
    assert answer in refused[asked]


@pytest.fixture(scope="module")
def refused(scenarios: Scenarios) -> dict[str, str]:
    return scenarios.facts("refused")


@pytest.mark.soak
@pytest.mark.framework("TRL", "runs")
@pytest.mark.framework("TRL", "resumes")
@pytest.mark.framework("TRL", "in place")
@pytest.mark.framework("TRL", "exact samples")
@pytest.mark.framework("TRL", "metrics")
@pytest.mark.parametrize(
    ("trainer", "logs"),
    [
        ("sft", {"mean_token_accuracy", "entropy", "num_tokens"}),
        ("dpo", {"rewards/chosen", "rewards/margins", "logps/rejected", "num_tokens"}),
    ],
)
def test_a_trainer_of_trl_logs_its_own_metrics_as_means_over_all_workers(
    trainer: str, logs: set[str], scenarios: Scenarios
) -> None:
    facts = scenarios.facts(trainer)
    assert (facts["lost"]["world_sizes"], facts["resumed"]["world_sizes"]) == ([3, 2, 3], [2])
    alone = logged(facts["alone"])
    assert len(alone) == 10 + 1
    for name in ("lost", "resumed"):
        assert facts[name]["same_on_all"]
        for found, expected in zip(logged(facts[name]), alone, strict=True):
            assert found == pytest.approx(expected, rel=1e-5, abs=1e-4)
    assert logs <= set(alone[0])
