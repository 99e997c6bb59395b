"""Workers run on nodes with the labels that their job asks for, from the start and when they grow."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.policies.placement import ON_DEMAND_LABELS, Placement
from tests.integration.trainers.elastic_training import Training
from tests.integration.trainers.lab import Lab

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(600)]


def test_a_job_keeps_to_its_pool_when_it_starts_loses_and_grows(lab: Lab, tmp_path: Path) -> None:
    lab.nodes(2)
    first = lab.add_node(pool="b")
    training = Training(
        lab, tmp_path, min_workers=1, max_workers=3, labels=Placement(pools=("b", "c")).labels
    )
    training.trains(1)
    training.is_on(first)

    second = lab.add_node(pool="c")
    training.trains(2)
    training.is_on(first, second)

    (victim,) = training.kill(1)
    training.trains(1)
    third = lab.add_node(pool="c")
    training.trains(2)
    training.is_on(({first, second} - {victim}).pop(), third)
    training.finish_without_repetition()


def test_a_job_in_a_fabric_domain_starts_and_grows_nowhere_else(lab: Lab, tmp_path: Path) -> None:
    lab.nodes(1)
    lab.add_node(fabric="other")
    first = lab.add_node(fabric="own")
    bound = Placement(needs_fabric=True, fabric="own")
    training = Training(lab, tmp_path, min_workers=1, max_workers=3, labels=bound.labels)
    training.trains(1)
    training.is_on(first)
    lab.add_node(fabric="other")
    second = lab.add_node(fabric="own")
    training.trains(2)
    training.is_on(first, second)
    training.finish_without_repetition()


def test_rank_0_is_on_the_node_that_stays(lab: Lab, tmp_path: Path) -> None:
    lab.nodes(0)
    spot = [lab.add_node(capacity="spot") for _ in range(2)]
    core = lab.add_node(capacity="on-demand")
    training = Training(lab, tmp_path, min_workers=2, max_workers=3, lasting=dict(ON_DEMAND_LABELS))
    training.trains(3)
    assert training.leader == training.run.node_of(0) == core

    training.kill(0)
    training.trains(2)
    another = lab.add_node(capacity="on-demand")
    training.trains(3)
    assert training.leader in spot, "the newcomer got the state from it"
    training.kill(1)
    training.trains(2)
    assert training.leader == another, "who stays leads as soon as it can"
    training.finish_without_repetition()


def test_each_worker_of_a_job_that_asks_for_that_has_a_node_of_its_own(lab: Lab, tmp_path: Path) -> None:
    first, second = lab.nodes(2)
    training = Training(
        lab, tmp_path, min_workers=1, max_workers=4, resources={"CPU": 0.25}, workers_per_node=1
    )
    training.trains(2)
    training.is_on(first, second)
    third = lab.add_node()
    training.trains(3)
    training.is_on(first, second, third)
    training.finish_without_repetition()
