"""A zone loses the head: its nodes are given up and replaced elsewhere, and do no harm when they are back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from remora.states import JobState, NodeState
from remora.views import Job
from tests.integration.cluster.zoned_service import ZonedService, open_zoned_service
from tests.integration.network.lan import Lan, open_lan
from tests.integration.trainers.elastic_script import ELASTIC

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def lan() -> Iterator[Lan]:
    with open_lan() as lan:
        yield lan


@pytest.fixture
def service(lan: Lan, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZonedService]:
    with open_zoned_service(tmp_path_factory.mktemp("home")) as service:
        yield service


def submit(service: ZonedService, folder: Path) -> Job:
    """A job of one to three workers, each on a machine of its own, which trains until `finish` is in the folder."""
    (folder / "code").mkdir()
    (folder / "code/train.py").write_text(ELASTIC)
    return service.client.submit(
        {
            "name": "elastic",
            "code": str(folder / "code"),
            "command": f"python train.py {folder / 'finish'} 0.05",
            "backend": "ddp",
            "workers": {"min": 1, "max": 3},
            "resources": {"cpus": 4},
            "checkpoint": {"interval": "2s", "keep": 2},
        }
    )


@pytest.mark.soak
def test_nodes_of_a_zone_that_loses_the_head_are_replaced_elsewhere_and_are_unknown_when_they_are_back(
    service: ZonedService, lan: Lan, tmp_path: Path
) -> None:
    # One worker in zone 2, then two more in zone 1, which is the better one.
    service.follow(zones="2", max_nodes=1)
    job = submit(service, tmp_path)
    service.trains(job, 1)
    service.follow(zones="1, 2", max_nodes=3)
    service.trains(job, 3)
    cut_off = service.living("1")
    assert len(cut_off) == 2
    # As long as there is nothing else to buy, what is cut off is replaced in its own zone.
    service.follow(zones="1", max_nodes=3)

    service.deletions_take_long()
    lan.cut_zone("1")
    service.until(lambda: service.have_ended(cut_off), "the nodes that do not answer are given up")
    for row in cut_off:
        assert service.says(row.id)[-2:] == [
            ("node.terminating", "it left the Ray cluster"),
            ("node.gone", "it left the Ray cluster"),
        ]
    assert service.processes(cut_off), "machines that are cut off do not know that they were given up"
    service.trains(job, 1)

    service.until(lambda: len(service.living("1")) == 2, "they are replaced")
    silent = service.living("1")
    service.until(lambda: service.processes(silent), "the machines boot, and reach no head")
    service.follow(zones="1, 2", max_nodes=3, join_timeout_s=1.0)
    service.until(lambda: service.living("1") == [], "machines that do not join are given up")
    service.follow(zones="1, 2", max_nodes=3)
    service.until(lambda: service.have_ended(silent), "the cloud was asked to delete them")
    for row in silent:
        kind, message = service.says(row.id)[-1]
        assert kind == "node.failed"
        # Up to four times as long, by how long the others took.
        assert re.fullmatch(r"it did not join the Ray cluster within [1-4] s", message)

    # The head is back while all four still run: who was a member ends by itself, and who joins only now is sent away.
    lan.heal_zone("1")
    service.until(
        lambda: service.were_turned_away(silent), "machines that were given up have joined, in vain"
    )
    service.until(lambda: not service.processes(cut_off), "who is back ends by itself")
    # A worker that Ray had put on one that was sent away goes on in zone 2.
    service.until(
        lambda: [row.state for row in service.living("2")] == [NodeState.READY] * 3, "zone 2 has three nodes"
    )
    service.until(lambda: service.workers_are_on(service.living("2")), "all of them work")
    service.trains(job, 3)
    assert service.living("1") == [], "a zone that was cut off is not asked first"

    service.deletions_end()
    (tmp_path / "finish").touch()
    service.until(lambda: service.client.job(job.id).terminal, "the job ends")
    ended = service.client.job(job.id)
    assert (ended.state, ended.attempt, ended.repeated_steps) == (JobState.SUCCEEDED, 1, 0)
    metrics = service.client.metrics(job.id)
    assert [point.step for point in metrics] == list(range(1, len(metrics) + 1)), "no step is missing"
    assert metrics[-1].values == {"total": len(metrics) * (len(metrics) + 1) / 2}

    service.until(lambda: service.resources() == 0, "everything is given back")
    service.until(lambda: not service.processes(service.rows()), "nothing runs any more")
