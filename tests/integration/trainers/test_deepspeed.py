"""Unmodified scripts of DeepSpeed lose and win workers; the global batch and the losses stay the same."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from cluster.ray.drain import drain
from cluster.ray.membership import RayMembership
from remora.states import EndReason
from tests.integration.trainers.deepspeed_scripts import (
    COMMAND,
    EXAMPLE,
    PIPELINE,
    SHORT_PIPELINE,
    TENSOR_PARALLEL,
    with_config,
)
from tests.integration.trainers.lab import Lab, Running

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(600)]

#: Seconds in which several groups of DeepSpeed start one after the other on a busy machine.
LONG_S = 240.0


def run(lab: Lab, files: dict[str, str], *command: str, **fields: Any) -> Running:
    asked = {"backend": "deepspeed", "elastic_variables": {"REMORA_GLOBAL_BATCH": "96"}}
    return lab.run(files, *command, **{**asked, **fields})


def losses(running: Running) -> dict[int, float]:
    """By step; a step that was done again counts as it was at last."""
    return {int(step): float(loss) for step, loss in re.findall(r"step (\d+) loss ([\d.]+)", running.text())}


def begins(running: Running) -> list[str]:
    return re.findall(r"^.* begin after step \d+", running.text("stdout"), re.MULTILINE)


def notice(node_id: str, seconds: float) -> None:
    drain(RayMembership().observe()[node_id].ray_node_id, "the cloud takes it", time.time() + seconds)


@pytest.mark.framework("DeepSpeed", "resumes")
@pytest.mark.backend("deepspeed", "notice")
def test_an_unmodified_script_loses_and_wins_workers(lab: Lab) -> None:
    lab.nodes(2)
    running = run(
        lab, EXAMPLE, *COMMAND, "--steps", "100000", "--save-every", "5", "--step-seconds", "0.2",
        min_workers=1, divided=96,
    )  # fmt: skip
    running.until(lambda: 7 in losses(running), "two workers train", LONG_S)
    leaving = running.node_of(0)
    notice(leaving, 120.0)
    running.until(lambda: len(begins(running)) == 2, "one worker goes on", LONG_S)
    assert running.progress.get("repeated_steps", 0) == 0, "all stopped at a checkpoint of the script's own"
    lab.provider.delete(leaving)
    lab.add_node()
    running.until(lambda: len(begins(running)) == 3, "two workers go on", LONG_S)
    at = max(losses(running))
    running.until(lambda: max(losses(running)) > at + 5, "they train", LONG_S)
    lab.provider.kill(running.node_of(1))
    running.until(lambda: len(begins(running)) == 4, "the other one goes on", LONG_S)
    at = max(losses(running))
    running.until(lambda: max(losses(running)) > at + 5, "it trains", LONG_S)
    lab.stop(running, EndReason.CANCELLED)
    assert running.end(LONG_S)["end_reason"] == "cancelled"
    assert [line.split()[0] for line in begins(running)] == ["2", "1", "2", "1"]
    assert sorted(losses(running)) == list(range(1, max(losses(running)) + 1))
    assert running.progress["repeated_steps"] <= 5, "the death cost what was done since the last checkpoint"
    assert "96 samples a step" in running.text()
    converted = re.findall(r"remora: the checkpoint was converted .*", running.text())
    assert len(converted) == 3, "each group has another number of workers than the one before"


@pytest.mark.backend("deepspeed", "silent death")
def test_a_pipeline_loses_a_whole_copy_with_a_worker(lab: Lab) -> None:
    lab.nodes(4)
    running = run(
        lab, {"train.py": PIPELINE}, "python", "train.py", "25", "0.2",
        min_workers=2, max_workers=4, multiple_of=2, elastic_variables={"REMORA_GLOBAL_BATCH": "8"},
    )  # fmt: skip
    running.until(lambda: 7 in losses(running), "two copies train", LONG_S)
    lab.provider.kill(running.node_of(3))
    assert running.end(LONG_S)["end_reason"] == "completed", running.text()
    assert running.world_sizes == [4, 2]
    assert [line.split()[0] for line in begins(running)] == ["2", "1"]
    for step in (6, 7):
        with_two, with_one = map(float, re.findall(rf"step {step} loss ([\d.]+)", running.text()))
        assert with_two == pytest.approx(with_one, rel=1e-6), "done again by one copy, as by two"


@pytest.mark.backend("deepspeed", "silent death")
def test_a_model_whose_tensors_are_cut_wins_and_loses_whole_copies(lab: Lab) -> None:
    lab.nodes(3)
    running = run(
        lab, {"train.py": TENSOR_PARALLEL}, "python", "train.py", "100000", "0.1",
        min_workers=2, max_workers=4, multiple_of=2, elastic_variables={"REMORA_GLOBAL_BATCH": "8"},
    )  # fmt: skip
    running.until(lambda: 7 in losses(running), "one copy trains", LONG_S)
    assert running.world_sizes == [2], "the third node is of no use"
    lab.add_node()
    running.until(lambda: len(begins(running)) == 2, "two copies go on", LONG_S)
    at = max(losses(running))
    # The script saves every fifth step: what it did since is lost.
    running.until(
        lambda: max(losses(running)) > at + 7 and max(losses(running)) % 5 == 2, "they train", LONG_S
    )
    lab.provider.kill(running.node_of(3))
    running.until(lambda: len(begins(running)) == 3, "one copy goes on", LONG_S)
    at = max(losses(running))
    running.until(lambda: max(losses(running)) > at + 7, "it trains", LONG_S)
    lab.stop(running, EndReason.CANCELLED)
    assert running.end(LONG_S)["end_reason"] == "cancelled"
    assert running.world_sizes == [2, 4, 2]
    assert [line.split()[0] for line in begins(running)] == ["1", "2", "1"]
    twice = done_twice(running)
    assert twice, "what came after the last checkpoint was done again"
    for step, (with_two, with_one) in twice.items():
        assert with_two == pytest.approx(with_one, rel=1e-6), f"step {step} by one copy, as by two"


def done_twice(running: Running) -> dict[int, list[float]]:
    """Losses of the steps that were done again."""
    found: dict[int, list[float]] = {}
    for step, loss in re.findall(r"step (\d+) loss ([\d.]+)", running.text()):
        found.setdefault(int(step), []).append(float(loss))
    return {step: both for step, both in found.items() if len(both) > 1}


def test_a_layout_that_deepspeed_cannot_split_again_ends_with_one_sentence(lab: Lab) -> None:
    lab.nodes(4)
    running = run(
        lab, {"train.py": SHORT_PIPELINE}, "python", "train.py", "100000", "0.2",
        min_workers=2, max_workers=4, multiple_of=2, elastic_variables={"REMORA_GLOBAL_BATCH": "8"},
    )  # fmt: skip
    running.until(lambda: 7 in losses(running), "two copies train", LONG_S)
    lab.provider.kill(running.node_of(3))
    end = running.end(LONG_S)
    assert end["end_reason"] == "start_failed", running.text()
    assert re.search(
        r"DeepSpeed cannot reshard this checkpoint for another number of workers \(ZeroDivisionError: .*\);"
        r" start as many workers as wrote it$",
        end["message"],
    ), end["message"]
    refusals = running.text().partition("remora: DeepSpeed cannot reshard")[2]
    assert refusals
    assert "Traceback" not in refusals, "the other worker says the same, and no error of the network"


@pytest.mark.parametrize(
    ("files", "command", "said"),
    [
        (with_config(train_batch_size=64), COMMAND, "train_batch_size is 64 .* elastic.global_batch is 96"),
        # What a configuration may not say, tests/unit/remora has without nodes.
        pytest.param(
            EXAMPLE,
            [*COMMAND[:-1], "absent.json"],
            "absent.json, and there is no such file",
            marks=pytest.mark.soak,
        ),
        pytest.param(
            with_config(gradient_clipping="auto"),
            COMMAND,
            'gradient_clipping is "auto"',
            marks=pytest.mark.soak,
        ),
        ({"train.py": PIPELINE}, ["python", "train.py", "9", "0"], "2 stages, and 1 workers cannot be cut"),
    ],
)  # fmt: skip
def test_what_cannot_train_is_refused_with_one_sentence(
    lab: Lab, files: dict[str, str], command: list[str], said: str
) -> None:
    lab.nodes(1)
    running = run(lab, files, *command, min_workers=1, max_workers=1)
    end = running.end(LONG_S)
    assert end["end_reason"] == "start_failed", running.text()
    assert re.search(said, end["message"]), end["message"]
    assert "Traceback" not in running.text()
