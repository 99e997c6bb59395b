"""What a script may contain: each row of the table in `docs/elastic-training.md` is what one and three workers do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.architecture.repository import ROOT
from tests.golden import (
    beside_constructs,
    constructs,
    constructs_of_models,
    more_constructs,
    sampler_constructs,
    sharded_constructs,
    sharded_constructs_of_models,
    stream_constructs,
)
from tests.golden.constructs import Construct, train_together

pytestmark = [pytest.mark.timeout(600)]


PLAIN = [*constructs.CONSTRUCTS, *more_constructs.CONSTRUCTS, *constructs_of_models.CONSTRUCTS]
SAMPLED = [
    pytest.param(
        one,
        id=one.body.__name__,
        marks=[] if one.body in sampler_constructs.ALWAYS else [pytest.mark.soak],
    )
    for one in sampler_constructs.CONSTRUCTS
]
STREAMED = [
    pytest.param(
        one,
        id=one.body.__name__,
        marks=[] if one.body in stream_constructs.ALWAYS else [pytest.mark.soak],
    )
    for one in stream_constructs.CONSTRUCTS
]
BESIDE = [
    pytest.param(
        one,
        id=one.body.__name__,
        marks=[] if one.body in beside_constructs.ALWAYS else [pytest.mark.soak],
    )
    for one in beside_constructs.CONSTRUCTS
]
#: Each of their workers compiles for a minute.
LONG = (
    constructs_of_models.compiled,
    constructs_of_models.compiled_as_a_whole,
    sharded_constructs_of_models.compiled,
    sharded_constructs_of_models.compiled_as_a_whole,
)
#: Each trains three times with several workers: one of six is tried with every change, all of them in `make soak`.
ONE_OF = 6


def some(rows: Sequence[Construct]) -> list[Any]:
    """Parameters of all rows, most of them marked `soak`."""
    return [
        pytest.param(
            one,
            id=one.body.__name__,
            marks=[pytest.mark.soak] if number % ONE_OF or one.body in LONG else [],
        )
        for number, one in enumerate(rows)
    ]


@pytest.mark.parametrize("construct", some(PLAIN))
def test_a_row_says_what_happens(construct: Construct, tmp_path: Path) -> None:
    check(construct, tmp_path, torch.equal)


@pytest.mark.parametrize("construct", SAMPLED)
def test_a_row_says_what_happens_with_a_sampler(construct: Construct, tmp_path: Path) -> None:
    check(construct, tmp_path, torch.equal)


@pytest.mark.parametrize("construct", STREAMED)
def test_a_row_says_what_happens_with_a_stream(construct: Construct, tmp_path: Path) -> None:
    check(construct, tmp_path, torch.equal)


@pytest.mark.parametrize("construct", BESIDE)
def test_a_row_says_what_happens_to_what_a_script_does_beside_its_steps(
    construct: Construct, tmp_path: Path
) -> None:
    check(construct, tmp_path, torch.equal)


@pytest.mark.parametrize(
    "construct", [*some(sharded_constructs.CONSTRUCTS), *some(sharded_constructs_of_models.CONSTRUCTS)]
)
def test_a_row_says_what_happens_to_a_sharded_model(construct: Construct, tmp_path: Path) -> None:
    check(construct, tmp_path, lambda one, other: torch.allclose(one, other, rtol=1e-4, atol=1e-5))


def check(
    construct: Construct, tmp_path: Path, is_same: Callable[[torch.Tensor, torch.Tensor], bool]
) -> None:
    several = train_together(construct.body, 3, tmp_path / "three")
    if construct.outcome == "refused":
        for one in several:
            assert construct.says in one.error
            assert "\n" not in one.error, "in one sentence"
        return
    (alone,) = train_together(construct.body, 1, tmp_path / "one")
    for one in (alone, *several):
        assert one.error == ""
    assert alone.weights is not None
    expected, is_equal = alone.weights, True
    for one in several:
        assert one.weights is not None
        is_equal = is_equal and all(is_same(one.weights[name], value) for name, value in expected.items())
    assert is_equal == (construct.outcome == "exact")


@pytest.mark.parametrize(
    "module",
    [
        constructs,
        more_constructs,
        constructs_of_models,
        sampler_constructs,
        stream_constructs,
        beside_constructs,
        sharded_constructs,
        sharded_constructs_of_models,
    ],
)
def test_the_page_has_the_table(module: ModuleType) -> None:
    assert module.table() in (ROOT / "docs/elastic-training.md").read_text(), (
        f"put what `python -m {module.__name__}` prints into docs/elastic-training.md"
    )
