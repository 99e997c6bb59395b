"""Ray Train's controller, run inside the driver, which judges what follows a failure."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.backend import BackendConfig
from ray.train.v2._internal.callbacks.accelerators import AcceleratorSetupCallback
from ray.train.v2._internal.execution.callback import WorkerGroupCallback
from ray.train.v2._internal.execution.controller.controller import TrainController
from ray.train.v2._internal.execution.controller.state import ErroredState
from ray.train.v2._internal.execution.failure_handling import FailureDecision, FailurePolicy
from ray.train.v2._internal.util import ObjectRefWrapper
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.train.v2.api.exceptions import WorkerGroupError

from remora.ray_labels import FOR_JOBS_LABEL
from remora.spec.worker_sizes import WorkerSizes
from trainers.ray_train import coordinator
from trainers.ray_train.leftovers import NodeSweeps
from trainers.ray_train.liveness import find_dead, is_dead_worker
from trainers.ray_train.owner import AttemptEnds, Owner
from trainers.ray_train.reservations import free_reservations
from trainers.ray_train.scaling import POLL_S, ElasticPolicy
from trainers.ray_train.worker_group import AttemptWorkers

#: Seconds that capacity for all workers may take before it is counted again: it was free when it was asked for.
_START_TIMEOUT_S = 6.0

#: Environment variables that Ray Train reads in the process of its controller.
_ENVIRONMENT = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": str(POLL_S),
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": str(_START_TIMEOUT_S),
    # Its watcher is one more actor per worker group and looks every 5 s; the scaling policy below looks each second.
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    # The controller's loop blocks on purpose: it has a thread of its own.
    "RAY_WARN_BLOCKING_GET_INSIDE_ASYNC": "0",
    # As under torchrun: every worker sees all GPUs of its node's workers, and LOCAL_RANK picks one.
    "TRAIN_ENABLE_SHARE_CUDA_VISIBLE_DEVICES": "1",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    "RAY_TRAIN_ENABLE_CONTROLLER_STRUCTURED_LOGGING": "0",
    "RAY_TRAIN_ENABLE_WORKER_STRUCTURED_LOGGING": "0",
}


def run_to_end(
    train_function: Callable[[], None],
    owner: Owner,
    *,
    name: str,
    sizes: WorkerSizes,
    resources: dict[str, float],
    labels: Mapping[str, Sequence[str]],
    storage_path: str,
    workers_per_node: int | None = None,
) -> Exception | None:
    """Run Ray Train's controller in this thread until training has finished or failed; returns its error.

    Workers run on nodes with these labels only: accepted values by label.  At most `workers_per_node` are on one node.
    """
    os.environ.update(_ENVIRONMENT)
    scaling = ScalingConfig(
        num_workers=(sizes.min, sizes.max),
        resources_per_worker=dict(resources),
        use_gpu=resources.get("GPU", 0) > 0,
        label_selector=_selector(labels),
    )
    failures = FailureConfig(max_failures=-1)
    trainer = DataParallelTrainer(
        train_function,
        scaling_config=scaling,
        run_config=RunConfig(name=name, storage_path=storage_path, failure_config=failures),
    )
    backend = trainer.backend_config or BackendConfig()
    policy = ElasticPolicy(scaling, owner, _requester(name), sizes, labels, workers_per_node)
    sweeps = NodeSweeps()
    controller = _Controller(
        AttemptWorkers(name, owner, policy.nodes_for, sweeps),
        train_fn_ref=ObjectRefWrapper(train_function),
        train_run_context=trainer.train_run_context,
        scaling_policy=policy,
        failure_policy=JudgedFailures(failures, owner, policy, sweeps),
        callbacks=[AcceleratorSetupCallback(backend, scaling), _Lifecycle(owner, policy)],
    )
    policy.end_group = controller._shutdown_worker_group
    try:
        asyncio.run(controller.run())
    finally:
        sweeps.wait()
    state = controller.get_state()
    return state.training_failed_error if isinstance(state, ErroredState) else None


def _selector(labels: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """The labels as Ray writes them, and the mark of a request for a job, which every node satisfies."""
    accepted = {label: f"in({','.join(values)})" for label, values in labels.items()}
    return {**accepted, FOR_JOBS_LABEL: "!in(job)"}


def free_resources(name: str) -> None:
    """Free what a dead controller of that name had reserved; fine when there is nothing."""
    found = coordinator.find()
    if found is not None:
        # Otherwise no other attempt could have these resources until the request expires, which takes three minutes.
        found.cancel_request.remote(_requester(name))
    free_reservations(name)


def _requester(name: str) -> str:
    """Name under which a controller asks Ray Train's coordinator for resources."""
    return f"remora-{name}"


class _Controller(TrainController):
    """Stock, in a thread of the driver instead of an actor of its own: one process less to start and to lose."""

    def __init__(self, workers: AttemptWorkers, **named: Any) -> None:
        super().__init__(**named)
        # Stock has a class here, and only calls its `create`.
        self.worker_group_cls: Any = workers


class _Lifecycle(WorkerGroupCallback):
    """Reports to the owner when worker processes are up, before they train."""

    def __init__(self, owner: Owner, policy: ElasticPolicy) -> None:
        self._owner = owner
        self._policy = policy

    def after_worker_group_start(self, worker_group: Any) -> None:
        self._policy.group = worker_group
        self._owner.group_starts(worker_group.members())


class JudgedFailures(FailurePolicy):
    """Collects the facts of a failure and lets the driver judge them."""

    def __init__(
        self, failure_config: FailureConfig, owner: Owner, policy: ElasticPolicy, sweeps: NodeSweeps
    ) -> None:
        super().__init__(failure_config)
        self._owner = owner
        self._policy = policy
        self._sweeps = sweeps

    def make_decision(self, training_failed_error: Exception) -> FailureDecision:
        """As the driver judges: another worker group, or the end of the attempt."""
        if isinstance(training_failed_error, WorkerGroupError):
            members = self._policy.group.members()
            known = {
                members[place].slot
                for place, error in training_failed_error.worker_failures.items()
                if is_dead_worker(error)
            }
            dead, nodes_lost = find_dead(members, known)
            self._sweeps.ask(one.ray_node_id for one in members if one.slot in dead)
            self._policy.group.note_dead(dead | nodes_lost)
            goes_on = self._owner.group_failed(dead, nodes_lost)
            return FailureDecision.RETRY if goes_on else FailureDecision.RAISE
        cause = getattr(training_failed_error, "controller_failure", training_failed_error)
        if isinstance(cause, AttemptEnds) or self._owner.wants_to_end():
            return FailureDecision.RAISE
        self._owner.group_could_not_start(f"{type(cause).__name__}: {cause}")
        return FailureDecision.RAISE if self._owner.wants_to_end() else FailureDecision.RETRY
