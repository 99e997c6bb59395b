"""A node's network is cut while it trains: the others go on, it commits nothing, and it ends when it is back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.network.lan import Lan, open_lan
from tests.integration.trainers.elastic_training import Training
from tests.integration.trainers.lab import Lab, open_lab, processes_of, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def lan() -> Iterator[Lan]:
    with open_lan() as lan:
        yield lan


@pytest.fixture
def lab_on_a_lan(lan: Lan, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with open_lab(tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("lab")) as lab:
        yield lab


def test_a_node_that_is_cut_off_is_left_behind_and_does_no_harm(
    lan: Lan, lab_on_a_lan: Lab, tmp_path: Path, record_property: pytest.RecordProperty
) -> None:
    lab = lab_on_a_lan
    lab.nodes(3)
    training = Training(lab, tmp_path, min_workers=1, max_workers=3, checkpoint_interval_s=2.0)
    training.trains(3)
    run = training.run
    victim = run.node_of(0)
    (address,) = (node.address for node in lab.provider.list() if node.node_id == victim)

    training.cut(lambda: lan.cut(address))
    seconds = training.seconds_until_new_step()
    record_property("seconds_from_cut_to_next_step", round(seconds, 2))
    print(f"seconds from the cut to the next step: {seconds:.2f}")
    training.trains(2)
    assert training.regrouped[0] == ("loss", 2)
    stale = [one for one in processes_of(run.plan.attempt_id) if one.environ()["REMORA_NODE_ID"] == victim]
    assert stale, "the node that is cut off does not know that the others went on"

    committed = len(run.checkpoints)
    run.until(lambda: len(run.checkpoints) >= committed + 2, "the others commit checkpoints")
    after_cut = [body for body in run.bodies("checkpoint")[committed:] if not body.get("deleted")]
    assert {body["world_size"] for body in after_cut} == {2}, "it has no part in them"

    lan.heal(address)
    until(lambda: not any(one.is_running() for one in stale), "its workers end when it is back")
    training.trains(2)
    training.finish_without_repetition()
