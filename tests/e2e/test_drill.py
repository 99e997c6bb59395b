"""Nodes of a running service really go, by `remora drill` and by a policy: a job goes on, and the account is true."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from remora import Client
from remora.states import JobState, NodeState
from tests.e2e.embedded import Embedded
from tests.e2e.processes import PATIENCE_S, until
from tests.integration.trainers.scripts import LOCKSTEP

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(600)]

#: More than it ever does, however fast the machine is.
STEPS = 1_000_000


def drilled(service: Embedded, *words: str) -> Any:
    """What one drill of one of the two nodes printed."""
    node = until(lambda: len(service.ready_nodes()) == 2 and service.ready_nodes()[0], "two nodes are ready")
    answer = service.remora("drill", "--node", node, *words, "--json")
    assert answer.code == 0, answer.err
    drill = answer.document
    assert (drill["state"], drill["node_ids"]) == ("ended", [node])
    print(f"remora drill {' '.join(words)}: {drill['jobs']}")
    return drill


@contextmanager
def one_node_less(service: Embedded, client: Client) -> Iterator[None]:
    """One node of the two is allowed meanwhile; the service is of other tests, too."""
    before = client.policy().version
    client.apply_policy("pools: {local: {sizes: [local], max_nodes: 1, drain_s: 30s}}", based_on=before)
    try:
        yield
    finally:
        client.roll_back_policy(before, based_on=client.policy().version)
        until(lambda: len(service.ready_nodes()) == 2, "two nodes are ready again")


def test_a_drill_shows_what_a_preemption_costs_and_a_smaller_pool_costs_no_step(
    service: Embedded, client: Client, folder: Path
) -> None:
    (folder / "train.py").write_text(LOCKSTEP)
    job = client.submit(
        {
            "code": str(folder),
            "command": ["python", "train.py", str(STEPS), "0.05"],
            "backend": "command",
            "workers": {"min": 1, "max": 2},
            "resources": {"cpus": 1},
            "checkpoint": {"interval": "1s"},
        }
    )
    until(lambda: client.job(job.id).checkpoint_step, "there is a checkpoint to go back to")
    until(lambda: client.job(job.id).world_size == 2, "it has both workers")

    noticed = drilled(service, "--notice", "8s")
    (cost,) = noticed["jobs"]
    assert (cost["job_id"], cost["repeated_steps"]) == (job.id, 0)
    assert (cost["workers_before"], cost["workers_least"], cost["workers"]) == (2, 1, 2)
    assert 0 < cost["next_step_s"] <= cost["full_after_s"]
    assert noticed["taken_at"] - noticed["struck_at"] >= 8.0

    silent = drilled(service, "--silent")
    (cost,) = silent["jobs"]
    assert cost["repeated_steps"] == client.job(job.id).repeated_steps
    assert (cost["workers_before"], cost["workers"]) == (2, 2)
    assert 0 < cost["next_step_s"] <= cost["full_after_s"]
    assert 0 < cost["pause_s"] <= cost["full_after_s"]
    said = service.remora("nodes", silent["node_ids"][0]).out
    assert "node.drilled" in said
    assert "node.gone" in said

    until(lambda: client.job(job.id).world_size == 2, "it has both workers again")
    nodes = set(service.ready_nodes())
    repeated = client.job(job.id).repeated_steps
    with one_node_less(service, client):
        until(lambda: client.job(job.id).world_size == 1, "the worker of the drained node leaves")
        (drained,) = nodes - set(service.ready_nodes())
        until(lambda: client.node(drained).state is NodeState.GONE, "it goes once nothing runs on it")
        said = service.remora("nodes", drained).out
        assert "pool 'local' has 2 nodes, 1 is allowed" in said
        assert said.index("node.draining") < said.index("node.terminating"), "it was not ended at once"
        assert client.job(job.id).repeated_steps == repeated

    client.cancel(job.id)
    assert client.wait(job.id, PATIENCE_S).state is JobState.CANCELLED
    steps = {point.step for point in client.metrics(job.id)}
    assert steps == set(range(1, max(steps) + 1)), "no step is missing"
