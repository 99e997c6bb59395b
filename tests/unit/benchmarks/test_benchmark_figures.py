"""What a benchmark's numbers are judged by."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.samples import lost_and_doubled
from benchmarks.steps import after_loss, pause_at_growth, recovered
from benchmarks.table import rows
from benchmarks.verification import ratios
from benchmarks.yardstick import Yardstick

GOOD: dict[str, Any] = {
    "silent_death": {
        "remora_s": 0.4, "stock_s": 35.0, "remora_repeated_steps": 0, "stock_repeated_steps": 3,
        "remora_gcs_core_share": 0.03,
    },
    "notice": {"repeated_steps": 0, "samples_lost": 0, "samples_doubled": 0, "stock_repeated_steps": 4},
    "grow": {"remora_pause_s": 0.1, "stock_pause_s": None},
    "steady_ratio": {"digits": 1.0, "gpt": 1.0},
    "bitwise_ratio": 1.1,
    "verify_ratio": {"gpt": {"500": 1.002}},
    "agreement_share": {"digits": 0.003, "gpt": 0.0003},
    "stall": {"remora_s": 0.01, "torch_save_s": 0.4, "async_save_s": 0.2, "step_s": 1.0},
    "sharded_stall": {"remora": 1.01, "dcp_save": 1.4, "step_s": 1.0},
    "submit_to_first_step": {"remora_s": 1.9, "stock_s": 8.0},
    "reshard_planning": {"1024": {"remora_s": 0.05, "dcp_s": 2.0}},
    "resume_planning": {"1024": {"remora_s": 0.3, "dcp_s": 2.0}},
    "resume_bytes": {"8": {"remora_times": 1.0, "dcp_times": 8.06}},
    "resume_near": {"fsdp2": {"node_s": 0.1, "node_times": 0.0, "storage_s": 0.3, "storage_times": 1.0}},
    "resume_shards": {"4": {"remora_times": 1.0, "dcp_times": 1.0}},
    "regroupings": {"threads": {"before": 20, "after": 20}, "memory_mib": {"before": 110.0, "after": 112.0}},
    "walls": {
        "start_ms": {
            "started": {"users": 70.0, "namespaces": 75.0, "none": 60.0},
            "forked": {"users": 12.0, "namespaces": 20.0, "none": 10.0},
        },
        "step_ratio": {"users": 1.0, "namespaces": 1.0},
        "recovery_s": {"users": 0.5, "namespaces": 0.5, "none": 0.5},
    },
}  # fmt: skip


def verdicts(**changed: Any) -> list[bool]:
    return [is_reached for *_, is_reached in rows({**GOOD, **changed})]


def test_a_good_document_reaches_every_target() -> None:
    assert all(verdicts())
    assert len(verdicts()) == 29


def test_what_is_missed_or_was_not_measured_is_not_reached() -> None:
    slow = {**GOOD["silent_death"], "stock_s": 3.0}
    assert verdicts(silent_death=slow).count(False) == 1
    spins = {**GOOD["silent_death"], "remora_gcs_core_share": 0.7}
    assert verdicts(silent_death=spins).count(False) == 1
    for kind in ("users", "namespaces"):
        slower = {**GOOD["walls"]["step_ratio"], kind: 1.2}
        assert verdicts(walls={**GOOD["walls"], "step_ratio": slower}).count(False) == 1
    assert verdicts(walls={}).count(False) == 8
    assert verdicts(bitwise_ratio=1.3).count(False) == 1
    assert verdicts(verify_ratio={"gpt": {"500": 1.02}}).count(False) == 1
    assert verdicts(agreement_share={"digits": 0.003, "gpt": 0.006}).count(False) == 1
    assert verdicts(stall={}).count(False) == 1
    assert verdicts(sharded_stall={"remora": 1.06, "dcp_save": 1.4}).count(False) == 1
    assert verdicts(resume_bytes={"8": {"remora_times": 2.0, "dcp_times": 8.0}}).count(False) == 1
    assert verdicts(resume_shards={"4": {"remora_times": 2.0, "dcp_times": 1.0}}).count(False) == 1
    assert verdicts(resume_near={"plain": {"node_times": 0.5}}).count(False) == 1
    more = {"threads": {"before": 20, "after": 50}, "memory_mib": {"before": 110.0, "after": 112.0}}
    assert verdicts(regroupings=more).count(False) == 1
    more = {"threads": {"before": 20, "after": 21}, "memory_mib": {"before": 110.0, "after": 140.0}}
    assert verdicts(regroupings=more).count(False) == 1
    assert verdicts(reshard_planning={"1024": {"remora_s": 2.1, "dcp_s": 2.0}}).count(False) == 1
    assert verdicts(resume_planning={"1024": {"remora_s": 2.1, "dcp_s": 3.0}}).count(False) == 1
    assert verdicts(notice={**GOOD["notice"], "samples_doubled": 2}).count(False) == 1


def test_samples_are_counted_by_epoch() -> None:
    lines = [(1, 0, (0, 1)), (1, 0, (2,)), (2, 0, (3,)), (3, 1, (0, 0, 1))]
    assert lost_and_doubled(lines, complete=1, size=4) == (0, 0)
    assert lost_and_doubled(lines, complete=2, size=4) == (2, 1)


def test_a_loss_is_over_with_the_first_new_step_of_the_survivors() -> None:
    steps = [(1.0, 1, 3), (2.0, 2, 3), (9.0, 2, 2)]
    assert recovered(steps, killed_at=2.5) is None
    steps.append((9.5, 3, 2))
    assert recovered(steps, killed_at=2.5) == steps
    assert after_loss(steps, killed_at=2.5) == {"s": 7.0, "repeated": 1}


def test_growth_is_over_with_the_first_new_step_of_three() -> None:
    steps = [(1.0, 1, 3), (3.0, 2, 2), (4.0, 3, 2)]
    assert pause_at_growth(steps, after=2.0) is None
    steps.append((8.0, 3, 3))
    assert pause_at_growth(steps, after=2.0) is None, "it repeats a step"
    steps.append((8.5, 4, 3))
    assert pause_at_growth(steps, after=2.0) == 4.5


def test_a_slowdown_is_what_the_small_task_took_over_its_best() -> None:
    yardstick = Yardstick(times=[0.01, 0.02, 0.03])
    assert yardstick.slowdown == pytest.approx(2.0)
    yardstick.measure(0.5)
    assert len(yardstick.times) == 4
    assert yardstick.total_s == pytest.approx(0.06 + yardstick.times[-1])


def test_the_cost_of_a_check_is_spread_over_the_steps_between_two() -> None:
    assert ratios(2.0) == {"1": 2.0, "500": 1.002, "50": 1.02}
    assert ratios(1.0) == {"1": 1.0, "500": 1.0, "50": 1.0}
