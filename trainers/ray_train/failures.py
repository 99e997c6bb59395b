"""What failed: workers, nodes or scripts; the driver judges what follows."""

from __future__ import annotations

from ray.train import FailureConfig
from ray.train.v2._internal.execution.failure_handling import FailureDecision, FailurePolicy
from ray.train.v2.api.exceptions import WorkerGroupError

from trainers.ray_train.deaths import find_dead, is_dead_worker
from trainers.ray_train.leftovers import NodeSweeps
from trainers.ray_train.owner import AttemptEnds, Owner
from trainers.ray_train.scaling import ElasticPolicy


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
