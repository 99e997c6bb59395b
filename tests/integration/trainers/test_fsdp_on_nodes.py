"""Models that are cut over the workers, on nodes that come and go."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from cluster.ray.drain import drain
from cluster.ray.membership import RayMembership
from tests.integration.trainers.fsdp_scripts import SHARDED, UNMODIFIED
from tests.integration.trainers.lab import Lab, Running

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(600)]


def regrouped(run: Running) -> list[tuple[str, int]]:
    events = run.events("worker_group.regrouped")
    return [(one["data"]["cause"], one["data"]["world_size"]) for one in events]


def steps_of(run: Running) -> list[int]:
    return [body["step"] for body in run.bodies("metric")]


@pytest.mark.backend("fsdp", "silent death")
@pytest.mark.backend("fsdp", "notice")
def test_a_sharded_model_goes_on_from_memory_after_a_loss_and_leaves_a_node_in_time(lab: Lab) -> None:
    lab.nodes(3)
    run = lab.run(
        {"train.py": SHARDED}, "python", "train.py", "300", "0.03",
        backend="fsdp", min_workers=1, max_workers=3,
    )  # fmt: skip
    run.until(lambda: run.step >= 5, "three workers train")
    lab.provider.kill(run.node_of(1))
    run.until(lambda: regrouped(run) == [("loss", 2)], "two go on")
    after = run.step
    run.until(lambda: run.step > after + 5, "they do steps")
    repeated = run.progress["repeated_steps"]
    assert repeated <= 2

    leaving = run.node_of(0)
    drain(RayMembership().observe()[leaving].ray_node_id, "the cloud takes it", time.time() + 30.0)
    run.until(lambda: regrouped(run)[1:] == [("drain", 1)], "one goes on")
    lab.provider.kill(leaving)
    assert run.end()["end_reason"] == "completed"
    assert run.progress["repeated_steps"] == repeated, "a notice repeats nothing"
    assert len(run.events("worker_group.started")) == 1, "no worker was started again"
    assert steps_of(run)[-1] == 300
    run.close()


@pytest.mark.parametrize("layout", ["shard", "tensor"])
def test_of_three_that_are_left_two_go_on_with_a_model_that_two_hold_together(lab: Lab, layout: str) -> None:
    lab.nodes(4)
    run = lab.run(
        {"train.py": SHARDED}, "python", "train.py", "150", "0.03", layout, "2",
        backend="fsdp", min_workers=2, max_workers=4, multiple_of=2,
    )  # fmt: skip
    run.until(lambda: run.step >= 5, "two copies on four nodes train")
    lab.provider.kill(run.node_of(1))
    assert run.end()["end_reason"] == "completed"
    assert regrouped(run)[0] == ("loss", 2)
    assert len(run.events("worker_group.started")) == 1, "no worker was started again"
    assert run.progress["repeated_steps"] <= 2
    assert steps_of(run)[-1] == 150
    run.close()


@pytest.mark.backend("fsdp", "resumes same size")
@pytest.mark.backend("fsdp", "resumes other size")
def test_a_sharded_checkpoint_resumes_with_as_many_and_with_more_workers(lab: Lab) -> None:
    lab.nodes(3)
    first = lab.run({"train.py": SHARDED}, "python", "train.py", "6", "0", backend="fsdp")
    assert first.end()["end_reason"] == "completed"
    assert first.checkpoints == [6]
    first.close()
    for attempt, (workers, steps) in enumerate([(2, 9), (3, 12)], start=2):
        run = lab.run(
            {}, "python", "train.py", str(steps), "0", bundle=first.plan.bundle, job_id=first.plan.job_id,
            attempt=attempt, backend="fsdp", min_workers=workers, max_workers=workers,
        )  # fmt: skip
        assert run.end()["end_reason"] == "completed"
        assert steps_of(run) == list(range(steps - 2, steps + 1))
        run.close()


@pytest.mark.backend("fsdp", "unmodified script")
def test_a_script_with_its_own_checkpoints_goes_on_from_them_with_one_worker_less(
    lab: Lab, tmp_path: Path
) -> None:
    lab.nodes(3)
    run = lab.run(
        {"train.py": UNMODIFIED}, "python", "train.py", str(tmp_path), "120", "0.05",
        backend="fsdp", min_workers=2, max_workers=3,
    )  # fmt: skip
    run.until(lambda: list(tmp_path.glob("*/.metadata")), "it has saved")
    lab.provider.kill(run.node_of(1))
    assert run.end()["end_reason"] == "completed"
    begun = re.findall(r"rank 0 of (\d) begins after step (\d+)", run.text())
    assert [size for size, _ in begun] == ["3", "2"]
    assert int(begun[0][1]) == 0 < int(begun[1][1])
    assert "rank 1 ends after step 120" in run.text()
    run.close()
