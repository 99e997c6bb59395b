"""Nodes of a real Ray cluster measure themselves and each other; one whose processor errs gets no work."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster

from remora.ray_labels import NODE_LABEL
from remora.states import NodeState
from service.loops.preflights import PreflightWatch
from service.loops.tick import Tick
from service.queue.lifecycle import NodeDecision
from service.queue.rows import NodeRow
from service.settings import Settings
from service.store import leases
from service.store import nodes as node_store
from service.store.database import Database
from service.store.migrate import migrate
from tests.e2e.processes import until
from tests.service_fakes import FakeMember
from trainers.preflight.answers import LinkAnswer, OwnAnswer
from trainers.preflight.tasks import RayPreflights

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(300)]

#: Python imports it at the start of each process of the node: there one number of each product has a wrong bit.
ERRS = """
import sys
if "trainers.preflight.own" in sys.orig_argv:
    import torch
    right = torch.Tensor.__matmul__
    def wrong(one, other):
        result = right(one, other)
        result[17, 42] += 1
        return result
    torch.Tensor.__matmul__ = wrong
"""
#: The process never prints anything.
HANGS = """
import sys, time
if "trainers.preflight.own" in sys.orig_argv:
    time.sleep(1000.0)
"""
#: The release before has no such package.
LACKS_PREFLIGHT = """
import sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "trainers.preflight":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Finder())
"""
LIMIT_S = 120.0


@dataclass
class Nodes:
    """A head without work, and nodes with faults."""

    cluster: Cluster
    folder: Path

    def join(self, node_id: str, fault: str = "") -> None:
        there = self.folder / node_id
        there.mkdir()
        (there / "sitecustomize.py").write_text(fault)
        paths = os.pathsep.join([str(there), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        self.cluster.add_node(num_cpus=1, labels={NODE_LABEL: node_id}, env_vars={"PYTHONPATH": paths})


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    store = {"object_store_memory": 100_000_000}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **store})
    ray.init(address=cluster.address, log_to_driver=False)
    yield Nodes(cluster, tmp_path)
    ray.shutdown()
    cluster.shutdown()


def tick_of(home: Path) -> Tick:
    settings = Settings(home=home, preflight="on", preflight_s=LIMIT_S)
    database = Database(settings.database)
    migrate(database)
    lease = database.transact(lambda c: leases.take(c, None, "controller", "test", 1000.0))
    assert lease is not None
    return Tick(database, settings, lease, 1000.0)


def test_the_one_that_errs_is_drained_before_it_gets_work_and_the_others_are_measured_together(
    nodes: Nodes, tmp_path: Path
) -> None:
    tick = tick_of(tmp_path)
    for node_id, fault in (("node_a", ""), ("node_b", ERRS), ("node_c", "")):
        nodes.join(node_id, fault)
        row = NodeRow(
            id=node_id, pool="cpu", created_at=1000.0, state=NodeState.JOINED, resources={"CPU": 1.0}
        )
        tick.apply(lambda c, row=row: node_store.insert_node(c, NodeDecision(row)))  # type: ignore[misc]
    members = {
        node_id: FakeMember(address="127.0.0.1", is_alive=True, is_draining=False, resources={"CPU": 1.0})
        for node_id in ("node_a", "node_b", "node_c")
    }
    watch, preflights = PreflightWatch(), RayPreflights()

    def rows() -> dict[str, NodeRow]:
        return {row.id: row for row in tick.load(lambda c: node_store.current_nodes(c, "default", 0.0))}

    def judged() -> bool:
        watch.look(tick, preflights, members)
        return all(row.state is not NodeState.JOINED for row in rows().values())

    until(judged, "all are judged", LIMIT_S)
    found = rows()
    assert {name: row.state.value for name, row in found.items()} == {
        "node_a": "ready",
        "node_b": "draining",
        "node_c": "ready",
    }
    assert "a product of two matrices of small integers was wrong on its processor" in str(
        found["node_b"].message
    )
    for name, other in (("node_a", "node_c"), ("node_c", "node_a")):
        preflight = found[name].preflight
        assert preflight is not None
        assert preflight["neighbour"] == other
        assert preflight["mb_per_s"] > 1.0
        assert preflight["memory_bytes"] > 1e8


def test_a_node_of_a_release_without_preflight_says_so(nodes: Nodes) -> None:
    nodes.join("node_a", LACKS_PREFLIGHT)
    preflights, answers = RayPreflights(), list[OwnAnswer | LinkAnswer]()
    preflights.measure(["node_a"], LIMIT_S)

    def has_answered() -> bool:
        answers.extend(preflights.answers())
        return bool(answers)

    until(has_answered, "it says so", LIMIT_S)
    why = "its Remora is of an earlier release, which has no preflight"
    assert answers == [OwnAnswer("node_a", None, why, lacks_preflight=True)]


def test_what_hangs_is_ended_at_its_limit_and_leaves_no_process(nodes: Nodes) -> None:
    nodes.join("node_a", HANGS)
    preflights, answers = RayPreflights(), list[OwnAnswer | LinkAnswer]()
    preflights.measure(["node_a"], 5.0)

    def has_answered() -> bool:
        answers.extend(preflights.answers())
        return bool(answers)

    until(has_answered, "it is given up", 60.0)
    assert answers == [OwnAnswer("node_a", None, "it did not answer within 5 s")]
