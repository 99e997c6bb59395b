"""Seconds in which Ray's own autoscaler (v2) packs the same clusters and queues as `planner.py`; it decides less.

It is asked directly, as its reconciler asks it at each tick.  Each job that waits is a gang of its smallest group.
Left out is all that it has no word for: the order of the queue, quota, money, refusals that end, patience, capacity
types, lost work.
"""

from __future__ import annotations

import random
import time
from typing import Any

from ray.autoscaler.v2.instance_manager.config import NodeTypeConfig
from ray.autoscaler.v2.scheduler import ResourceDemandScheduler, SchedulingRequest
from ray.autoscaler.v2.schema import AutoscalerInstance
from ray.core.generated.autoscaler_pb2 import GangResourceRequest, NodeState, NodeStatus, ResourceRequest
from ray.core.generated.instance_manager_pb2 import Instance, NodeKind

from benchmarks.planner import NOW, crowd
from cluster.scheduling.planner import plan
from cluster.scheduling.view import ClusterView, JobDemand, NodeView

#: The largest takes Ray's packer too long to be asked in every run.
SIZES = ((10, 100), (100, 1_000))


def run() -> dict[str, Any]:
    """`{"ray_packer": {"nodes_10_jobs_100": {"plan_s": ..., "ray_s": ..., "ratio": ...}}}`; each once, side by side."""
    return {"ray_packer": {f"nodes_{nodes}_jobs_{jobs}": _both(nodes, jobs) for nodes, jobs in SIZES}}


def _both(nodes: int, jobs: int) -> dict[str, float]:
    view, policies = crowd(nodes, jobs, random.Random(nodes))
    asked = request(view, nodes)
    began = time.perf_counter()
    plan(view, policies, NOW)
    planned = time.perf_counter()
    ResourceDemandScheduler().schedule(asked)
    packed = time.perf_counter()
    ours, theirs = planned - began, packed - planned
    return {"plan_s": round(ours, 4), "ray_s": round(theirs, 4), "ratio": round(theirs / ours, 1)}


def request(view: ClusterView, most: int) -> SchedulingRequest:
    """The view in the words of Ray's packer: a node type for each offering, a gang for each job that waits."""
    types = {
        offering.id: NodeTypeConfig(
            name=offering.id,
            min_worker_nodes=0,
            max_worker_nodes=3 * most,
            resources=dict(offering.resources),
        )
        for offering in view.offerings
    }
    return SchedulingRequest(
        disable_launch_config_check=True,
        node_type_configs=types,
        max_num_nodes=3 * most,
        gang_resource_requests=[_gang(job) for job in view.jobs if not job.is_running],
        current_instances=[_instance(node) for node in view.nodes],
    )


def _gang(job: JobDemand) -> GangResourceRequest:
    worker = ResourceRequest(resources_bundle=dict(job.worker_resources))
    return GangResourceRequest(requests=[worker] * job.min_workers)


def _instance(node: NodeView) -> AutoscalerInstance:
    free = dict.fromkeys(node.resources, 0.0) if node.jobs else dict(node.resources)
    ray_node = NodeState(
        node_id=node.id.encode(),
        ray_node_type_name=node.offering,
        total_resources=dict(node.resources),
        available_resources=free,
        status=NodeStatus.RUNNING if node.jobs else NodeStatus.IDLE,
    )
    instance = Instance(
        instance_id=node.id,
        instance_type=node.offering,
        status=Instance.RAY_RUNNING,
        node_id=ray_node.node_id.hex(),
        node_kind=NodeKind.WORKER,
    )
    return AutoscalerInstance(cloud_instance_id=node.id, ray_node=ray_node, im_instance=instance)
