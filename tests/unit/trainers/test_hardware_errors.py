"""A GPU's failure is its node's and not the script's: what says so, and what follows."""

from __future__ import annotations

import pytest

from remora.states import EndReason
from tests.unit.trainers.stage import Stage
from tests.unit.trainers.virtual_time import scene
from trainers.driver.hardware_errors import gpu_failure
from trainers.driver.sick_nodes import MOST_NODES, MOST_REPORTS, SickNodes

ECC = """\
Traceback (most recent call last):
  File "train.py", line 41, in <module>
    loss.backward()
torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered
CUDA kernel errors might be asynchronously reported at some other API call.
"""


@pytest.mark.parametrize(
    "text",
    [
        ECC,
        "RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution",
        "Error 802: system not yet initialized, cudaGetDeviceCount() returned cudaErrorSystemNotReady",
        "pynvml.NVMLError_GpuIsLost: GPU is lost",
    ],
)
def test_what_only_hardware_says(text: str) -> None:
    assert gpu_failure(f"step 1\n{text}\nbye") is not None


@pytest.mark.parametrize(
    "text",
    [
        "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
        "RuntimeError: CUDA error: device-side assert triggered",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "RuntimeError: CUDA error: unspecified launch failure",
        "torch.AcceleratorError: CUDA error: all CUDA-capable devices are busy or unavailable",
        "Error 803: system has unsupported display driver / cuda driver combination",
        "my game engine: system not yet initialized",
        "CUDA is fine\nthe GPU is lost in translation",
        "",
    ],
)
def test_what_may_be_the_scripts_own_fault(text: str) -> None:
    assert gpu_failure(text) is None


GPU = {"CPU": 1.0, "GPU": 1.0}


def fail(stage: Stage, slot: int, text: str = ECC) -> None:
    """A command writes that, and ends with exit code 1."""
    rank = stage.group_members.ranks[slot]
    stage.attempt.receive(rank, {"type": "log", "stream": "stderr", "text": text})
    message = {"type": "exit", "exit_code": 1, "signal": None}
    stage.in_place.note_failure(slot, message)
    if slot in stage.group_members.present:
        stage.attempt.receive(rank, message)
    stage.in_place.note_exit(slot)


@scene
async def test_the_others_go_on_and_the_node_is_named() -> None:
    stage = Stage(3, resources=GPU)
    fail(stage, 1)
    await stage.settled()
    assert (stage.order, stage.regrouped) == ([0, 2], [("loss", 2)])
    assert stage.events("worker.gpu_failed") == [{"rank": 1, "address": "10.0.0.1"}]
    assert stage.in_place.absorb({1}, set(), set()) == {1}, "the controller is late, and drops it now"
    assert stage.attempt.verdict is None


@scene
async def test_scripts_that_cannot_go_on_start_again_and_no_retry_is_used_up() -> None:
    stage = Stage(2, resources=GPU)
    stage.group_members.elastic.clear()
    fail(stage, 1)
    assert stage.events("worker.gpu_failed") == [{"rank": 1, "address": "10.0.0.1"}]
    assert stage.in_place.absorb({1}, set(), set()) == set()
    assert await stage.attempt.judge(set(), set()), "another worker group of this attempt takes over"
    assert stage.events("node.lost") == [{"ranks": [1]}]


@scene
async def test_an_error_of_the_script_ends_the_attempt_as_before() -> None:
    stage = Stage(2, resources=GPU)
    fail(stage, 1, "RuntimeError: CUDA error: device-side assert triggered")
    assert stage.events("worker.gpu_failed") == []
    assert not await stage.attempt.judge(set(), set())
    assert stage.attempt.verdict is not None
    assert stage.attempt.verdict.end_reason is EndReason.EXIT_CODE


@scene
async def test_a_command_that_ends_well_has_no_sick_node_whatever_it_wrote() -> None:
    stage = Stage(2, resources=GPU)
    stage.attempt.receive(1, {"type": "log", "stream": "stderr", "text": ECC})
    stage.in_place.note_failure(1, {"type": "exit", "exit_code": 0})
    assert stage.events("worker.gpu_failed") == []


def test_an_attempt_calls_few_nodes_sick_and_each_of_them_a_few_times() -> None:
    nodes = SickNodes()
    assert all(nodes.add([f"n{number}"]) for number in range(MOST_NODES))
    assert not nodes.add(["another"])
    assert "another" not in nodes
    assert [nodes.add(["n0"]) for _ in range(MOST_REPORTS)] == [True] * (MOST_REPORTS - MOST_NODES) + [
        False
    ] * MOST_NODES


@scene
async def test_an_error_that_the_script_went_on_after_does_not_count() -> None:
    stage = Stage(2, resources=GPU)
    fail(stage, 1, ECC + "going on\n" * 40 + "ValueError: another thing")
    assert stage.events("worker.gpu_failed") == []
    assert not await stage.attempt.judge(set(), set())


@scene
async def test_a_job_without_gpus_says_nothing_about_them() -> None:
    stage = Stage(2)
    fail(stage, 1)
    assert stage.events("worker.gpu_failed") == []
    assert not await stage.attempt.judge(set(), set())
