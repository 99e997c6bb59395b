"""The planner's benchmark plans what it says: a cluster of that size that works, and a queue behind it."""

from __future__ import annotations

import random

from ray.autoscaler.v2.scheduler import ResourceDemandScheduler

from benchmarks.planner import crowd
from benchmarks.ray_packer import request
from cluster.scheduling.actions import Launch
from cluster.scheduling.planner import plan
from remora.states import NodeState


def test_a_crowd_has_the_size_that_it_is_named_by_and_is_planned_for() -> None:
    view, policies = crowd(20, 200, random.Random(0))
    assert len(view.nodes) == 20
    assert len(view.jobs) == 200
    assert {node.state for node in view.nodes} == {NodeState.READY}
    running = {job.id for job in view.jobs if job.is_running}
    assert running == {job_id for node in view.nodes for job_id in node.jobs}
    assert any(isinstance(action, Launch) for action in plan(view, policies, 1_800_000_000.0))


def test_rays_packer_is_given_the_same_crowd_and_packs_it() -> None:
    view, _ = crowd(5, 30, random.Random(0))
    asked = request(view, 5)
    waiting = [job for job in view.jobs if not job.is_running]
    assert [len(gang.requests) for gang in asked.gang_resource_requests] == [
        job.min_workers for job in waiting
    ]
    assert len(asked.current_instances) == 5
    reply = ResourceDemandScheduler().schedule(asked)
    assert 0 < sum(launch.count for launch in reply.to_launch) <= 10, "beyond the five that are there"
    assert len(reply.infeasible_gang_resource_requests) < len(waiting)
