"""Runs what a job wants to be run for its environment as a user that only this build has.

Source distributions and `environment.setup` are code of the job, and the environment that they make serves others
later.  So they write into it as a user of their own, which is gone with all of its processes before the environment
belongs to the node again; they see no cache of the node, and work on a copy of the job's code.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import resource
import shutil
import stat
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from remora import cgroups
from remora.cgroups import Cgroup
from remora.isolation import Isolation
from trainers.confined_folders import OutsideFolder
from trainers.environments.commands import EnvironmentFailed, ProcessBounds, program_variables
from trainers.isolation import confinement
from trainers.isolation.confined import ConfinedJob, confined_job
from trainers.isolation.giving import give
from trainers.isolation.mounts import Shown
from trainers.isolation.variables import machine_variables
from trainers.node_folders import shared_folder

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ConfinedBuild:
    """The user of one build, and its copy of the code."""

    code: Path
    #: What holds the processes of its commands.
    bounds: ProcessBounds
    _job: ConfinedJob
    _cache: Path
    _words: tuple[str, ...]

    def command(self, words: list[str]) -> list[str]:
        """The same command, run as that user."""
        return [sys.executable, "-S", "-E", confinement.__file__, *self._words, *words]

    def variables(self, more: Mapping[str, str]) -> dict[str, str]:
        """Environment variables of its commands: those that every command may see, and `more`."""
        caches = {"UV_CACHE_DIR": str(self._cache), "PIP_CACHE_DIR": str(self._cache), "UV_LINK_MODE": "copy"}
        return {**program_variables(machine_variables(os.environ)), **self._job.variables(), **caches, **more}


@contextlib.contextmanager
def confined_build(
    asked: Isolation, folder: Path, code: Path, reads: list[Path], most_processes: int
) -> Iterator[ConfinedBuild | None]:
    """While the context is open the environment in `folder` belongs to its user, then to this one again.

    `code` is the folder of the job's code, `reads` what else its commands read, the folder of the
    Python below it for one: `folder` may hold what the job has put there.  Its user has `most_processes` at once.
    None: commands are not confined here.
    Raises IsolationImpossible, OSError, and EnvironmentFailed for folders in too many others.
    """
    with shared_folder(name := f"build-{folder.name[:16]}-{os.getpid()}") as own:
        try:
            with confined_job(asked, f"build {folder.name}", own, own) as job:
                if job is None:
                    yield None
                    return
                copy, cache = own / "code", own / "cache"
                shutil.copytree(code, copy, symlinks=True)
                cache.mkdir()
                job.own(folder, copy, cache)
                shown = [Shown(source=path, target=path) for path in reads]
                shown += [
                    Shown(source=path, target=path, is_read_only=False)
                    for path in (folder, copy, cache, job.home)
                ]
                walls = json.dumps(job.on_node(shown, None).fields())
                with _bounds(name, most_processes) as bounds:
                    yield ConfinedBuild(copy, bounds, job, cache, (walls, str(copy)))
        finally:
            # No process of the build lives any more.
            try:
                give(folder, os.geteuid())
            except OutsideFolder as error:
                raise EnvironmentFailed(f"the environment cannot be kept: {error}") from None
            _open_to_all(folder)


@contextlib.contextmanager
def _bounds(name: str, most: int) -> Iterator[ProcessBounds]:
    """What holds a build's processes: a cgroup that ends with the context, where there are none a limit of its user.

    The user's limit counts what its number's last user has left to be reaped too, so that it comes second.
    Raises OSError when processes outlive the context.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    cgroup = _made(name)
    if cgroup is None:
        yield ProcessBounds(processes=most)
        return
    try:
        entered = (cgroup.path, *([cgroup.counting] if cgroup.counting is not None else []))
        yield ProcessBounds(cgroups=entered, processes=None if cgroup.limit(most) else most)
    finally:
        try:
            cgroup.end()
        except cgroups.ProcessesRemain as error:
            raise OSError(str(error)) from None


def _made(name: str) -> Cgroup | None:
    cgroup = cgroups.owned(name)
    if cgroup is None:
        return None
    try:
        cgroup.make()
    except OSError as error:
        log.warning("no cgroup could be made for a build: %s", error)
        cgroup.remove()
        return None
    return cgroup


def _open_to_all(folder: Path) -> None:
    """Let users of jobs read what the build has made, and only this user write to it."""
    for _, folders, files, above in os.fwalk(folder):
        for name in (*folders, *files):
            mode = os.stat(name, dir_fd=above, follow_symlinks=False).st_mode
            if not stat.S_ISLNK(mode):
                may_run = 0o555 if mode & stat.S_IXUSR else 0o444
                os.chmod(name, (mode & 0o700) | may_run, dir_fd=above)
