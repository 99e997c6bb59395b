"""Prepares on a node what a command needs before it begins: its environment or container, and its inputs."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainers.containers.arguments import Mount, gpu_devices
from trainers.containers.container import Container, container
from trainers.containers.images import node_image
from trainers.environments.build import BuiltEnvironment, environment
from trainers.inputs.download import fetched
from trainers.job_storage import JobStorages
from trainers.plan import AttemptPlan
from trainers.public_package import public_folder, public_package
from trainers.supervisor.device import Devices, devices_of_node

#: What nodes with InfiniBand have, and those with GPUs of Intel.
_INFINIBAND, _INTEL = Path("/dev/infiniband"), Path("/dev/dri")


@dataclass(frozen=True, kw_only=True)
class NodeFolders:
    """Folders of one worker on its node."""

    #: Of its worker group: code, outputs and files on their way to the storage lie in it.
    group: Path
    #: The job's code, in that folder.
    code: Path
    #: For temporary files; may be a link.
    temporary: Path
    #: The checkpoint to resume from, None: there is none.
    resume: Path | None = None
    #: The job's own memory, None: it has that of the machine.
    memory: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """What one worker's command finds on its node."""

    #: The inputs of the job, by name.
    inputs: Mapping[str, Path] = field(default_factory=dict)
    #: The Python environment of the job; None: it has none of its own.
    built: BuiltEnvironment | None = None
    #: The container that the command enters; None: it runs on the node itself.
    container: Container | None = None
    #: What the driver records.
    facts: Mapping[str, Any] = field(default_factory=dict)


def prepare_node(
    plan: AttemptPlan,
    storages: JobStorages,
    folders: NodeFolders,
    in_use: contextlib.ExitStack,
    say: Callable[[str], None],
    show: Callable[[str, str], None],
    stop: threading.Event,
) -> Preparation:
    """Prepare what the plan asks for; it stays as long as `in_use` is open.

    `say` is called with lines for the job's log, `show` with what is being prepared and how far that is; it ends when
    `stop` is set.
    Raises EnvironmentFailed, EnvironmentImpossible, InputMissing, StorageError, OSError.
    """
    built = image = inside = None
    facts: dict[str, Any] = {"digest": None, "build_s": 0.0, "packages": 0}

    def showing(what: str) -> Callable[[str], None]:
        return lambda state: show(what, state)

    if plan.environment is not None:
        asked = environment(
            plan.environment,
            folders.code,
            say,
            bundle=plan.bundle,
            show=showing("environment"),
            stop=stop,
            isolation=plan.isolation,
            most_processes=plan.max_processes,
        )
        built = in_use.enter_context(asked)
        facts = {"digest": built.digest, "build_s": round(built.build_s, 3), "packages": built.packages}
    if plan.image is not None:
        image = node_image(plan.image, say, showing("image"), stop)
        facts = {"digest": image.id, "build_s": round(image.pull_s, 3), "packages": 0}
    inputs = in_use.enter_context(
        fetched(
            plan.inputs,
            say,
            showing("inputs"),
            stop=stop,
            opened=storages.open,
            ask=storages.ask,
            mount_cache_bytes=plan.mount_cache_bytes,
        )
    )
    if image is not None:
        mounts = worker_mounts(folders, inputs)
        gpus = plan.resources.get("GPU", 0.0)
        devices = worker_devices(gpus, devices_of_node(), os.environ.get("CUDA_VISIBLE_DEVICES"))
        inside = in_use.enter_context(container(image.id, mounts, devices, stop))
    return Preparation(inputs=inputs, built=built, container=inside, facts=facts)


def worker_mounts(folders: NodeFolders, inputs: Mapping[str, Path]) -> list[Mount]:
    """Folders of the node that a command in a container sees, under the paths that its variables name.

    Memory (/dev/shm) is the node's own without being listed.  Raises OSError.
    """
    public_folder(folders.group)
    read = [public_package(), *inputs.values()]
    if folders.resume is not None:
        read.append(folders.resume)
    # One in the folder of the group is there with that.
    shown = [path for path in read if not path.is_relative_to(folders.group)]
    return [
        *(Mount(source=path.resolve(), target=path) for path in (folders.group, folders.temporary)),
        *([Mount(source=folders.memory, target=folders.memory)] if folders.memory is not None else []),
        *(Mount(source=path.resolve(), target=path, is_read_only=True) for path in shown),
    ]


def worker_devices(gpus: float, seen: Devices, visible: str | None) -> list[str]:
    """Devices of a worker with this number of GPUs; `visible` is the node's CUDA_VISIBLE_DEVICES for it."""
    found = [str(_INFINIBAND)] if _INFINIBAND.is_dir() else []
    if gpus and "nvidia" in seen.gpu_vendors:
        found += gpu_devices(visible)
    if gpus and "intel" in seen.gpu_vendors and _INTEL.is_dir():
        found.append(str(_INTEL))
    return found
