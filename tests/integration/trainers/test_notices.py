"""Notices of every awkward kind while a script trains that can regroup: no step is lost, and none is done again."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from cluster.ray.drain import drain
from cluster.ray.membership import RayMembership
from tests.integration.trainers.elastic_training import Training
from tests.integration.trainers.lab import Lab, until

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(600)]


def notice(node_id: str, seconds: float) -> float:
    """Say that a node goes in that number of seconds; returns when, in seconds since 1970."""
    deadline_at = time.time() + seconds
    drain(RayMembership().observe()[node_id].ray_node_id, "the cloud takes it", deadline_at)
    return deadline_at


def living(node_ids: list[str]) -> list[str]:
    """Those of the nodes that Ray still has."""
    return [
        one.node_id for one in RayMembership().observe().values() if one.is_alive and one.node_id in node_ids
    ]


@pytest.mark.backend("ddp", "notice")
def test_two_notices_at_once_and_rank_0_is_among_them(lab: Lab, tmp_path: Path) -> None:
    lab.nodes(3)
    training = Training(lab, tmp_path, min_workers=1, max_workers=3)
    training.trains(3)
    leaving = [training.run.node_of(rank) for rank in (0, 2)]
    for node_id, seconds in zip(leaving, (30.0, 20.0), strict=True):
        notice(node_id, seconds)
    training.trains(1)
    for node_id in leaving:
        lab.provider.kill(node_id)
    training.trains(1)
    training.finish_without_repetition()
    assert {cause for cause, _ in training.regrouped} == {"drain"}
    assert training.run.events("node.lost") == []


def test_a_notice_of_five_seconds(lab: Lab, tmp_path: Path) -> None:
    lab.nodes(2)
    training = Training(lab, tmp_path, min_workers=1, max_workers=2)
    training.trains(2)
    leaving = training.run.node_of(0)
    deadline_at = notice(leaving, 5.0)
    training.run.until(lambda: time.time() >= deadline_at, "the deadline is there")
    lab.provider.kill(leaving)
    training.trains(1)
    training.finish_without_repetition()


def test_a_notice_that_comes_to_nothing_costs_no_step(lab: Lab, tmp_path: Path) -> None:
    lab.nodes(2)
    training = Training(lab, tmp_path, min_workers=1, max_workers=2)
    training.trains(2)
    leaving = training.run.node_of(1)
    deadline_at = notice(leaving, 5.0)
    training.trains(1)
    training.run.until(lambda: time.time() >= deadline_at, "the deadline passes")
    assert lab.provider.processes(leaving), "the node is still there"
    training.trains(1)
    # Ray takes no drain back: the node gets no work any more, and another one takes its place.
    lab.provider.delete(leaving)
    lab.add_node()
    training.trains(2)
    training.finish_without_repetition()
    assert training.regrouped == [("drain", 1), ("grow", 2)]


def test_nodes_that_all_drain_may_go_as_soon_as_their_state_is_saved(lab: Lab, tmp_path: Path) -> None:
    leaving = lab.nodes(2)
    training = Training(lab, tmp_path, min_workers=1, max_workers=2)
    training.trains(2)
    for node_id in leaving:
        notice(node_id, 300.0)
    training.run.until(lambda: not living(leaving), "nothing is there any more, so that Ray lets them go")
    assert training.run.ended is None, "the attempt waits for other nodes"
    assert (training.run.progress["state"], training.run.progress["workers"]) == ("starting", {})
    for node_id in leaving:
        lab.provider.delete(node_id)
    lab.add_node()
    training.trains(1)
    assert training.run.progress["state"] == "running"
    training.finish()
    assert training.run.progress["repeated_steps"] == 0


def test_a_node_that_cannot_be_done_without_is_left_at_a_checkpoint(lab: Lab, tmp_path: Path) -> None:
    lab.nodes(2)
    training = Training(lab, tmp_path, min_workers=2, max_workers=2)
    training.trains(2)
    leaving = training.run.node_of(0)
    notice(leaving, 20.0)
    training.run.until(lambda: training.run.checkpoints, "a checkpoint is committed")
    lab.provider.kill(leaving)
    lab.provider.delete(leaving)
    lab.add_node()
    until(lambda: len(lab.members()) == 2, "the node is replaced")
    training.run.until(lambda: len(training.run.events("worker_group.started")) == 2, "it starts again")
    training.trains(2)
    training.finish()
    assert training.run.progress["repeated_steps"] == 0
