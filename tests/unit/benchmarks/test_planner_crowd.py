"""The planner's benchmark plans what it says: a cluster of that size that works, and a queue behind it."""

from __future__ import annotations

import random

from benchmarks.planner import crowd
from cluster.actions import Launch
from cluster.planner import plan
from remora.states import NodeState


def test_a_crowd_has_the_size_that_it_is_named_by_and_is_planned_for() -> None:
    view, policies = crowd(20, 200, random.Random(0))
    assert len(view.nodes) == 20
    assert len(view.jobs) == 200
    assert {node.state for node in view.nodes} == {NodeState.READY}
    running = {job.id for job in view.jobs if job.is_running}
    assert running == {job_id for node in view.nodes for job_id in node.jobs}
    assert any(isinstance(action, Launch) for action in plan(view, policies, 1_800_000_000.0))
