"""Gives a worker its memory for snapshots and its folders to the job's user, and confines its command to them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

from remora.isolation import IsolationImpossible
from remora.job_commands.launchers import unwrap
from trainers.backends.backend import LaunchContext
from trainers.environments.build import environment_folders
from trainers.environments.worker_python import WorkerPython
from trainers.isolation.confined import ConfinedJob
from trainers.isolation.mounts import Shown
from trainers.plan import AttemptPlan
from trainers.public_package import public_package
from trainers.supervisor.disk_watch import DiskWatch
from trainers.supervisor.memory_watch import MemoryWatch
from trainers.supervisor.preparation import Preparation
from trainers.supervisor.snapshot_memory import SnapshotSpace, confined_space, most_bytes, snapshot_space

#: Seconds between two looks at a folder that is a job's memory.
_MEMORY_PAUSE_S = 1.0


def memory_for(
    name: str, plan: AttemptPlan, workers: int, job: ConfinedJob | None
) -> contextlib.AbstractContextManager[SnapshotSpace | None]:
    """Memory of one of the `workers` workers of the attempt on this node; None where the node has none."""
    if job is None:
        return snapshot_space(name, workers)
    return confined_space(name, workers, plan.max_shm_bytes, job)


def memory_watch(
    plan: AttemptPlan, space: SnapshotSpace | None, on_excess: Callable[[int, int], None]
) -> MemoryWatch | None:
    """Watches what a command makes in the memory of its machine; None: it has none there, or has that of its job.

    `on_excess` is called with the bytes of its files and with how many they may have.
    """
    if space is None or space.confined is not None:
        return None
    most = plan.max_shm_bytes or most_bytes(space.memory)
    return MemoryWatch(space.memory, space.own, space.record, most, lambda size: on_excess(size, most))


def memory_folder_watch(
    space: SnapshotSpace | None, workers: int, on_excess: Callable[[int, int], None]
) -> DiskWatch | None:
    """Watches what the `workers` commands of a job have in the folder that is their memory; None: the kernel limits it.

    `on_excess` is called as by `memory_watch`.
    """
    memory = None if space is None else space.confined
    if memory is None or (most := memory.watched_bytes) is None:
        return None
    return DiskWatch(
        [memory.shared], most, lambda size: on_excess(size, most), workers=workers, pause_s=_MEMORY_PAUSE_S
    )


#: A script that read data by its path finds nothing there.
_VIEW = (
    "the command sees the system's files and those of its job alone, not the home of the node's user, nor folders such"
    " as /data or /mnt: name data as inputs (docs/local-cluster.md)"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CommandConfinement:
    """What the command of one worker may see and write; all of it belongs to the job's user."""

    plan: AttemptPlan
    #: The user and the view of the job's commands here; None: they are those of the node.
    job: ConfinedJob | None
    #: The folder of the worker group.
    group: Path
    prepared: Preparation
    snapshots: SnapshotSpace | None
    #: The folder with the secrets of this worker; None: it has none.
    secrets: Path | None
    python: WorkerPython | None

    def apply(self, launch: LaunchContext, say: Callable[[str], None]) -> LaunchContext:
        """Give the worker's folders to the job's user; returns how its commands become that user's.

        `say` is called with lines for the job's log.  Raises IsolationImpossible where commands may not run without a
        user of their own.
        """
        job, is_contained = self.job, self.prepared.container is not None
        if job is None or (is_contained and not self._may_confine_containers(say)):
            return launch
        if job.has_namespaces and launch.identity.rank == 0:
            say(_VIEW)
        memory = None if self.snapshots is None else self.snapshots.confined
        job.own(launch.code, launch.scratch, launch.outputs, launch.exchange)
        shown = [Shown(source=path, target=path) for path in self._read(job, launch)]
        shown.append(Shown(source=self.group, target=self.group, is_read_only=False))
        if is_contained:
            return dataclasses.replace(launch, confinement=job.in_container(shown, memory))
        shown += job.named_by(unwrap(self.plan.command).command[0])
        if self.python is not None:
            job.own(self.python.python.parent.parent)
        return dataclasses.replace(launch, confinement=job.on_node(shown, memory))

    def _read(self, job: ConfinedJob, launch: LaunchContext) -> list[Path]:
        """What the command reads besides the folder of its group."""
        read = [*self.prepared.inputs.values(), *([launch.resume] if launch.resume is not None else [])]
        if self.prepared.built is not None:
            read += environment_folders(self.prepared.built)
        if self.prepared.container is not None:
            read.append(public_package())
        if self.secrets is not None:
            # It lies in the memory of the node, of which the command sees nothing else.
            job.own(self.secrets)
            read.append(self.secrets)
        return read

    def _may_confine_containers(self, say: Callable[[str], None]) -> bool:
        """Whether a job's user exists in containers: not in the user namespaces that podman makes without root."""
        has_namespaces = self.job is not None and self.job.has_namespaces
        if os.geteuid() == 0 and not has_namespaces:
            return True
        why = "containers of this node have no user for the job, because its service is not root"
        if has_namespaces:
            why = "a command in a container has the namespaces of the container, which show more of this node"
        if self.plan.isolation in ("users", "namespaces"):
            raise IsolationImpossible(
                f"the node runs no command: isolation is {self.plan.isolation}, and {why}; leave environment.image out"
            )
        say(f"{why}: the command runs with the rights of the node")
        return False
