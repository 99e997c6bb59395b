"""Numbers of a DeepSpeed configuration that follow from the job and the number of workers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.deepspeed.configuration import MICRO, ROUNDS, TOTAL, batch_of, check, filled
from remora.deepspeed.refusal import Refused

COUNTS = st.none() | st.just("auto") | st.integers(1, 64)


def config(total: Any = None, micro: Any = None, rounds: Any = None, **rest: Any) -> dict[str, Any]:
    given = {TOTAL: total, MICRO: micro, ROUNDS: rounds, **rest}
    return {name: value for name, value in given.items() if value is not None}


@pytest.mark.parametrize(
    ("given", "copies", "asked", "batch"),
    [
        (config("auto", "auto", "auto"), 2, 96, (96, 48, 1)),
        (config("auto", 32, "auto"), 1, 96, (96, 32, 3)),
        (config("auto", 32, "auto"), 2, 96, (96, 24, 2)),
        (config("auto", 32, "auto"), 3, 96, (96, 32, 1)),
        (config(96, 8), 2, None, (96, 8, 6)),
        (config(96, 8, 6), 3, None, (96, 8, 4)),
        (config(None, "auto", 4), 2, 96, (96, 12, 4)),
        (config(None, 8, 2), 3, None, (None, 8, 2)),
    ],
)
def test_a_batch_is_divided(
    given: dict[str, Any], copies: int, asked: int | None, batch: tuple[int | None, int, int]
) -> None:
    said = batch_of(filled(given, copies, asked))
    assert (said.total, said.micro, said.rounds) == batch


@given(COUNTS, COUNTS, COUNTS, st.integers(1, 8), st.none() | st.integers(1, 256))
def test_the_global_batch_is_the_same_for_every_number_of_workers(
    total: Any, micro: Any, rounds: Any, copies: int, asked: int | None
) -> None:
    given = config(total, micro, rounds)
    try:
        said = batch_of(filled(given, copies, asked))
    except Refused:
        return
    assert said.micro is not None
    assert said.rounds is not None
    if said.total is not None:
        assert said.micro * said.rounds * copies == said.total == (asked or total)
    if isinstance(micro, int):
        assert said.micro <= micro, "what does not fit on a device is never asked of it"


@pytest.mark.parametrize(
    ("given", "asked", "said"),
    [
        (config(64), 96, "train_batch_size is 64 .* elastic.global_batch is 96"),
        (config("auto", 5, 2), 96, "is 5 and gradient_accumulation_steps is 2 .* global batch of 96"),
        (config(elasticity={"enabled": True}), 96, "elasticity.enabled"),
        (config(0), None, "train_batch_size is 0"),
        (config("many"), None, "train_batch_size is 'many'"),
    ],
)
def test_what_contradicts_the_job_is_refused_with_both_values(
    given: dict[str, Any], asked: int | None, said: str
) -> None:
    with pytest.raises(Refused, match=said):
        check(given, asked)


@pytest.mark.parametrize(
    ("given", "copies", "asked", "said"),
    [
        (config(), 2, None, "how large a batch is"),
        (config(), 3, 16, "16 samples cannot be divided equally among 3 workers"),
        (config(scheduler={"params": {"total_num_steps": "auto"}}), 2, 16, "scheduler.params.total_num_steps is"),
    ],
)  # fmt: skip
def test_what_is_unknown_is_refused(given: dict[str, Any], copies: int, asked: int | None, said: str) -> None:
    with pytest.raises(Refused, match=said):
        filled(given, copies, asked)


def test_what_the_job_does_not_decide_stays_as_it_is() -> None:
    rest = {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}, "steps_per_print": 7}
    assert filled({**rest, TOTAL: 8}, 2, None) == {**rest, TOTAL: 8, MICRO: 4, ROUNDS: 1}
