"""A group does not grow onto what is kept for a job that waits, and that job starts there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import ray

from tests.integration.trainers.elastic_training import Training
from tests.integration.trainers.lab import Lab, until
from tests.integration.trainers.listener import Listener
from trainers import launch
from trainers.launch import RayLauncher

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(600)]

WAITS = {
    "wait.py": "import pathlib, sys, time\nwhile not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.05)\n"
}


def test_a_node_that_is_kept_for_a_job_is_there_for_it_and_for_others_only_then(
    lab: Lab, tmp_path: Path
) -> None:
    (first,) = lab.nodes(1)
    grows = Training(lab, tmp_path, min_workers=1, max_workers=3)
    grows.trains(1)

    # As the service does when it buys a node: before it joins.
    over = tmp_path / "over"
    plan = lab.plan(WAITS, "python", "wait.py", str(over), min_workers=1, max_workers=1)
    for_it = {lab.next_node: plan.job_id}
    grows.run.keep(for_it)
    kept = lab.add_node()
    other = lab.add_node()
    grows.trains(2)
    grows.is_on(first, other)

    waits = lab.start(plan)
    waits.keep(for_it)
    waits.until(lambda: waits.progress.get("state") == "running", "the job that waited trains")
    assert waits.node_of(0) == kept
    assert grows.size == 2

    over.touch()
    assert waits.end()["end_reason"] == "completed"
    waits.close()
    grows.run.keep({}, token=2)
    # What a former controller says late changes nothing.
    grows.run.keep(for_it)
    grows.trains(3)
    grows.is_on(first, kept, other)
    grows.finish_without_repetition()


def a_listener() -> Any:
    return ray.remote(Listener).options(num_cpus=0, label_selector={"remora-role": "head"}).remote()


def test_a_driver_is_sent_what_is_news_to_it_and_that_again_which_it_did_not_take(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.nodes(0)
    launcher, listener, kept = RayLauncher(), a_listener(), {"node_1": "job_1"}
    launcher._handles["att"] = listener

    def takes(nodes: dict[str, str]) -> None:
        until(lambda: launcher.keep("att", nodes, 7), "the driver takes it")

    for nodes in (kept, {}):
        for _ in range(20):
            takes(nodes)
    heard = ray.get(listener.heard.remote())
    assert [nodes for _, nodes in heard] == [kept, {}], "one message for each change in forty ticks"
    assert heard == sorted(heard, key=lambda one: one[0])
    assert {order[0] for order, _ in heard} == {7}

    takes(kept)
    monkeypatch.setattr(launch, "RENEWED_S", 0.0)
    assert not launcher.keep("att", kept, 7), "it is sent again, so that it is not forgotten"
    takes({})
    assert launcher.keep("att", {}, 7), "where nothing is kept there is nothing to forget"
    monkeypatch.undo()
    assert len(ray.get(listener.heard.remote())) == 5

    ray.kill(listener)
    other = a_listener()
    assert not launcher.keep("att", kept, 7)
    launcher._handles["att"] = other
    takes(kept)
    assert [nodes for _, nodes in ray.get(other.heard.remote())] == [kept]
    assert not RayLauncher().keep("unknown", kept, 7), "and an unknown one is no fault"
    ray.kill(other)
