"""One cause shows itself many times; the verdict names the cause."""

from __future__ import annotations

import pytest

from remora.states import EndReason
from trainers.driver.verdict import ChildExit, GroupFailure, judge


def left(rank: int, at: float, **how: object) -> ChildExit:
    return ChildExit(rank=rank, at=at, **how)  # type: ignore[arg-type]


ERROR, CRASH = left(1, 2.0, exit_code=1), left(2, 1.0, signal=9)
ABSENT = left(1, 1.0, start_failed="trane: No such file or directory")


@pytest.mark.parametrize(
    ("failure", "reason", "goes_on", "said"),
    [
        (GroupFailure(exits=(ERROR,)), "exit_code", False, "rank 1 ended with exit code 1; its log says why"),
        (
            GroupFailure(exits=(left(0, 1.0, exit_code=1, last_words="ValueError: 3"),)),
            "exit_code",
            False,
            "code 1: ValueError: 3",
        ),
        (
            GroupFailure(
                exits=(left(0, 1.0, exit_code=1, last_words="ModuleNotFoundError: No module named 'torch'"),)
            ),
            "exit_code",
            False,
            "No module named 'torch'. List it in `environment.pip`, put it into `code` or the job's image",
        ),
        (GroupFailure(exits=(ERROR, CRASH)), "signal", False, "rank 2 was ended by SIGKILL"),
        (GroupFailure(exits=(left(0, 1.0, signal=40),)), "signal", False, "signal 40"),
        (
            GroupFailure(
                exits=(ERROR, left(0, 1.0, signal=9, excess="its files have 2 B, and may have 1 B"))
            ),
            "signal",
            False,
            "The command of rank 0 was ended by SIGKILL: its files have 2 B, and may have 1 B.",
        ),
        (GroupFailure(exits=(ABSENT, ERROR)), "start_failed", False, "rank 1: trane: No such file"),
        (GroupFailure(exits=(left(0, 1.0, exit_code=0), ERROR)), "exit_code", False, "rank 1"),
        (GroupFailure(exits=(ERROR,), lost_nodes=(2,)), "node_lost", True, "The node of rank 2 was lost."),
        (GroupFailure(lost_nodes=(2, 0), is_planned=True), "node_lost", True, "ranks 0, 2"),
        (GroupFailure(exits=(ERROR,), is_planned=True), "evicted", True, "changes its size"),
        (GroupFailure(exits=(ERROR,), lost_supervisors=(3,)), "supervisor_lost", False, "of rank 3 died"),
        (GroupFailure(exits=(ERROR,), troubles=((0, "disk full"),)), "supervisor_lost", False, "disk full"),
        (
            GroupFailure(exits=(CRASH,), lost_nodes=(1,), diverged="After step 100 rank 2 does not hold"),
            "diverged",
            False,
            "After step 100 rank 2 does not hold",
        ),
        (GroupFailure(), "supervisor_lost", False, "no process of it says why"),
    ],
)
def test_verdicts(failure: GroupFailure, reason: str, goes_on: bool, said: str) -> None:
    verdict = judge(failure)
    assert (verdict.end_reason, verdict.goes_on) == (EndReason(reason), goes_on)
    assert said in verdict.message


def test_only_an_exit_code_is_reported_as_one() -> None:
    assert judge(GroupFailure(exits=(left(0, 1.0, exit_code=3),))).exit_code == 3
    assert judge(GroupFailure(exits=(CRASH,))).exit_code is None


def test_of_two_ranks_that_failed_at_once_the_lower_one_is_named() -> None:
    same = tuple(left(rank, 5.0, exit_code=rank + 1) for rank in (2, 1))
    assert judge(GroupFailure(exits=same)).exit_code == 2
