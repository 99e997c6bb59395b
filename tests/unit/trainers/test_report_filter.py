"""A driver hears of each worker what it needs, and of all together no more than it can take."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trainers.supervisor.report_filter import PACES_PER_S, ReportFilter
from trainers.worker_identity import WorkerIdentity

IDENTITY = WorkerIdentity(
    job_id="job_1", attempt_id="att_1", attempt=1, generation=1, rank=0, world_size=2, local_rank=0,
    local_world_size=1, node_rank=0, num_nodes=2, master_addr="127.0.0.1", master_port=29500,
)  # fmt: skip


def passed(
    kind: str, identity: WorkerIdentity, *, each_s: float, seconds: float, report_filter: ReportFilter
) -> int:
    messages = range(int(seconds / each_s))
    return sum(report_filter.is_needed({"type": kind}, identity, number * each_s) for number in messages)


def test_the_first_report_of_every_rank_and_all_of_rank_0() -> None:
    other = replace(IDENTITY, rank=1)
    assert passed("report", IDENTITY, each_s=0.01, seconds=1.0, report_filter=ReportFilter()) == 100
    report_filter = ReportFilter()
    assert passed("report", other, each_s=0.01, seconds=1.0, report_filter=report_filter) == 1
    assert passed("report", IDENTITY, each_s=0.01, seconds=1.0, report_filter=report_filter) == 100, (
        "it is rank 0 now"
    )


@pytest.mark.parametrize("workers", [1, 8, PACES_PER_S, 1024, 8192])
def test_paces_of_all_workers_are_no_more_than_so_many_in_a_second(workers: int) -> None:
    """They told once a second each: 8,192 messages a second."""
    identity = replace(IDENTITY, world_size=workers, rank=workers - 1)
    seconds = 1000.0
    each = passed("pace", identity, each_s=1.0, seconds=seconds, report_filter=ReportFilter())
    assert each == pytest.approx(min(seconds, seconds * PACES_PER_S / workers), abs=1)


def test_a_new_worker_group_hears_the_pace_of_everybody_at_once() -> None:
    report_filter, large = ReportFilter(), replace(IDENTITY, world_size=8192)
    assert report_filter.is_needed({"type": "pace"}, large, 0.0)
    assert not report_filter.is_needed({"type": "pace"}, large, 1.0)
    assert report_filter.is_needed({"type": "pace"}, replace(large, generation=2), 2.0)


def test_everything_else_is_needed() -> None:
    report_filter = ReportFilter()
    for kind in ("hello", "held", "saving", "parted", "joined", "abandoned", "stalled"):
        assert report_filter.is_needed({"type": kind}, replace(IDENTITY, rank=1), 0.0)
        assert report_filter.is_needed({"type": kind}, replace(IDENTITY, rank=1), 0.0)
