"""A driver hears of each worker what it needs, and of all together no more than it can take."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trainers.supervisor.report_filter import PACES_PER_S, Reporting
from trainers.worker_identity import WorkerIdentity

IDENTITY = WorkerIdentity(
    job_id="job_1", attempt_id="att_1", attempt=1, generation=1, rank=0, world_size=2, local_rank=0,
    local_world_size=1, node_rank=0, num_nodes=2, master_addr="127.0.0.1", master_port=29500,
)  # fmt: skip


def passed(
    kind: str, identity: WorkerIdentity, *, each_s: float, seconds: float, reporting: Reporting
) -> int:
    messages = range(int(seconds / each_s))
    return sum(reporting.is_needed({"type": kind}, identity, number * each_s) for number in messages)


def test_the_first_report_of_every_rank_and_all_of_rank_0() -> None:
    other = replace(IDENTITY, rank=1)
    assert passed("report", IDENTITY, each_s=0.01, seconds=1.0, reporting=Reporting()) == 100
    reporting = Reporting()
    assert passed("report", other, each_s=0.01, seconds=1.0, reporting=reporting) == 1
    assert passed("report", IDENTITY, each_s=0.01, seconds=1.0, reporting=reporting) == 100, (
        "it is rank 0 now"
    )


@pytest.mark.parametrize("workers", [1, 8, PACES_PER_S, 1024, 8192])
def test_paces_of_all_workers_are_no_more_than_so_many_in_a_second(workers: int) -> None:
    """They told once a second each: 8,192 messages a second."""
    identity = replace(IDENTITY, world_size=workers, rank=workers - 1)
    seconds = 1000.0
    each = passed("pace", identity, each_s=1.0, seconds=seconds, reporting=Reporting())
    assert each == pytest.approx(min(seconds, seconds * PACES_PER_S / workers), abs=1)


def test_a_new_worker_group_hears_the_pace_of_everybody_at_once() -> None:
    reporting, large = Reporting(), replace(IDENTITY, world_size=8192)
    assert reporting.is_needed({"type": "pace"}, large, 0.0)
    assert not reporting.is_needed({"type": "pace"}, large, 1.0)
    assert reporting.is_needed({"type": "pace"}, replace(large, generation=2), 2.0)


def test_everything_else_is_needed() -> None:
    reporting = Reporting()
    for kind in ("hello", "held", "saving", "parted", "joined", "abandoned", "stalled"):
        assert reporting.is_needed({"type": kind}, replace(IDENTITY, rank=1), 0.0)
        assert reporting.is_needed({"type": kind}, replace(IDENTITY, rank=1), 0.0)
