"""The user and the view of one job's commands on a node, as long as a worker of the job lives there.

`ConfinedJob` is what a supervisor has of it: it gives folders to the job's user, and says for each command what its
forked process has to do (`trainers/isolation/confinement.py`).  Where commands have namespaces in place of users, that
user is the node's own.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remora.isolation import Isolation, UidRange, decide
from remora.machine_isolation import offered
from remora.network_filter import need_users
from trainers.confined_folders import OutsideFolder
from trainers.isolation.giving import give
from trainers.isolation.memory import SEEN, JobMemory
from trainers.isolation.mounts import MountStep, Shown, mount_steps
from trainers.isolation.network import guarded_network
from trainers.isolation.node_view import (
    device_groups,
    environment_of,
    steps_for_namespaces,
    steps_for_user,
)
from trainers.isolation.project_cache import ProjectCache, project_cache
from trainers.isolation.users import job_user
from trainers.node_folders import work_root

#: What a job's user is called where programs ask for a name.
USER_NAME = "remora-job"
#: In the folder of the worker group: the home of the job's user, and what stands for the cache of the project.
_HOME, _KEPT = "home", "kept"


@dataclass(frozen=True)
class Confinement:
    """What the forked process of one command does before it runs anything of the job."""

    uid: int
    #: Its own group first.
    groups: tuple[int, ...]
    steps: tuple[MountStep, ...]
    #: It stays the node's user, in namespaces of its own.
    has_namespaces: bool = False

    def fields(self) -> dict[str, Any]:
        """As `trainers.isolation.confinement.confine` reads it, in JSON or marshalled."""
        steps = [
            {
                "source": str(one.source) if one.source is not None else "",
                "target": str(one.target),
                "is_read_only": one.is_read_only,
                "owner": -1 if one.owner is None else one.owner,
            }
            for one in self.steps
        ]
        return {
            "uid": self.uid,
            "groups": list(self.groups),
            "steps": steps,
            "has_namespaces": self.has_namespaces,
        }


@dataclass(frozen=True, kw_only=True)
class ConfinedJob:
    """One job on this node; its folders are those of all its workers here."""

    uid: int
    groups: tuple[int, ...]
    #: What no other job of this machine is called at the same time: a name for a file.
    name: str
    #: Its commands are the node's user, in namespaces of their own.
    has_namespaces: bool = False
    #: A folder of the node's user for the job's temporary files.
    temporary: Path
    #: The home of the job's user.
    home: Path
    #: Where its commands find what earlier jobs of its project have kept; without those, a folder of its own.
    kept: Path
    cache: ProjectCache | None = None

    def own(self, *paths: Path) -> None:
        """Give files and folders, with all that is in them, to the job's user.  Raises OSError.

        A script may run in them already: no link is followed, and what vanishes meanwhile is passed over.
        """
        if self.has_namespaces:
            return
        for path in paths:
            # Folders that lie too deep were made by a script of the job, and are its own.
            with contextlib.suppress(FileNotFoundError, OutsideFolder):
                give(path, self.uid)

    def variables(self) -> dict[str, str]:
        """Environment variables that are not those of the node's user."""
        return {"HOME": str(self.home), "USER": USER_NAME, "LOGNAME": USER_NAME, "TMPDIR": "/tmp"}  # noqa: S108

    def cache_variables(self) -> dict[str, str]:
        """Variables by which libraries find `kept`."""
        return {
            "XDG_CACHE_HOME": str(self.kept),
            "HF_HOME": str(self.kept / "huggingface"),
            # A token that one user enters is not kept for others.
            "HF_TOKEN_PATH": str(self.home / ".huggingface-token"),
            "TRITON_CACHE_DIR": str(self.kept / "triton"),
            "TORCHINDUCTOR_CACHE_DIR": str(self.kept / "torchinductor"),
        }

    def on_node(self, shown: Iterable[Shown], memory: JobMemory | None) -> Confinement:
        """For a command that runs among the files of the node, of which it needs `shown`."""
        every = [*self._own_places(memory), *shown]
        if self.cache is not None:
            folder, owner = self.cache.folder, None if self.has_namespaces else self.cache.owner
            every.append(Shown(source=folder, target=self.kept, is_read_only=False, owner=owner))
        every.append(Shown(source=self.temporary / "passwd", target=Path("/etc/passwd")))
        steps = steps_for_namespaces(every) if self.has_namespaces else steps_for_user(every)
        return Confinement(self.uid, self.groups, steps, self.has_namespaces)

    def named_by(self, program: str) -> list[Shown]:
        """What a command has to be shown because the job names its `program` by a path on the node."""
        return environment_of(program) if self.has_namespaces else []

    def in_container(self, shown: Iterable[Shown], memory: JobMemory | None) -> Confinement:
        """For a command that has entered a container, in which folders of the node have the same paths.

        Only what lies in a folder that the job's own ones replace has to be `shown` again.
        """
        steps = mount_steps([*self._own_places(memory), *shown], (), lambda _: False)
        return Confinement(self.uid, self.groups, steps)

    def _own_places(self, memory: JobMemory | None) -> list[Shown]:
        places = {"/tmp": "tmp", "/var/tmp": "var-tmp"}  # noqa: S108 - the job's own ones are shown there
        found = [
            Shown(source=self.temporary / name, target=Path(path), is_read_only=False)
            for path, name in places.items()
        ]
        shared = self.temporary / "shm" if memory is None else memory.shared
        if SEEN.is_dir():
            found.append(Shown(source=shared, target=SEEN, is_read_only=False))
        return found


@contextlib.contextmanager
def confined_job(
    asked: Isolation, attempt_id: str, folder: Path, temporary: Path, project: str = "", cache_bytes: int = 0
) -> Iterator[ConfinedJob | None]:
    """The job of this attempt, whose folders on this node are `folder` and `temporary`; None: it is not confined.

    It shares up to `cache_bytes` with other jobs of its `project`, if that has a name.

    While the context is open, what this process makes may be read by others, whatever umask the node has: the job's
    user reads it, and the folders above are closed.  Raises IsolationImpossible, OSError.
    """
    walls = decide(asked, offered(asked))
    if walls is None:
        yield None
        return
    need_users(walls)
    if walls == "namespaces":
        opened = _job_in_namespaces(attempt_id, folder, temporary.resolve(), project, cache_bytes)
    else:
        opened = _job_with_user(walls, attempt_id, folder, temporary.resolve(), project, cache_bytes)
    with opened as job:
        yield job


@contextlib.contextmanager
def _job_in_namespaces(
    attempt_id: str, folder: Path, temporary: Path, project: str, cache_bytes: int
) -> Iterator[ConfinedJob]:
    uid, gid = os.geteuid(), os.getegid()
    digest = hashlib.sha256(_name_of(attempt_id).encode()).hexdigest()
    with project_cache(project, uid, cache_bytes) as cache:
        _make_places(folder, temporary, uid, gid)
        yield ConfinedJob(
            uid=uid,
            groups=(gid,),
            name=f"job{digest[:16]}",
            has_namespaces=True,
            temporary=temporary,
            home=folder / _HOME,
            kept=folder / _KEPT,
            cache=cache,
        )


@contextlib.contextmanager
def _job_with_user(
    uids: UidRange, attempt_id: str, folder: Path, temporary: Path, project: str, cache_bytes: int
) -> Iterator[ConfinedJob]:
    with (
        # Left last: all of the job's processes have ended then.
        project_cache(project, uids.last + 1, cache_bytes) as cache,
        job_user(_name_of(attempt_id), uids) as uid,
        guarded_network(uids),
        _usual_umask(),
    ):
        folder.chmod(0o755)
        _make_places(folder, temporary, uid, uid)
        yield ConfinedJob(
            uid=uid,
            groups=(uid, *device_groups(Path("/"))),
            name=f"user{uid}",
            temporary=temporary,
            home=folder / _HOME,
            kept=folder / _KEPT,
            cache=cache,
        )


def _name_of(attempt_id: str) -> str:
    """Nodes that are simulated on one machine have work folders, and users, of their own."""
    return f"{attempt_id} {work_root()}"


def _make_places(folder: Path, temporary: Path, uid: int, gid: int) -> None:
    """The folders of a job that its commands see in place of those of the node."""
    home, kept = folder / _HOME, folder / _KEPT
    for path in (home, kept, *(temporary / name for name in ("tmp", "var-tmp", "shm"))):
        path.mkdir(exist_ok=True)
        path.chmod(0o700 if path in (home, kept) else 0o1777)
        os.chown(path, uid, gid)
    _write_names(temporary / "passwd", uid, gid)


@contextlib.contextmanager
def _usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    try:
        yield
    finally:
        os.umask(before)


def redirected(environment: Mapping[str, str], job: ConfinedJob | None) -> dict[str, str]:
    """Environment variables of a node's programs as the job's user has them."""
    return dict(environment) if job is None else {**environment, **job.variables()}


def _write_names(path: Path, uid: int, gid: int) -> None:
    """The node's names of users, with one for the job's: some programs want one, and take the first."""
    if path.exists():
        return
    known = Path("/etc/passwd").read_bytes() if Path("/etc/passwd").exists() else b""
    draft = path.with_name(f"passwd.{os.getpid()}")
    draft.write_bytes(f"{USER_NAME}:x:{uid}:{gid}::/:/bin/sh\n".encode() + known)
    draft.chmod(0o444)
    draft.replace(path)
