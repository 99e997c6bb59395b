"""Nodes come and go while an attempt trains; it goes on with the workers that are left, from its checkpoint."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from cluster.policies.placement import Placement
from cluster.ray.drain import drain
from cluster.ray.membership import RayMembership
from tests.integration.trainers.lab import Lab, Running, until
from tests.integration.trainers.scripts import LOCKSTEP

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def lockstep(lab: Lab, steps: int, **fields: Any) -> Running:
    """Steps of 50 ms until `finished_right`, from one worker up to as many as there are nodes."""
    hurry = lab.new_path("hurry")
    return lab.run(
        {"train.py": LOCKSTEP},
        "python",
        "train.py",
        str(steps),
        "0.05",
        str(hurry),
        backend="command",
        **fields,
    )


def steps_of(run: Running) -> list[int]:
    return [body["step"] for body in run.bodies("metric")]


def finished_right(run: Running, steps: int) -> None:
    """Nothing more happens to it, so it may hurry; the result is that of an undisturbed run."""
    Path(run.plan.command[-1]).touch()
    assert run.end()["end_reason"] == "completed"
    assert run.bodies("metric")[-1]["values"] == {"total": steps * (steps + 1) // 2}
    assert set(steps_of(run)) == set(range(1, steps + 1)), "no step is missing"
    assert len(steps_of(run)) - steps == run.progress["repeated_steps"]


@pytest.mark.backend("command", "runs")
@pytest.mark.backend("command", "silent death")
@pytest.mark.backend("command", "resumes other size")
def test_a_lost_node_costs_seconds_and_a_new_one_costs_no_step(
    lab: Lab, record_property: pytest.RecordProperty
) -> None:
    lab.nodes(2)
    # More than a new node takes to come on a slow machine; the end is hurried.
    steps = 2000
    run = lockstep(lab, steps, min_workers=1, max_workers=2, checkpoint_interval_s=1.0)
    run.until(lambda: run.checkpoints, "there is a checkpoint to go back to")
    saved = run.checkpoints[-1]
    run.until(lambda: run.step > saved + 5, "there are steps after it")

    victim = run.node_of(1)
    killed_at = time.time()
    lab.provider.kill(victim)
    resumed = run.until(lambda: run.events("training.resumed"), "a new step is done")[0]
    (resumed_at,) = (record.at for record in run.records if record.body == resumed)
    record_property("recovery_s", round(resumed_at - killed_at, 2))
    print(f"seconds from SIGKILL of a node to the first new step: {resumed_at - killed_at:.2f}")
    assert run.events("node.lost")[0]["data"]["ranks"] == [1]
    assert run.world_sizes == [2, 1]
    run.until(lambda: run.progress["lost_s"], "the counters are reported")
    repeated = run.progress["repeated_steps"]
    assert repeated >= 5, "the steps after the checkpoint are done again"
    assert run.progress["lost_s"] == pytest.approx(resumed["data"]["pause_s"], abs=0.01)
    assert run.events("worker_group.started")[1]["data"]["resumed_from_step"] >= saved

    lab.provider.delete(victim)
    lab.add_node()
    run.until(lambda: run.world_sizes == [2, 1, 2], "it grows back")
    assert run.events("worker_group.grow")
    finished_right(run, steps)
    assert run.progress["repeated_steps"] == repeated, "growing repeats nothing"
    assert run.progress["lost_s"] == pytest.approx(resumed["data"]["pause_s"], abs=0.01)
    sizes = [body["world_size"] for body in run.bodies("metric")]
    assert {1, 2} == set(sizes)
    run.close()


@pytest.mark.backend("command", "notice")
def test_a_drained_node_is_left_at_a_checkpoint_before_its_deadline(lab: Lab) -> None:
    lab.nodes(2)
    steps = 250
    run = lockstep(lab, steps, min_workers=1, max_workers=2)
    run.until(lambda: run.step >= 20, "it trains")
    leaving = run.node_of(1)
    deadline_at = time.time() + 20.0
    drain(RayMembership().observe()[leaving].ray_node_id, "the cloud takes it", deadline_at)
    run.until(lambda: run.world_sizes == [2, 1], "it goes on without the node")
    assert run.events("worker_group.drain")[0]["data"]["deadline_at"] == pytest.approx(deadline_at, abs=0.01)
    (started,) = (record for record in run.records if record.body == run.events("worker_group.started")[1])
    assert started.at < deadline_at, "not at the last moment"
    lab.provider.kill(leaving)
    finished_right(run, steps)
    assert run.progress["repeated_steps"] == 0
    assert run.events("node.lost") == []
    assert run.world_sizes == [2, 1]
    run.close()


# test_placement_on_nodes.py has a script that stays in its pool and goes on in place.
@pytest.mark.soak
def test_a_job_that_asks_for_a_pool_goes_on_there_after_a_loss(lab: Lab) -> None:
    lab.nodes(1)
    for _ in range(2):
        lab.add_node(pool="b")
    labels = Placement(pools=("b",)).labels
    run = lockstep(lab, 200, min_workers=1, max_workers=2, checkpoint_interval_s=1.0, labels=labels)
    run.until(lambda: run.checkpoints, "there is a checkpoint to go back to")
    lab.provider.kill(run.node_of(1))
    run.until(lambda: run.world_sizes == [2, 1], "one worker goes on")
    finished_right(run, 200)


def test_files_that_would_come_too_late_leave_the_machine_through_the_driver(lab: Lab) -> None:
    lab.nodes(2)
    steps = 250
    # At a byte per second nothing would be stored before the deadline.
    run = lockstep(lab, steps, min_workers=1, max_workers=2, write_bytes_per_s=1.0)
    run.until(lambda: run.step >= 20, "it trains")
    leaving = run.node_of(0)
    drain(RayMembership().observe()[leaving].ray_node_id, "the cloud takes it", time.time() + 20.0)
    run.until(lambda: run.world_sizes == [2, 1], "it goes on without the node")
    lab.provider.kill(leaving)
    finished_right(run, steps)
    assert {one["data"]["rank"] for one in run.events("checkpoint.relayed")} >= {0}
    assert run.progress["repeated_steps"] == 0
    run.close()


@pytest.mark.soak
@pytest.mark.backend("command", "resumes same size")
def test_a_damaged_checkpoint_is_reported_and_the_one_before_is_taken(lab: Lab) -> None:
    lab.nodes(1)
    first = lockstep(lab, 250, min_workers=1, max_workers=1, checkpoint_interval_s=0.5, checkpoint_keep=4)
    first.until(lambda: len(first.checkpoints) >= 3, "there are checkpoints")
    first.child(0).kill()
    first.until(lambda: first.ended, "it ends")
    newest, before = first.checkpoints[-1], first.checkpoints[-2]
    folder, _ = lab.manifest_of(first, newest)
    state = folder / "state.json"
    state.write_text(state.read_text()[:-1] + " ")
    first.close()

    plan = first.plan
    second = lab.run(
        {}, *plan.command, bundle=plan.bundle, job_id=plan.job_id, attempt=2, previous_step=first.step,
        backend="command", min_workers=1, max_workers=1, checkpoint_interval_s=0.5, checkpoint_keep=1,
    )  # fmt: skip
    second.until(lambda: second.checkpoints, "it trains on")
    (damage,) = second.events("checkpoint.damaged")
    assert damage["data"]["step"] == newest
    assert "state.json is corrupted" in damage["message"]
    assert second.progress["resumed_from_step"] == before
    assert steps_of(second)[0] == before + 1
    second.until(lambda: second.step > first.step, "it wins back what was lost")

    # A third attempt goes on from what the second one wrote, although retention kept only one.
    second.child(0).kill()
    second.until(lambda: second.ended, "it ends")
    assert second.progress["repeated_steps"] == first.step - before
    second.close()
    third = lab.run(
        {}, *plan.command, bundle=plan.bundle, job_id=plan.job_id, attempt=3, previous_step=second.step,
        backend="command", min_workers=1, max_workers=1,
    )  # fmt: skip
    finished = third.end()
    assert finished["end_reason"] == "completed"
    assert third.progress["resumed_from_step"] == second.checkpoints[-1]
    assert third.bodies("metric")[-1]["values"] == {"total": 250 * 251 // 2}


def test_an_older_driver_cannot_commit_once_a_newer_attempt_began(lab: Lab) -> None:
    lab.nodes(1)
    old = lockstep(lab, 400, min_workers=1, max_workers=1, checkpoint_interval_s=1.0)
    old.until(lambda: old.checkpoints, "it commits")
    (Path(lab.storage) / "jobs" / old.plan.job_id / "fence").write_text("2")
    refused = old.until(lambda: old.events("checkpoint.refused"), "its next checkpoint is refused")[0]
    assert "was replaced by a newer one" in refused["message"]
    committed = len(old.checkpoints)
    old.until(lambda: len(old.events("checkpoint.refused")) >= 2, "it asks again later and is refused again")
    assert len(old.checkpoints) == committed


# The first test of this file grows after a loss.
@pytest.mark.soak
def test_a_node_that_is_there_from_the_beginning_but_late_is_grown_into(lab: Lab) -> None:
    lab.nodes(1)
    run = lockstep(lab, 1000, min_workers=1, max_workers=2)
    run.until(lambda: run.step >= 5, "it trains alone")
    lab.add_node()
    run.until(lambda: run.world_sizes == [1, 2], "the second worker joins")
    finished_right(run, 1000)
    assert (run.progress["repeated_steps"], run.progress["lost_s"]) == (0, 0.0)
    until(lambda: lab.members(), "the nodes stay")
