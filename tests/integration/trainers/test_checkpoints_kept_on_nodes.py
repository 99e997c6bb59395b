"""A script that owns its training resumes from what its nodes still have, and nothing of that outlives the attempt."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from remora.states import EndReason
from tests.integration.trainers.lab import Lab, until
from tests.integration.trainers.scripts import LOCKSTEP

SHARDED = Path(__file__).parents[3] / "examples" / "fsdp" / "train.py"
pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(600)]


def kept_in_memory(attempt_id: str) -> list[Path]:
    return list(Path(f"/dev/shm/remora-{os.getuid()}").glob(f"{attempt_id}-kept-*"))


@pytest.mark.parametrize("size_bytes", [None, 1000])
def test_a_worker_group_that_follows_on_its_nodes_reads_there(size_bytes: int | None, lab: Lab) -> None:
    lab.nodes(2)
    script = LOCKSTEP.replace("checkpoint(step)", f"checkpoint(step, size_bytes={size_bytes})")
    run = lab.run(
        {"train.py": script}, "python", "train.py", "1000000", "0.02",
        checkpoint_interval_s=1.0, min_workers=1,
    )  # fmt: skip
    run.until(lambda: len(run.checkpoints) >= 2, "it has saved")
    victim = run.node_of(1)
    lab.provider.kill(victim)
    run.until(lambda: run.world_sizes == [2, 1], "the other node goes on")
    saved = run.checkpoints[-1]
    run.until(lambda: run.step > saved + 10, "it trains on")
    assert run.text("remora").count("of the checkpoint were still on this node") >= 1
    lab.provider.delete(victim)
    lab.stop(run, EndReason.CANCELLED)
    assert run.end()["end_reason"] == "cancelled"
    until(lambda: lab.work_folders() == [], "nothing is left on the nodes", 20.0)
    assert kept_in_memory(run.plan.attempt_id) == []


@pytest.mark.parametrize("signal_", [signal.SIGKILL, signal.SIGSTOP])
def test_a_process_that_is_killed_or_hangs_ends_no_attempt(signal_: signal.Signals, lab: Lab) -> None:
    lab.nodes(2)
    script = LOCKSTEP.replace("checkpoint(step)", "checkpoint(step, size_bytes=1000)")
    run = lab.run(
        {"train.py": script}, "python", "train.py", "1000000", "0.02",
        checkpoint_interval_s=1.0, step_time_s=2.0,
    )  # fmt: skip
    run.until(lambda: len(run.checkpoints) >= 2, "it has saved")
    supervisors = [run.supervisor(rank) for rank in range(2)]
    run.child(1).send_signal(signal_)
    run.until(lambda: run.world_sizes == [2, 2], "both begin again")
    assert [run.supervisor(rank) for rank in range(2)] == supervisors, "their workers have waited for it"
    resumed = run.events("worker_group.started")[1]["data"]["resumed_from_step"]
    run.until(lambda: run.checkpoints[-1] > resumed, "it trains on")
    assert run.text("remora").count("of the checkpoint were still on this node") == 2
    kind = "worker.killed" if signal_ is signal.SIGKILL else "worker_group.hung"
    assert len(run.events(kind)) == 1
    lab.stop(run, EndReason.CANCELLED)
    assert run.end()["end_reason"] == "cancelled"


def test_nodes_share_out_the_files_of_a_sharded_model(lab: Lab) -> None:
    lab.nodes(2)
    plan = lab.plan(
        {"train.py": SHARDED.read_text()}, "python", "train.py", "--steps", "1000000",
        backend="fsdp", checkpoint_interval_s=1.0,
    )  # fmt: skip
    first = lab.start(plan)
    first.until(lambda: first.checkpoints, "it has saved")
    lab.stop(first, EndReason.PAUSED)
    assert first.end()["end_reason"] == "paused"
    saved = first.checkpoints[-1]
    second = lab.start(replace(plan, attempt_id=f"{plan.attempt_id}b", attempt=2))
    second.until(lambda: second.step > saved + 10, "it trains on")
    assert min(body["step"] for body in second.bodies("metric")) == saved + 1
    fetched = [path for work in lab.work_folders() for path in work.glob("resume/sharded-*")]
    assert sorted(path.name for path in fetched) == [
        f"sharded-0000{rank}-of-00002.safetensors" for rank in (1, 2)
    ]
    assert len({path.parent for path in fetched}) == 2, "each node has one"
    lab.stop(second, EndReason.CANCELLED)
    assert second.end()["end_reason"] == "cancelled"
    until(lambda: lab.work_folders() == [], "nothing is left on the nodes", 20.0)
    assert kept_in_memory(plan.attempt_id) == []
