"""Where a framework may differ from the others between a worker's place in its group and its running command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trainers.checkpoints.manifest import Manifest
from trainers.plan import AttemptPlan
from trainers.supervisor.environment import Place


class BackendUnusable(Exception):
    """The job cannot run as it is described; the message is one sentence with what to change."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """One worker's command, about to be started."""

    plan: AttemptPlan
    place: Place
    #: The unpacked code bundle; the command's working directory, shared by the workers of a node.
    code: Path
    #: A folder of this worker alone, gone when it ends.
    scratch: Path
    #: What is written here is kept with the job (`REMORA_OUTPUTS_DIR`); it has the job's files so far.
    outputs: Path
    #: Files of the checkpoint to resume from, a copy of this worker's own; None for a fresh start.
    resume: Path | None
    #: What was committed with them.
    manifest: Manifest | None
    #: What the command will see, complete but for the backend's own part.
    environment: Mapping[str, str]


class Backend:
    """A framework that needs nothing but what every worker gets; others change what they need.

    The supervisor of each worker calls the three methods in their order, and starts the command then.  Every one of
    them may raise BackendUnusable, which ends the attempt with `start_failed` and the message.
    """

    def prepare(self, start: Start) -> None:
        """Act on the folders before the command starts, e.g. turn a checkpoint into one for this world size."""

    def variables(self, start: Start) -> dict[str, str]:  # noqa: ARG002 - for those who override it
        """Environment variables beside torchrun's and ours; they win over all others.  Pure."""
        return {}

    def command(self, start: Start) -> list[str]:
        """Argument list of this rank's process, run without a shell.  Pure."""
        return list(start.plan.command)
