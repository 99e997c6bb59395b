"""The interface of a backend: how a worker's command is prepared, started and accompanied for its framework."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from remora.job_commands.launchers import unwrap
from trainers.checkpoints.manifest import Manifest
from trainers.isolation.confined import Confinement
from trainers.plan import AttemptPlan
from trainers.worker_identity import WorkerIdentity


class BackendUnusable(Exception):
    """The job cannot run as it is described; the message is one sentence with what to change."""


@dataclass(frozen=True, kw_only=True)
class LaunchContext:
    """What a backend knows about the worker whose command is about to start."""

    plan: AttemptPlan
    identity: WorkerIdentity
    #: The unpacked code bundle; the command's working directory, shared by the workers of a node.
    code: Path
    #: A folder of all workers of this worker group on this node, gone with the last of them; supervisors write there.
    shared: Path
    #: A folder of this worker alone, gone when it ends.
    scratch: Path
    #: What is written here is kept with the job (`REMORA_OUTPUTS_DIR`); it has the job's files so far.
    outputs: Path
    #: A folder of all workers of this worker group on this node, in which their commands write.
    exchange: Path
    #: Files of the checkpoint to resume from, a copy of this worker's own; None for a fresh start.
    resume: Path | None
    #: What was committed with them.
    manifest: Manifest | None
    #: Environment variables of the command, all but those of the backend itself.
    environment: Mapping[str, str]
    #: Paths of the job's inputs on this node, by name.
    inputs: Mapping[str, Path] = field(default_factory=dict)
    #: What makes a command a process of the job's own user; None: it is one of the node's.
    confinement: Confinement | None = None


@dataclass(frozen=True, kw_only=True)
class Sidecar:
    """A process that runs beside a worker's command on its node, e.g. a launcher of the framework.

    It starts before the command, in the same folder, under a shim of its own; what it prints goes to the log as
    Remora's words.  When the command fails or is stopped it is killed, and when the command returns 0 the worker is
    over once the sidecar has ended by itself.  When it fails, the command is ended; and when the command had not
    begun (`Backend.has_started`), that is trouble of the machines, which another attempt follows, unless
    `Backend.blame` finds that it is the job's own.
    """

    command: list[str]
    environment: Mapping[str, str]


class Backend:
    """A framework that needs nothing but what every worker gets; subclasses override what differs.

    The supervisor of each worker calls `prepare`, `variables`, `command` and `sidecar` in this order, and starts the
    command then.  Every one of them may raise BackendUnusable, which ends the attempt with `start_failed` and the
    message.
    """

    #: True when every worker needs an address of its own (`WorkerIdentity.peers`) and the worker group's key.  Such
    #: workers are connected when they start: their worker group never changes in place.
    needs_ports: ClassVar[bool] = False

    def prepare(self, launch: LaunchContext) -> None:
        """Act on the folders before the command starts, e.g. turn a checkpoint into one for this world size."""

    def variables(self, launch: LaunchContext) -> dict[str, str]:  # noqa: ARG002 - for those who override it
        """Environment variables beside torchrun's and ours; they win over all others.  Pure."""
        return {}

    def command(self, launch: LaunchContext) -> list[str]:
        """Argument list of this rank's process, run without a shell: what a launcher in it would start.  Pure."""
        return unwrap(launch.plan.command).for_worker(launch.identity.local_rank)

    def sidecar(self, launch: LaunchContext) -> Sidecar | None:  # noqa: ARG002 - for those who override it
        """The sidecar of this rank's process, if it needs one.  Pure."""
        return None

    def has_started(self, launch: LaunchContext) -> bool:  # noqa: ARG002 - for those who override it
        """False while the command waits for its sidecar; looked at when the sidecar fails."""
        return True

    def blame(self, launch: LaunchContext) -> str | None:  # noqa: ARG002 - for those who override it
        """What of the job keeps its sidecar from starting, in one sentence; None where nothing shows that it does.

        Asked when the sidecar failed before the command began; may try things out for some seconds.
        """
        return None

    def returned(self, launch: LaunchContext) -> None:
        """Act on the command's exit code 0, before its sidecar is waited for."""
