"""What `trainers/ray_train` relies on inside Ray; an upgrade that changes it fails here, loudly and first."""

from __future__ import annotations

import dataclasses
import inspect
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray._private.state import GlobalState
from ray.data._internal.cluster_autoscaler import default_autoscaling_coordinator as coordinator
from ray.train import ScalingConfig
from ray.train.v2._internal.callbacks.accelerators import AcceleratorSetupCallback
from ray.train.v2._internal.constants import (
    HEALTH_CHECK_INTERVAL_S_ENV_VAR,
    WORKER_GROUP_START_TIMEOUT_S_ENV_VAR,
)
from ray.train.v2._internal.exceptions import (
    WorkerGroupStartupFailedError,
    WorkerGroupStartupTimeoutError,
    WorkerHealthCheckFailedError,
)
from ray.train.v2._internal.execution.callback import WorkerGroupCallback
from ray.train.v2._internal.execution.context import DistributedContext, TrainRunContext
from ray.train.v2._internal.execution.controller.controller import TrainController
from ray.train.v2._internal.execution.controller.state import ErroredState
from ray.train.v2._internal.execution.failure_handling import FailureDecision, FailurePolicy
from ray.train.v2._internal.execution.scaling_policy import ElasticScalingPolicy, ResizeDecision
from ray.train.v2._internal.execution.scaling_policy.autoscaling_coordinator_client import (
    TrainAutoscalingCoordinatorClient,
)
from ray.train.v2._internal.execution.worker_group import WorkerGroupState
from ray.train.v2._internal.execution.worker_group.placement_group_handle import PlacementGroupHandle
from ray.train.v2._internal.execution.worker_group.state import WorkerGroupStateBuilder, _shutdown_workers
from ray.train.v2._internal.execution.worker_group.worker import ActorMetadata, RayTrainWorker, Worker
from ray.train.v2._internal.execution.worker_group.worker_group import WorkerGroup, WorkerGroupContext
from ray.train.v2._internal.util import ObjectRefWrapper, bundle_to_remote_args
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.train.v2.api.exceptions import ControllerError, WorkerGroupError
from ray.util.placement_group import (
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

import trainers.ray_train.run as ours
from cluster.ray.drain import drain
from remora.ray_resources import COORDINATOR
from tests.contracts.trainers.theatre import Theatre, fail, nothing
from tests.integration.trainers.lab import Lab, open_lab, until
from trainers.ray_train import draining_nodes
from trainers.ray_train.coordinator import make as make_coordinator
from trainers.ray_train.reservations import Reservations
from trainers.ray_train.starting import StartingWorkers


def test_this_is_the_ray_that_everything_was_measured_with() -> None:
    assert ray.__version__ == "2.60.0", "measure again before this line is changed"


def parameters(function: Callable[..., Any]) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]


@pytest.mark.parametrize(
    ("function", "needed"),
    [
        (TrainController.__init__, "train_fn_ref train_run_context scaling_policy failure_policy callbacks"),
        (DataParallelTrainer.__init__, "train_loop_per_worker scaling_config run_config"),
        (AcceleratorSetupCallback.__init__, "backend_config scaling_config"),
        (WorkerGroupStartupTimeoutError.__init__, "num_workers"),
        (_shutdown_workers, "workers patience_s"),
        (ObjectRefWrapper.__init__, "obj"),
        (placement_group, "bundles name bundle_label_selector"),
        (get_placement_group, "placement_group_name"),
        (remove_placement_group, "placement_group"),
        (ScalingConfig, "num_workers resources_per_worker use_gpu"),
        (TrainAutoscalingCoordinatorClient.__init__, "requester_id"),
        (coordinator._AutoscalingCoordinatorActor.get_reserved_resources, "requester_id recompute"),
        (coordinator._AutoscalingCoordinatorActor.cancel_request, "requester_id"),
        (WorkerGroupError.__init__, "error_message worker_failures"),
        (ControllerError.__init__, "controller_failure"),
        (Worker.execute_async, "fn"),
        (WorkerGroup.poll_status, "timeout"),
        (
            WorkerGroup._assign_worker_ranks,
            "workers starting_world_rank world_size replica_group_size",
        ),
        (Worker.__init__, "actor metadata resources placement_group_bundle_index"),
        (PlacementGroupSchedulingStrategy.__init__, "placement_group placement_group_bundle_index"),
        (bundle_to_remote_args, "bundle"),
        (RayTrainWorker.get_metadata, ""),
        (WorkerGroup._init_train_context, "workers sync_actor"),
        (RayTrainWorker.run_train_fn, "train_fn_ref"),
    ],
)
def test_what_is_called_takes_what_it_is_given(function: Callable[..., Any], needed: str) -> None:
    assert set(needed.split()) <= set(parameters(function)), parameters(function)


@pytest.mark.parametrize(
    ("function", "exactly"),
    [
        (WorkerGroup._create_placement_group, "scaling_config worker_group_context"),
        (
            WorkerGroup._create_workers,
            "num_workers placement_group resources_per_worker placement_group_bundle_indices"
            " starting_world_rank world_size replica_group_size",
        ),
        (WorkerGroup._get_worker_runtime_env, "custom_runtime_env"),
        (WorkerGroup.shutdown, ""),
        (WorkerGroupCallback.after_worker_group_start, "worker_group"),
        (FailurePolicy.__init__, "failure_config"),
        (FailurePolicy.make_decision, "training_failed_error"),
        (ElasticScalingPolicy.__init__, "scaling_config"),
        (ElasticScalingPolicy.after_controller_start, "train_run_context"),
        (ElasticScalingPolicy.make_decision_for_non_running_worker_group, ""),
        (
            ElasticScalingPolicy.make_decision_for_running_worker_group,
            "worker_group_state worker_group_status",
        ),
        (ElasticScalingPolicy._get_reserved_resources, ""),
        (ElasticScalingPolicy._count_possible_workers, "reserved_resources"),
        (ElasticScalingPolicy._maybe_send_resource_request, ""),
        (ElasticScalingPolicy._send_resource_request, ""),
        (TrainController.get_state, ""),
        (GlobalState.get_draining_nodes, ""),
    ],
)
def test_what_is_replaced_is_called_as_before(function: Callable[..., Any], exactly: str) -> None:
    assert parameters(function) == exactly.split()


@pytest.mark.parametrize(
    ("kind", "needed"),
    [
        (WorkerGroupState, "workers sync_actor placement_group_handle"),
        (Worker, "actor metadata distributed_context placement_group_bundle_index"),
        (DistributedContext, "world_rank local_rank local_world_size node_rank"),
        (ActorMetadata, "node_id node_ip"),
        (
            WorkerGroupContext,
            "num_workers resources_per_worker placement_strategy label_selector train_fn_ref",
        ),
        (ErroredState, ""),
        (TrainRunContext, "run_id run_config scaling_config"),
        (ResizeDecision, "num_workers"),
    ],
)
def test_fields_are_there(kind: Any, needed: str) -> None:
    if needed:
        fields = {field.name for field in dataclasses.fields(kind)}
        assert set(needed.split()) <= fields, fields
    else:
        assert "training_failed_error" in inspect.getsource(kind.__init__)


def test_attributes_that_are_read_and_set_exist() -> None:
    assert TrainController.worker_group_cls is WorkerGroup
    used = re.findall(r"self\.worker_group_cls(\S*)", inspect.getsource(TrainController))
    assert used == [".create("], "an object with this method takes the place of the class"
    assert "cls(" in inspect.getsource(WorkerGroup.create)
    assert "worker_group._start()" in inspect.getsource(WorkerGroup.create)
    group = inspect.getsource(WorkerGroup)
    for name in (
        "self._worker_group_state",
        "self._worker_group_context",
        "self._worker_health_check_timeout_s",
        "self._poll_workers_and_collect_errors(timeout)",
        "worker.actor.poll_status.remote()",
        "self._worker_cls",
        "self._train_run_context",
    ):
        assert name in group, name
    assert "_worker_group_state" in inspect.getsource(WorkerGroup.shutdown)
    policy = inspect.getsource(ElasticScalingPolicy)
    for name in ("_latest_reserved_resources_query_time", "_latest_reserved_resources", "_requester_id"):
        assert name in policy
    assert "_coordinator_client" in inspect.getsource(ElasticScalingPolicy.__mro__[1])
    assert isinstance(ElasticScalingPolicy._autoscaling_coordinator, property)
    assert {"RETRY", "RAISE"} <= set(FailureDecision.__members__)
    assert inspect.iscoroutinefunction(TrainController.run)
    assert "health_check_failure" in inspect.getsource(WorkerHealthCheckFailedError)


def test_no_more_is_asked_of_the_handle_of_a_placement_group_than_reservations_answer() -> None:
    source = inspect.getsource(WorkerGroup._start_impl) + inspect.getsource(WorkerGroupState.shutdown)
    source += inspect.getsource(WorkerGroupStateBuilder)
    asked = set(re.findall(r"(?:pg_handle|placement_group_handle)\.(\w+)", source))
    assert asked == {"wait", "shutdown", "placement_group"}
    for name in asked:
        assert hasattr(Reservations, name), name
    assert parameters(Reservations.wait) == parameters(PlacementGroupHandle.wait)


def test_policies_of_ours_are_asked_and_their_decisions_obeyed() -> None:
    source = inspect.getsource(TrainController)
    for name in (
        "self._scaling_policy.make_decision_for_non_running_worker_group",
        "self._scaling_policy.make_decision_for_running_worker_group",
        "self._failure_policy.make_decision",
        "self.worker_group_cls",
    ):
        assert name in source, name


def test_environment_variables_are_still_read() -> None:
    known = inspect.getsource(__import__("ray.train.v2._internal.constants", fromlist=["x"]))
    for name in ours._ENVIRONMENT:
        if name.startswith("RAY_TRAIN_"):
            assert f'"{name}"' in known, name
    assert HEALTH_CHECK_INTERVAL_S_ENV_VAR in ours._ENVIRONMENT
    assert WORKER_GROUP_START_TIMEOUT_S_ENV_VAR in ours._ENVIRONMENT


def test_the_coordinator_is_found_by_its_name() -> None:
    source = inspect.getsource(coordinator.get_or_create_autoscaling_coordinator)
    assert f'name="{COORDINATOR}"' in source
    assert f'namespace="{COORDINATOR}"' in source


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with open_lab(tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("lab")) as opened:
        opened.nodes(2)
        yield opened


def workers_nodes() -> list[str]:
    """Ray node ids of the nodes that have a CPU for a worker."""
    return [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_controller_runs_fails_is_judged_and_ends(lab: Lab, tmp_path: Path) -> None:
    """The whole of it once, small: start, train, fail, judge, start again, give up."""
    theatre = ray.remote(Theatre).options(num_cpus=0, label_selector={"remora-role": "head"}).remote()

    def play(train: Callable[[], None], *, ends: bool = False) -> dict[str, Any]:
        seen: dict[str, Any] = ray.get(theatre.play.remote(train, ends, str(tmp_path)), timeout=90)
        assert (seen["said"], seen["draining"]) == ([], {})
        return seen

    failed = play(fail)
    assert failed["error"] == "WorkerGroupError"
    assert set(failed["failed"]) in ({0}, {1}, {0, 1}), "the ranks that had failed at that look"
    assert failed["failures"] == [(set(), set())] * 2, "the first is retried, the second is final"
    assert failed["identities"] == [0, 1]
    assert len(failed["nodes"]) == 2
    assert failed["answering"] == failed["nodes"], "living nodes answer, unknown ones do not"

    fine = play(nothing)
    assert (fine["error"], fine["failures"]) == ("NoneType", [])
    assert play(nothing, ends=True)["error"] != "NoneType", "it leaves its loop without a worker group"
    ray.kill(theatre)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_a_dead_controller_had_reserved_is_found_by_its_name(lab: Lab) -> None:
    held = Reservations("att_dead", {"CPU": 1.0}, {})
    assert held.are_there(held.ask(workers_nodes()), 30.0)
    states = [placement_group_table(one.group)["state"] for one in held.held]
    assert states == ["CREATED", "CREATED"]
    waits = Reservations("att_other", {"CPU": 1.0}, {})
    waiting = waits.ask([held.held[0].ray_node_id])
    requester = ours._requester("att_dead")
    actor = make_coordinator()
    assert coordinator.get_or_create_autoscaling_coordinator()._actor_id == actor._actor_id, (
        "Ray takes it for its own"
    )
    client = TrainAutoscalingCoordinatorClient(requester)
    client.send_resource_request(ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1.0}), 2)

    def reserved() -> float:
        nodes = ray.get(actor.get_reserved_resources.remote(requester, recompute=True), timeout=30)
        return float(sum(one.get("CPU", 0.0) for one in nodes.values()))

    assert reserved() == 2.0
    ours.free_resources("att_dead")
    assert waits.are_there(waiting, 30.0)
    assert reserved() == 0.0
    ours.free_resources("att_dead")
    ours.free_resources("att_other")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_worker_is_waited_for_on_a_node_that_takes_no_work(lab: Lab) -> None:
    lab.nodes(2)
    reservations = Reservations("att_starting", {"CPU": 1.0}, {})
    assert reservations.are_there(reservations.ask(workers_nodes()), 30.0)
    actor_type = ray.remote(num_cpus=1)(RayTrainWorker)
    stays, goes = reservations.held
    fine = StartingWorkers(actor_type, [stays], {"CPU": 1.0})
    until(fine.are_up, "a worker on a node that works is up")
    assert [worker.metadata.node_id for worker in fine.workers()] == [stays.ray_node_id]

    going = goes.ray_node_id
    drain(going, "the cloud takes it", time.time() + 600.0)
    until(lambda: going in draining_nodes(), "the node drains")
    given_up = StartingWorkers(actor_type, [goes], {"CPU": 1.0})
    with pytest.raises(WorkerGroupStartupFailedError, match=f"the node {going} takes no work any more"):
        until(given_up.are_up, "it is given up")
    fine.end()
    ours.free_resources("att_starting")
