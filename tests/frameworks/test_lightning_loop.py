"""The Trainer of Lightning on `Steps`: what a plain one does, whatever the number of workers and when it changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.frameworks.transformers_environment import Scenarios

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def scenarios(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scenarios]:
    made = Scenarios(tmp_path_factory.mktemp("lightning"), "lightning_scenarios")
    yield made
    made.close()


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Weights bit for bit, every report, every sample of every step, and the best files."""
    assert found["digest"] == expected["digest"]
    assert found["reported"] == expected["reported"]
    assert found["record"] == expected["record"]
    for name in ("steps", "epochs", "metrics", "rate", "best", "best_score", "best_step", "files"):
        assert found[name] == expected[name], name
    assert found["has_best_file"]
    assert found["same_on_all"], "all workers hold the same at the end"


def test_alone_it_does_what_a_plain_trainer_with_the_same_batch_does(scenarios: Scenarios) -> None:
    facts = scenarios.facts("same_as_trainer")
    plain, elastic = facts["plain"], facts["alone"]
    assert elastic["record"] == plain["record"]
    for name in ("steps", "epochs", "best", "best_step", "files"):
        assert elastic[name] == plain[name]
    assert elastic["rate"] == pytest.approx(plain["rate"])
    assert elastic["epoch_metrics"] == pytest.approx(plain["epoch_metrics"], rel=1e-3)


@pytest.mark.framework("Lightning", "runs")
@pytest.mark.framework("Lightning", "resumes")
@pytest.mark.framework("Lightning", "in place")
@pytest.mark.framework("Lightning", "exact samples")
@pytest.mark.framework("Lightning", "metrics")
def test_a_lost_rank_0_with_its_files_a_new_worker_and_a_resume_change_nothing(scenarios: Scenarios) -> None:
    facts = scenarios.facts("lost")
    alone, lost, resumed = facts["alone"], facts["lost"], facts["resumed"]
    assert lost["world_sizes"] == [3, 2, 3]
    assert_same(lost, alone)
    assert lost["epoch_metrics"] == alone["epoch_metrics"], "means over whole epochs"
    ended = resumed["epoch_metrics"]
    assert 3 <= len(ended) < 6, "it was resumed in one of them"
    assert ended == alone["epoch_metrics"][-len(ended) :]
    reported = alone["reported"]
    assert list(reported) == [str(step) for step in range(1, 31)]
    assert {"loss", "accuracy", "train_loss", "learning_rate"} <= reported["1"].keys()
    assert [step for step, one in reported.items() if "val_loss" in one][:3] == ["3", "8", "13"]
    saved = resumed["saved"]
    later = {step: one for step, one in reported.items() if int(step) > saved}
    record = {step: one for step, one in alone["record"].items() if int(step) > saved}
    assert_same({**resumed, "reported": reported, "record": alone["record"]}, alone)
    assert (resumed["reported"], resumed["record"]) == (later, record)


def test_the_epoch_and_bfloat16_follow_the_step_and_not_the_worker(scenarios: Scenarios) -> None:
    facts = scenarios.facts("by_epoch")
    alone = facts["alone"]
    assert_same(facts["lost"], alone)
    rates = [round(one["learning_rate"], 6) for one in alone["reported"].values()]
    assert sorted(set(rates), reverse=True) == [round(0.01 * 0.8**epoch, 6) for epoch in range(7)]
    assert facts["resumed"]["digest"] == alone["digest"]
    assert facts["resumed"]["epoch_metrics"][-3:] == alone["epoch_metrics"][-3:]


def test_early_stopping_counts_on_when_its_worker_is_lost(scenarios: Scenarios) -> None:
    facts = scenarios.facts("stopped")
    assert facts["alone"]["steps"] < 100
    assert_same(facts["lost"], facts["alone"])


def test_a_worker_is_lost_and_another_one_joins_while_all_validate(scenarios: Scenarios) -> None:
    facts = scenarios.facts("validating")
    lost = facts["lost"]
    assert lost["world_sizes"] == [3, 3]
    assert not lost["has_validated"], "they left the group in the middle of it"
    assert_same(lost, facts["alone"])


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ("manual", "or write the loop with remora.torch.Steps"),
        ("own backward", "the module has a backward of its own"),
        ("two loaders", "reads one training DataLoader: hand over one"),
        ("no loader", "reads the dataset of a torch.utils.data.DataLoader"),
        ("metric", "such as that of torchmetrics.functional"),
        ("sum", "a step has means over its samples: leave reduce_fx out"),
        ("now and then", "log the same names in every call"),
        ("no loss", "training_step returned no loss"),
        ("ends an epoch", "on_train_batch_start returned -1"),
        ("part of an epoch", "use max_steps, or a smaller dataset"),
        ("by the clock", "end training by the clock"),
        ("fits twice", "fit() was called before with this strategy"),
        ("own checkpoint", "Remora resumes by itself from its own checkpoints, so leave it out"),
        ("no end", "give Trainer max_epochs or max_steps"),
        ("no shards", "say with RemoraStrategy(shards=...), or elastic.shards of the job"),
        (
            "sizes",
            "global_batch is 24, and batch_size x accumulate_grad_batches (5 x 1) times 4 shards is 20",
        ),
    ],
)
def test_what_cannot_be_elastic_is_refused(refused: dict[str, str], asked: str, answer: str) -> None:
    assert answer in refused[asked]


@pytest.fixture(scope="module")
def refused(scenarios: Scenarios) -> dict[str, str]:
    return scenarios.facts("refused")
