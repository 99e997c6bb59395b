"""Whether the end of an attempt on GPUs is a sick node's fault, in whichever order the two are heard of."""

from __future__ import annotations

from dataclasses import replace

import pytest

from remora.states import EndReason
from service.queue.sick_exits import JOINED_S, LEAVES_S, GpuEnd, is_held, nodes_of, sick_node

END = GpuEnd(EndReason.SIGNAL, "The command of rank 1 was ended by SIGABRT.", 1000.0, frozenset({"a", "b"}))


@pytest.mark.parametrize("after_s", [-LEAVES_S, -JOINED_S, -1.0, 0.0, 1.0, JOINED_S])
def test_a_report_about_that_time_names_the_node_whichever_comes_first(after_s: float) -> None:
    assert sick_node(END, {"b": 1000.0 + after_s}) == "b"


def test_the_report_that_is_closest_names_the_node() -> None:
    assert sick_node(END, {"a": 990.0, "b": 1020.0}) == "a"
    assert sick_node(END, {"a": 970.0, "b": 1020.0}) == "b"
    assert sick_node(END, {"b": 990.0, "a": 1010.0}) == "a"


@pytest.mark.parametrize(
    ("sick", "reason"),
    [
        ({}, EndReason.SIGNAL),
        ({"c": 1000.0}, EndReason.SIGNAL),
        ({"a": 1000.0 - LEAVES_S - 0.1}, EndReason.SIGNAL),
        ({"a": 1000.0 + JOINED_S + 0.1}, EndReason.SIGNAL),
        ({"a": 1000.0}, EndReason.START_FAILED),
        ({"a": 1000.0}, EndReason.COMPLETED),
    ],
)
def test_other_ends_are_no_nodes_fault(sick: dict[str, float], reason: EndReason) -> None:
    assert sick_node(replace(END, reason=reason), sick) is None


@pytest.mark.parametrize(
    ("reason", "message", "waits"),
    [
        (EndReason.SIGNAL, "ended by SIGSEGV", True),
        (EndReason.HANG, "no step ended", True),
        (
            EndReason.EXIT_CODE,
            "exit code 1: torch.AcceleratorError: CUDA error: an illegal memory access",
            True,
        ),
        (EndReason.EXIT_CODE, "exit code 1: RuntimeError: NCCL error", True),
        (EndReason.EXIT_CODE, "exit code 1: ValueError: 3 is not 4", False),
        (EndReason.COMPLETED, "CUDA", False),
        (EndReason.START_FAILED, "CUDA", False),
    ],
)
def test_what_a_gpu_may_be_the_cause_of_is_held_for_a_minute(
    reason: EndReason, message: str, waits: bool
) -> None:
    end = replace(END, reason=reason, message=message)
    assert [is_held(end, 1000.0 + one) for one in (0.0, JOINED_S - 0.1, JOINED_S)] == [waits, waits, False]


def test_nodes_that_are_not_stored_yet_count() -> None:
    assert nodes_of(["a"], [{"b": 1}, {}]) == {"a", "b"}
