"""What one supervisor is to run, and with which errors it shows Ray Train that its worker has ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainers.checkpoints.manifest import Manifest
from trainers.outputs.manifest import OutputFile
from trainers.plan import AttemptPlan
from trainers.worker_identity import WorkerIdentity


class PlannedStop(Exception):
    """The driver ended this worker: to change the size of the worker group, or because the attempt ends."""


class ChildFailed(Exception):
    """The command of this rank failed; the driver already knows how."""


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """What one supervisor is to run."""

    plan: AttemptPlan
    identity: WorkerIdentity
    #: Handle of the driver actor.
    driver: Any
    #: Checkpoint to resume from.
    resume: Manifest | None
    #: The job's outputs, by name.
    outputs: Mapping[str, OutputFile] = field(default_factory=dict)
    #: Name of this worker for its whole life; its rank changes when the worker group changes in place.
    slot: int
    #: True for a worker that joins a worker group which trains already.
    is_joining: bool = False
    #: The values of the plan's secrets, by name.
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
