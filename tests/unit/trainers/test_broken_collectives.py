"""A process that ends because a collective could not go on: who is not at fault, and what follows."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from remora.states import EndReason
from tests.unit.trainers.stage import Stage
from tests.unit.trainers.virtual_time import scene
from trainers.driver.hardware_errors import collective_failure
from trainers.driver.kills import MOST_KILLS

STUCK = "a communicator's abort did not return within 8 s"
#: As PyTorch 2.13 writes it.
TIMEOUT = (
    "[rank1]:[E318 08:49:08.969150748 ProcessGroupNCCL.cpp:2057] [PG ID 4 PG GUID 45 Rank 1] Process group watchdog"
    " thread terminated with exception: [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2,"
    " OpType=ALLREDUCE) ran for 600061 milliseconds before timing out."
)
HUNG = (
    "[rank0]:[F919 07:00:13.418192812 ProcessGroupNCCL.cpp:1653] [PG ID 0 PG GUID 0(default_pg) Rank 0] Terminating the"
    " process after attempting to dump debug info, due to ProcessGroupNCCL watchdog hang."
)
PEER = (
    "[rank1]:[E ProcessGroupNCCL.cpp:2057] [PG ID 0 Rank 1] Process group watchdog thread terminated with exception:"
    " NCCL error: remote process exited or there was a network error, NCCL version 2.27.5\n"
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely."
)
ILLEGAL = (
    "[rank1]:[E ProcessGroupNCCL.cpp:2057] [PG ID 0 Rank 1] Process group watchdog thread terminated with exception:"
    " CUDA error: an illegal memory access was encountered\n" + TIMEOUT
)
FRAMES = "\n" + "\n".join(f"frame #{number}: <unknown function>" for number in range(20))


@pytest.mark.parametrize("text", [TIMEOUT, HUNG, PEER])
def test_what_pytorch_ends_a_process_for(text: str) -> None:
    assert collective_failure(f"step 7\n{text}{FRAMES}") is not None


@pytest.mark.parametrize("text", [ILLEGAL, "Fatal Python error: Aborted", "malloc(): corrupted top size", ""])
def test_what_a_script_aborts_for(text: str) -> None:
    assert collective_failure(text) is None


def end(stage: Stage, slot: int, text: str = "", **status: Any) -> None:
    """A command writes that, and ends."""
    rank = stage.group_members.ranks[slot]
    message = {"type": "exit", "exit_code": None, "signal": None, **status}
    if text:
        stage.attempt.receive(rank, {"type": "log", "stream": "stderr", "text": text})
    stage.in_place.note_failure(slot, message)
    if slot in stage.group_members.present:
        stage.attempt.receive(rank, message)
    stage.in_place.note_exit(slot)


@scene
async def test_the_others_go_on_without_a_process_whose_abort_did_not_return() -> None:
    stage = Stage(3)
    stage.hanging.add(1)
    stage.say(1, "killed", stuck=STUCK)
    assert await stage.settled() < 1.0, "no wait for a timeout is needed"
    assert (stage.order, stage.regrouped) == ([0, 2], [("loss", 2)])
    assert stage.events("worker.collectives_failed") == [{"rank": 1}]
    assert stage.events("worker.killed") == [], "it counts as no kill"
    assert stage.in_place.absorb({1}, set(), set()) == {1}
    stage.attempt.receive(0, {"type": "report", "step": 11})
    assert stage.in_place.may_grow(), "another one is started in its place"


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("", {"exit_code": 75, "stuck": STUCK}),
        (TIMEOUT + FRAMES, {"signal": signal.SIGABRT.value}),
        (PEER, {"exit_code": 128 + signal.SIGABRT}),
    ],
)
@scene
async def test_scripts_that_cannot_go_on_start_again_and_no_retry_is_used_up(
    text: str, status: dict[str, Any]
) -> None:
    stage = Stage(2)
    stage.group_members.elastic.clear()
    end(stage, 1, text, **status)
    assert await stage.attempt.judge(set(), set()), "another worker group of this attempt takes over"
    assert stage.events("worker.collectives_failed") == [{"rank": 1}]


@pytest.mark.parametrize(
    ("text", "status", "reason"),
    [
        (TIMEOUT, {"exit_code": 1}, EndReason.EXIT_CODE),
        (ILLEGAL, {"signal": signal.SIGABRT.value}, EndReason.SIGNAL),
        ("", {"signal": signal.SIGABRT.value}, EndReason.SIGNAL),
        (TIMEOUT, {"signal": signal.SIGSEGV.value}, EndReason.SIGNAL),
    ],
)
@scene
async def test_an_abort_of_the_script_ends_the_attempt_as_before(
    text: str, status: dict[str, Any], reason: EndReason
) -> None:
    stage = Stage(2)
    end(stage, 1, text, **status)
    assert not await stage.attempt.judge(set(), set())
    assert stage.attempt.verdict is not None
    assert stage.attempt.verdict.end_reason is reason


@scene
async def test_an_error_before_it_is_the_cause() -> None:
    stage = Stage(2)
    stage.group_members.elastic.clear()
    end(stage, 0, "ValueError: a mistake", exit_code=1)
    await stage.after(1.0)
    end(stage, 1, TIMEOUT, signal=signal.SIGABRT.value)
    assert not await stage.attempt.judge(set(), set())
    assert stage.attempt.verdict is not None
    assert stage.attempt.verdict.end_reason is EndReason.EXIT_CODE


@scene
async def test_all_that_abort_in_one_worker_group_count_once_and_too_many_groups_end_the_attempt() -> None:
    stage = Stage(8, max_workers=8)
    for kill in range(MOST_KILLS + 1):
        stage.group_members.elastic.clear()
        slots = list(stage.order)
        for slot in slots:
            end(stage, slot, TIMEOUT, signal=signal.SIGABRT.value)
        assert await stage.attempt.judge(set(), set()) is (kill < MOST_KILLS)
        if kill < MOST_KILLS:
            stage.attempt.open_group(stage.new_members(8), None)
    assert stage.attempt.verdict is not None
    assert stage.attempt.verdict.end_reason is EndReason.SIGNAL
