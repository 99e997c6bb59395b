"""The actor that divides the cluster's resources among Ray Train's controllers, bound to no node that may leave.

Ray makes it on the node of the process that asks first, and binds it there for ever: that node would not end while the
actor is on it, and without the node no attempt would be promised resources.  So it is made here before Ray does, of
Ray's class and under Ray's name, on a node for drivers, and Ray starts it again on another one when that node is lost.
"""

from __future__ import annotations

from typing import Any

import ray
from ray.core.generated import gcs_pb2
from ray.data._internal.cluster_autoscaler.default_autoscaling_coordinator import _AutoscalingCoordinatorActor
from ray.train.v2._internal.execution.scaling_policy.autoscaling_coordinator_client import (
    TrainAutoscalingCoordinatorClient,
)

from remora.ray_resources import COORDINATOR, DRIVER_SHARE, DRIVERS, is_bound_coordinator
from trainers.ray_train.liveness import draining_nodes

#: What is raised by a coordinator that is dead for good; the latter by one that Ray may start on a lost node alone.
DEAD = (ray.exceptions.ActorDiedError, ray.exceptions.ActorUnschedulableError)


def make() -> Any:
    """The coordinator, which is started if there is none; returns before it is up."""
    actor = ray.remote(max_restarts=-1, max_task_retries=-1)(_AutoscalingCoordinatorActor).options(
        name=COORDINATOR,
        namespace=COORDINATOR,
        lifetime="detached",
        get_if_exists=True,
        num_cpus=0,
        resources={DRIVERS: DRIVER_SHARE},
    )
    return actor.remote()


def find() -> Any:
    """The coordinator, None when there is none."""
    try:
        return ray.get_actor(COORDINATOR, namespace=COORDINATOR)
    except ValueError:
        return None


def keep(class_of_drivers: str) -> None:
    """Make the coordinator where there is none, and end one that holds a node which is to end.

    That is one that Ray has bound to a node that drains now.  Drivers of earlier releases ask that one alone, without
    end: it is ended once no driver, an actor of a class of that name, stands on a node that drains.  The next look
    makes another one.  Raises what Ray raises.
    """
    found = find()
    if found is None:
        make()
        return
    state = ray._private.state
    entry = state.state._connect_and_get_accessor().get_actor_info(found._actor_id)
    if entry is None:
        return
    actor = gcs_pb2.ActorTableData.FromString(entry)
    if not is_bound_coordinator(actor.required_resources.keys()):
        return
    draining = draining_nodes().keys()
    if actor.address.node_id.hex() not in draining:
        return
    drivers = (one for one in state.actors().values() if one["ActorClassName"] == class_of_drivers)
    if not any(one["State"] == "ALIVE" and one["Address"]["NodeID"] in draining for one in drivers):
        ray.kill(found, no_restart=True)


class CoordinatorClient(TrainAutoscalingCoordinatorClient):
    """Stock, but it asks the coordinator of this module, and another one when that is dead for good."""

    def __init__(self, requester: str) -> None:
        super().__init__(requester)
        self._handle: Any = None

    @property
    def _autoscaling_coordinator(self) -> Any:
        if self._handle is None:
            self._handle = make()
        return self._handle

    def replace(self) -> None:
        """Ask another coordinator from now on, and for the resources again: this one is dead.

        So is one that another program has had Ray bind to a node which is gone.
        """
        self._handle = None
        self._latest_autoscaling_request_time = float("-inf")
