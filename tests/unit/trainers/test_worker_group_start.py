"""A worker group whose workers are up and whose start fails after that is ended, and holds nothing."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any, cast

import pytest

from trainers.ray_train.leftovers import NodeSweeps
from trainers.ray_train.owner import Owner
from trainers.ray_train.worker_group import AttemptWorkers, RemoraWorkerGroup


@dataclasses.dataclass(frozen=True)
class State:
    """Workers that are up, with their reservations."""

    ended: list[str]
    workers: tuple[Any, ...] = ()

    def shutdown(self) -> None:
        self.ended.append("workers and their reservations")


def test_a_group_whose_start_fails_when_its_workers_are_up_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray Train forgets such a group: its actors and its reservations would live as long as the driver."""
    workers = AttemptWorkers("att_1", cast(Owner, None), lambda _count, _there: [], NodeSweeps())
    run_config = SimpleNamespace(storage_context=None)
    run = SimpleNamespace(run_config=run_config, backend_config=None)
    group = RemoraWorkerGroup(workers, run, SimpleNamespace())
    ended: list[str] = []

    def fails_late(builder: object) -> None:
        group._worker_group_state = State(ended)
        raise ConnectionError("the storage does not answer")

    monkeypatch.setattr(group, "_start_impl", fails_late)
    with pytest.raises(ConnectionError, match="the storage"):
        group._start()
    assert ended == ["workers and their reservations"]
    assert not group.has_started()
    assert group.places() == []
