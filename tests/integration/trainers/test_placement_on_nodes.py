"""Workers run on nodes with the labels that their job asks for, from the start and when they grow."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.placement import Placement
from tests.integration.trainers.elastic_training import Training
from tests.integration.trainers.lab import Lab

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


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
