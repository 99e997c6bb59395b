"""What drivers report is cut to what both databases take, whatever the script gave."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.queue.driver_records import MAX_INTEGER, MetricRecord, clean_json, clean_text, read
from trainers.plan import Record

TEXTS = st.text(st.characters(codec=None) | st.sampled_from("\0\ud800\udfff"), max_size=6)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS | st.integers(), inner, max_size=3),
    max_leaves=12,
)


def metric(**values: object) -> dict[str, float | None]:
    return MetricRecord.model_validate({"step": 1, "world_size": 1, "values": values}).values


@pytest.mark.parametrize(
    ("given", "kept"),
    [(0.5, 0.5), (3, 3.0), (True, 1.0), (None, None), (math.nan, None), (-math.inf, None), (10**400, None)],
)
def test_a_metric_is_a_finite_number_or_missing(given: object, kept: float | None) -> None:
    assert metric(loss=given) == {"loss": kept}


@given(ANYTHING)
def test_whatever_an_event_carries_can_be_stored_and_read_back(value: Any) -> None:
    clean = clean_json(value)
    text = json.dumps(clean, allow_nan=False)
    text.encode()
    assert "\\u0000" not in text
    assert json.loads(text) == clean
    assert clean_json(clean) == clean


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (MAX_INTEGER, MAX_INTEGER),
        (-MAX_INTEGER, -MAX_INTEGER),
        (MAX_INTEGER + 1, str(MAX_INTEGER + 1)),
        (math.inf, None),
        ((1, "a\0b"), [1, clean_text("a\0b")]),
        ({1: b"x"}, {"1": "b'x'"}),
    ],
)
def test_what_has_no_place_in_json_becomes_a_text_or_nothing(given: object, kept: object) -> None:
    assert clean_json(given) == kept


@pytest.mark.parametrize(
    ("kind", "body", "left_out"),
    [
        ("ended", {"end_reason": "exit_code"},
         {"message": "", "exit_code": None, "outputs_are_complete": True, "open_lost_s": 0.0}),
        ("checkpoint", {"step": 3, "deleted": True}, {"reason": "retention"}),
        ("progress", {"step": 3}, dict.fromkeys(
            ["state", "world_size", "workers", "total_steps", "repeated_steps", "lost_s", "resumed_from_step",
             "preparing", "environment", "global_batch", "phase", "stalled_s", "loads"])),
    ],
)  # fmt: skip
def test_what_a_driver_leaves_out_is_not_made_up(
    kind: Any, body: dict[str, Any], left_out: dict[str, Any]
) -> None:
    assert read(Record(seq=1, at=1.0, kind=kind, body=body)).model_dump(mode="json") == {**body, **left_out}


def test_eight_levels_are_kept() -> None:
    def nested(levels: int, inside: object) -> object:
        return inside if levels == 0 else [nested(levels - 1, inside)]

    assert clean_json(nested(8, 1)) == nested(8, 1)
    assert clean_json(nested(9, 1)) == nested(8, "...")
