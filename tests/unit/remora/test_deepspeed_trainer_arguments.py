"""TrainingArguments with a DeepSpeed configuration: the batch of a step is fixed, and the accumulation follows."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from remora.deepspeed.configuration import MICRO, ROUNDS, TOTAL
from remora.deepspeed.record import Record, write
from remora.deepspeed.refusal import Refused
from remora.deepspeed.trainer_arguments import config_of, fit

AUTO = {TOTAL: "auto", MICRO: "auto", ROUNDS: "auto"}


@dataclass
class Arguments:
    """Those of TrainingArguments that matter here."""

    deepspeed: Any
    per_device_train_batch_size: int = 8
    gradient_accumulation_steps: int = 2


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of a job is said."""
    for name in ("REMORA_GLOBAL_BATCH", "REMORA_SHARDS", "REMORA_RESUME_DIR"):
        monkeypatch.delenv(name, raising=False)


def numbers(arguments: Arguments, monkeypatch: pytest.MonkeyPatch, workers: int) -> tuple[int, int, int]:
    """Batch of a step, micro-batch and rounds, with that number of workers; both places say the same."""
    monkeypatch.setenv("WORLD_SIZE", str(workers))
    fit(arguments)
    said = arguments.deepspeed
    assert said[MICRO] == arguments.per_device_train_batch_size
    assert said[ROUNDS] == arguments.gradient_accumulation_steps
    assert said[MICRO] * said[ROUNDS] * workers == said[TOTAL]
    return said[TOTAL], said[MICRO], said[ROUNDS]


@pytest.mark.parametrize(
    ("workers", "expected"), [(1, (96, 8, 12)), (2, (96, 8, 6)), (3, (96, 8, 4)), (8, (96, 6, 2))]
)
def test_the_accumulation_follows_the_workers(
    workers: int, expected: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REMORA_GLOBAL_BATCH", "96")
    assert numbers(Arguments(dict(AUTO)), monkeypatch, workers) == expected


def test_a_fixed_batch_of_the_configuration_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    assert numbers(Arguments({**AUTO, TOTAL: 48}), monkeypatch, 3) == (48, 8, 2)
    with pytest.raises(Refused, match="48 samples cannot be divided equally among 5 workers"):
        numbers(Arguments({**AUTO, TOTAL: 48}), monkeypatch, 5)
    monkeypatch.setenv("REMORA_GLOBAL_BATCH", "96")
    with pytest.raises(Refused, match=r"is 48 in the DeepSpeed configuration and elastic.global_batch is 96"):
        numbers(Arguments({**AUTO, TOTAL: 48}), monkeypatch, 3)


def test_shards_or_else_the_first_worker_group_say_it_where_nothing_else_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert numbers(Arguments(dict(AUTO)), monkeypatch, 3) == (48, 8, 2)
    record = Record(
        tag="global_step5",
        world_size=3,
        copies=3,
        stage=2,
        global_batch=48,
        folder=None,
        parameters=1,
        model="m",
    )
    (tmp_path / record.tag).mkdir()
    write(record, tmp_path)
    monkeypatch.setenv("REMORA_RESUME_DIR", str(tmp_path))
    assert numbers(Arguments(dict(AUTO)), monkeypatch, 2) == (48, 8, 3)
    monkeypatch.delenv("REMORA_RESUME_DIR")
    monkeypatch.setenv("REMORA_SHARDS", "4")
    assert numbers(Arguments(dict(AUTO)), monkeypatch, 2) == (64, 8, 4)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({MICRO: 4}, f"{MICRO} is 4 .* per_device_train_batch_size is 8 in TrainingArguments"),
        ({ROUNDS: 3}, f"{ROUNDS} is 3 .* gradient_accumulation_steps is 2 in TrainingArguments"),
        ({MICRO: True}, "is True in the DeepSpeed configuration; write a whole number"),
        ({"tensor_parallel": {"autotp_size": 2}}, "tensor_parallel.autotp_size .* is not supported"),
        ({"elasticity": {"enabled": True}}, "elasticity.enabled is true"),
    ],
)
def test_what_contradicts_is_refused(
    changes: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REMORA_GLOBAL_BATCH", "96")
    with pytest.raises(Refused, match=said):
        numbers(Arguments({**AUTO, **changes}), monkeypatch, 2)


def test_a_configuration_is_a_dictionary_a_file_or_a_text(tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    file.write_text(json.dumps(AUTO))
    assert config_of(AUTO) == config_of(str(file)) == config_of(file) == config_of(json.dumps(AUTO)) == AUTO
    assert config_of("no such file") is None
    for text in ("{", "[1]", "\xff", "[" * 100_000):
        file.write_text(text, encoding="latin-1")
        with pytest.raises(Refused, match="ds"):
            config_of(str(file))
    with pytest.raises(Refused, match="the text that is given is no DeepSpeed configuration"):
        config_of("{,}")
