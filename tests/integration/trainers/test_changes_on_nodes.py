"""Workers go and come while a script that can regroup trains: the others keep their processes and their state."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from cluster.ray.drain import drain
from cluster.ray.membership import RayMembership
from remora.states import EndReason
from tests.integration.trainers.elastic_script import ELASTIC
from tests.integration.trainers.elastic_training import Training
from tests.integration.trainers.lab import Lab
from trainers.ray_train.reservations import Reservations

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def took(training: Training, record_property: pytest.RecordProperty) -> float:
    """Seconds from the fault to the next step, which the report of the tests shows, too."""
    seconds = training.seconds_until_new_step()
    record_property("seconds_from_fault_to_next_step", round(seconds, 2))
    print(f"seconds from the fault to the next step: {seconds:.2f}")
    return seconds


def test_a_group_shrinks_grows_and_leaves_a_node_without_doing_a_step_again(
    lab: Lab, tmp_path: Path, record_property: pytest.RecordProperty
) -> None:
    nodes = set(lab.nodes(3))
    training = Training(lab, tmp_path, min_workers=1, max_workers=3)
    training.trains(3)
    training.is_on(*nodes)
    (victim,) = training.kill(1)
    took(training, record_property)
    assert training.regrouped == [("loss", 2)]
    assert training.run.events("node.lost")[0]["data"] == {"ranks": [1]}
    training.trains(2)
    nodes.remove(victim)
    training.is_on(*nodes)
    training.holds_no_more_than_its_workers(*nodes)

    lab.provider.delete(victim)
    nodes.add(lab.add_node())
    training.trains(3)
    training.is_on(*nodes)
    assert training.regrouped[-1] == ("grow", 3)

    leaving = training.run.node_of(0)
    deadline_at = time.time() + 30.0
    drain(RayMembership().observe()[leaving].ray_node_id, "the cloud takes it", deadline_at)
    training.trains(2)
    assert time.time() < deadline_at
    training.is_on(*nodes - {leaving})
    training.holds_no_more_than_its_workers(*nodes - {leaving})
    lab.provider.kill(leaving)
    training.trains(2)
    training.holds_no_more_than_its_workers(*nodes - {leaving})
    training.finish_without_repetition()
    assert training.regrouped == [("loss", 2), ("grow", 3), ("drain", 2)]
    assert len(training.run.events("node.lost")) == 1, "a node that was left in time is not lost"


SHOWS_ITS_SECRET = """
import os, pathlib
value = (pathlib.Path(os.environ["REMORA_SECRETS"]) / "TOKEN").read_text()
print("has it", value == os.environ["TOKEN"], len(value), value, flush=True)
"""


@pytest.mark.soak
def test_a_worker_that_joins_has_the_secrets_of_its_attempt(lab: Lab, tmp_path: Path) -> None:
    lab.nodes(1)
    finish = tmp_path / "finish"
    plan = lab.plan(
        {"train.py": SHOWS_ITS_SECRET + ELASTIC},
        *("python", "train.py", str(finish), "0.03"),
        min_workers=1,
        max_workers=2,
        secrets={"TOKEN": "TOKEN"},
    )
    run = lab.start(plan, {"TOKEN": "value-of-a-secret"})
    run.until(lambda: "has it True 17 [secret TOKEN]" in run.text(), "the first worker has it")
    lab.add_node()
    run.until(
        lambda: run.text().count("has it True 17 [secret TOKEN]") == 2, "the one that joins has it, too"
    )
    finish.touch()
    assert "value-of-a-secret" not in run.text()


@pytest.mark.soak
def test_a_group_that_began_small_grows_in_place_and_leaves_nothing_behind(lab: Lab, tmp_path: Path) -> None:
    lab.nodes(1)
    training = Training(lab, tmp_path, min_workers=1, max_workers=2)
    training.trains(1)
    lab.add_node()
    training.trains(2)
    assert training.regrouped == [("grow", 2)]
    (victim,) = training.kill(1)
    lab.provider.delete(victim)
    training.trains(1)
    lab.add_node()
    training.trains(2)
    training.holds_no_more_than_its_workers(training.run.node_of(0), training.run.node_of(1))
    # The driver dies, and only the launcher can free what the worker group had.
    lab.driver().kill()
    training.run.until(lambda: training.run.gone, "the driver is found dead")
    training.run.close()
    lab.nodes(2)


@pytest.mark.soak
def test_a_node_that_drains_for_long_keeps_no_group_from_growing(lab: Lab, tmp_path: Path) -> None:
    lab.nodes(2)
    training = Training(lab, tmp_path, min_workers=1, max_workers=3)
    training.trains(2)
    leaving = training.run.node_of(1)
    ray_node_id = RayMembership().observe()[leaving].ray_node_id
    # A node that drains ends when nothing is left on it.
    other = Reservations("att_other", {"memory": 1e6}, {})
    assert other.are_there(other.ask([ray_node_id]), 60.0)
    drain(ray_node_id, "it was turned away", time.time() + 3600.0)
    training.trains(1)
    lab.add_node()
    lab.add_node()
    training.trains(3)
    assert RayMembership().observe()[leaving].is_alive, "it was there all the time"
    other.shutdown()
    training.finish_without_repetition()


@pytest.mark.backend("ddp", "silent death")
def test_one_of_three_is_enough_to_go_on(
    lab: Lab, tmp_path: Path, record_property: pytest.RecordProperty
) -> None:
    lab.nodes(3)
    training = Training(lab, tmp_path, min_workers=1, max_workers=3)
    training.trains(3)
    training.kill(0, 2)
    took(training, record_property)
    training.trains(1)
    training.finish_without_repetition()
    assert training.regrouped[-1] == ("loss", 1)


@pytest.mark.soak
def test_a_script_that_is_killed_alone_is_replaced_where_it_was(
    lab: Lab, tmp_path: Path, record_property: pytest.RecordProperty
) -> None:
    lab.nodes(1)
    training = Training(lab, tmp_path, min_workers=1, max_workers=2)
    training.trains(1)
    lab.add_node()
    training.trains(2)
    # First where it has grown to, then where it began.
    node = training.run.node_of(1)
    training.kill_script(1)
    took(training, record_property)
    training.trains(2)
    assert training.run.node_of(1) == node
    training.holds_no_more_than_its_workers(training.run.node_of(0), node)
    training.kill_script(0)
    took(training, record_property)
    training.trains(2)
    training.finish_without_repetition()
    assert training.regrouped == [("grow", 2), ("loss", 1), ("grow", 2), ("loss", 1), ("grow", 2)]
    assert [one["data"] for one in training.run.events("worker.killed")] == [{"rank": 1}, {"rank": 0}]


@pytest.mark.soak
def test_a_frozen_node_is_left_behind(
    lab: Lab, tmp_path: Path, record_property: pytest.RecordProperty
) -> None:
    lab.nodes(2)
    training = Training(lab, tmp_path, min_workers=1, max_workers=2)
    training.trains(2)
    frozen = training.run.node_of(1)
    training.struck_at = time.time()
    lab.provider.freeze(frozen)
    try:
        took(training, record_property)
        training.trains(1)
        lab.provider.thaw(frozen)
        training.trains(1)
        training.finish_without_repetition()
    finally:
        lab.provider.kill(frozen)
    assert training.regrouped[0] == ("loss", 1)


@pytest.mark.soak
def test_too_few_wait_with_their_state_for_a_new_node_and_can_be_stopped(lab: Lab, tmp_path: Path) -> None:
    lab.nodes(2)
    training = Training(lab, tmp_path, min_workers=2, max_workers=2)
    training.trains(2)
    (victim,) = training.kill(0)
    training.run.until(lambda: training.run.progress["world_size"] == 0, "the other one waits")
    assert training.regrouped == []
    lab.provider.delete(victim)
    lab.add_node()
    training.trains(2)
    assert training.regrouped == [("loss", 2)]

    training.kill(1)
    training.run.until(lambda: training.run.progress["world_size"] == 0, "the other one waits")
    lab.stop(training.run, EndReason.CANCELLED)
    assert training.run.end(30.0)["end_reason"] == "cancelled"
    assert training.run.progress["repeated_steps"] == 0
    assert len(training.run.events("worker_group.started")) == 1


def test_when_no_worker_survives_it_starts_again_from_its_checkpoint(lab: Lab, tmp_path: Path) -> None:
    lab.nodes(2)
    training = Training(lab, tmp_path, min_workers=1, max_workers=2, checkpoint_interval_s=1.0)
    training.trains(2)
    training.run.until(lambda: training.run.checkpoints, "there is a checkpoint to go back to")
    for victim in training.kill(0, 1):
        lab.provider.delete(victim)
    lab.add_node()
    training.run.until(lambda: len(training.run.events("worker_group.started")) == 2, "it starts again")
    started = training.run.events("worker_group.started")[1]["data"]
    assert started["resumed_from_step"] in training.run.checkpoints
    training.run.until(lambda: training.run.events("training.resumed"), "it wins back what was lost")
    training.finish()
