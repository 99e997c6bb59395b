"""Makes the container of a worker with podman, and removes it at the worker's end, or later what a killed one has left.

podman prepares everything (files, mounts, devices) and starts nothing: the command is a child of its shim as without a
container, and enters the container before its first instruction.  A lock in a folder of this user says that a container
is in use; it is older than the container and is removed after it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import resource
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from remora.private_files import is_private
from trainers.containers.arguments import LABEL, ContainerLimits, Mount, create_arguments
from trainers.containers.podman import run_podman
from trainers.environments.commands import EnvironmentFailed, TimeLimit
from trainers.node_folders import shared_folder, sweep_folders

log = logging.getLogger(__name__)

#: Seconds that making a container may take: without an overlay file system podman copies the image.
_MAKE_S = 900.0
#: Seconds that removing one may take.
_REMOVE_S = 60.0
#: Bytes of what podman writes about a container.
_MOST_BYTES = 8 * 2**20
#: Where the locks of all containers of this user on this machine lie.
_ROOT = Path("/tmp")  # noqa: S108 - private below it
#: How the names of containers begin.
_PREFIX = "remora-"


@dataclass(frozen=True, kw_only=True)
class Container:
    """A container that is prepared."""

    #: A process in it, which waits there until the container is removed.
    pid: int
    #: Environment variables that the image and the devices ask for.
    variables: dict[str, str]


@contextlib.contextmanager
def container(
    image: str, mounts: Sequence[Mount], devices: Sequence[str], stop: threading.Event | None = None
) -> Iterator[Container]:
    """A container of the image with this id, as long as the context is open.

    Raises EnvironmentFailed with podman's last lines, OSError.
    """
    root = _root()
    root.mkdir(exist_ok=True, mode=0o700)
    if not is_private(root):
        raise PermissionError(f"{root} is no folder of this user alone; remove it")
    limit = TimeLimit(
        stop or threading.Event(), time.monotonic() + _MAKE_S, "podman takes too long to make the container"
    )
    _remove_forgotten(root, limit)
    with shared_folder(f"{_PREFIX}{uuid.uuid4().hex[:16]}", root, _remove) as folder:
        placeholder = folder / "never-started"
        placeholder.touch(mode=0o755)
        words = create_arguments(folder.name, image, mounts, devices, placeholder, _limits())
        run_podman("podman could not make the container", words, limit)
        run_podman("podman could not prepare the container", ["init", folder.name], limit)
        yield _container(folder.name, limit)


def sweep_containers() -> None:
    """Remove the containers of killed supervisors; asks podman only where there are some."""
    root = _root()
    with contextlib.suppress(OSError):
        if is_private(root):
            sweep_folders(root, _remove)


def _root() -> Path:
    return _ROOT / f"remora-containers-{os.getuid()}"


def _remove_forgotten(root: Path, limit: TimeLimit) -> None:
    """Remove containers without a lock: of a machine that was restarted meanwhile."""
    names = run_podman(
        "podman cannot list its containers",
        ["ps", "--all", "--filter", f"label={LABEL}", "--format", "{{.Names}}"],
        limit,
    )
    for name in names:
        if name.startswith(_PREFIX) and not (root / f"{name}.lock").exists():
            _remove(root / name)


def _remove(folder: Path) -> bool:
    """Remove the container that is named like its folder, if there is one; False when that was not possible."""
    words = ["rm", "--force", "--ignore", "--time", "0", "--volumes", folder.name]
    limit = TimeLimit(deadline=time.monotonic() + _REMOVE_S)
    try:
        run_podman("podman could not remove the container", words, limit)
    except EnvironmentFailed as error:
        log.warning("%s: %s", folder.name, error)
        return False
    return True


def _limits() -> ContainerLimits:
    return ContainerLimits(
        files=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        processes=resource.getrlimit(resource.RLIMIT_NPROC)[1],
        most_pids=int(Path("/proc/sys/kernel/pid_max").read_text()),
    )


def _container(name: str, limit: TimeLimit) -> Container:
    words = ["inspect", "--format", "{{.State.Pid}} {{.OCIConfigPath}}", name]
    line = run_podman("podman does not find the container", words, limit)[-1]
    pid, _, path = line.partition(" ")
    with Path(path).open("rb") as file:
        written = json.loads(file.read(_MOST_BYTES))
    pairs = (one.partition("=") for one in written["process"]["env"])
    return Container(pid=int(pid), variables={key: value for key, _, value in pairs})
