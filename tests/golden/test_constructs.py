"""What a script may contain: each row of the table in `docs/elastic-training.md` is what one and three workers do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.architecture.repository import ROOT
from tests.golden.constructs import CONSTRUCTS, Construct, table, train_together

pytestmark = [pytest.mark.timeout(600)]


@pytest.mark.parametrize("construct", CONSTRUCTS, ids=[one.body.__name__ for one in CONSTRUCTS])
def test_a_row_says_what_happens(construct: Construct, tmp_path: Path) -> None:
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
        is_equal = is_equal and all(torch.equal(one.weights[name], value) for name, value in expected.items())
    assert is_equal == (construct.outcome == "exact")


def test_the_page_has_the_table() -> None:
    assert table() in (ROOT / "docs/elastic-training.md").read_text(), (
        "put what `python -m tests.golden.constructs` prints into docs/elastic-training.md"
    )
