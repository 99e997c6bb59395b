"""Control groups of Linux: every process below one is found and ended, whatever it did to its parents or environment.

Version 2 (`cgroup.kill`) holds the processes; their number is limited by the controller `pids` of version 2 or, where
both versions are mounted, of version 1.  Used by the platform's own processes on a node; needs no right beyond writing
to the folder of the cgroup in which this process was started.  Standard library only.

Source: https://docs.kernel.org/admin-guide/cgroup-v2.html
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

#: Name of a cgroup that holds the processes of a node while its neighbours hold those of commands: a cgroup of version
#: 2 that has processes of its own cannot give its children a controller.
LEAF = "ray"
#: How the names of all cgroups begin that are made here.
_PREFIX = "remora-"
#: Seconds that the kernel may take to end killed processes.
_KILL_S = 10.0
#: Seconds between two looks, should the kernel's notification not come.
_LOOK_S = 0.1


class ProcessesRemain(Exception):
    """Processes of a cgroup did not end although they were killed; the message names the cgroup."""


@dataclass(frozen=True, kw_only=True)
class Walls:
    """What this machine offers to hold processes together."""

    #: Below it this process may make cgroups of version 2; None: nowhere.
    folder: Path | None
    #: Below it this process may make cgroups of version 1 that count processes; None: nowhere.
    counting: Path | None = None
    #: True when cgroups below `folder` can limit the number of their processes.
    counts: bool = False
    #: Why there is no `folder`.
    why_not: str = ""

    @property
    def sentence(self) -> str:
        """What holds processes here, for people."""
        if self.folder is None:
            return (
                f"processes of jobs are held by subreapers, for there are no control groups ({self.why_not}):"
                " a script that kills its shims can leave processes behind until its node ends, and nothing limits"
                " their number"
            )
        limit = "" if self.counts or self.counting else "; nothing limits their number"
        return f"processes of jobs are held in control groups below {self.folder}{limit}"


@dataclass(frozen=True)
class Cgroup:
    """One cgroup with all below it; building it touches nothing."""

    path: Path
    #: The cgroup of version 1 that counts its processes, when another than `path` does.
    counting: Path | None = None

    def make(self, *below: str) -> None:
        """Make it, with cgroups of these names in it.  Raises OSError."""
        for folder in (self.path, *(self.path / name for name in below), self.counting):
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)

    def limit(self, processes: int) -> bool:
        """Limit the number of its processes and threads; False where nothing can count them."""
        with contextlib.suppress(OSError):
            ((self.counting or self.path) / "pids.max").write_text(f"{processes}\n")
            return True
        return False

    def processes(self) -> list[int]:
        """Process ids of all that live in it or below it."""
        return [pid for folder in _folders(self.path) for pid in _numbers(folder / "cgroup.procs")]

    def send_kill(self) -> None:
        """Kill all processes in it and below it, and wait for nothing; fine when there is no such cgroup."""
        with contextlib.suppress(OSError):
            (self.path / "cgroup.kill").write_text("1\n")

    def kill(self, timeout_s: float = _KILL_S) -> int:
        """Kill all processes in it and below it and wait for their end; returns how many there were.

        Fine when there is no such cgroup.  Raises ProcessesRemain.
        """
        count = len(self.processes())
        self.send_kill()
        with contextlib.suppress(FileNotFoundError):
            self._wait_empty(timeout_s)
        return count

    def remove(self) -> bool:
        """Remove it with all below it; False while it has processes or cannot be removed.  Fine when it is gone."""
        for folder in (*reversed(_folders(self.path)), self.counting):
            if folder is None:
                continue
            try:
                folder.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                return False
        return True

    def end(self, timeout_s: float = _KILL_S) -> int:
        """Kill all that lives in it, wait, and remove it; returns how many processes there were.

        Raises ProcessesRemain.
        """
        count = self.kill(timeout_s)
        self.remove()
        return count

    def _wait_empty(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        with (self.path / "cgroup.events").open("rb") as events:
            poll = select.poll()
            poll.register(events, select.POLLPRI)
            while _is_populated(events.fileno()):
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    pids = ", ".join(str(pid) for pid in self.processes()[:20])
                    raise ProcessesRemain(
                        f"processes {pids} of {self.path} did not end within {timeout_s:g} s of SIGKILL"
                    )
                poll.poll(min(left_s, _LOOK_S) * 1000)


def _is_populated(events: int) -> bool:
    """What an open `cgroup.events` says; one that another process has removed meanwhile was empty."""
    try:
        return b"populated 1" in os.pread(events, 4096, 0)
    except OSError as error:
        if error.errno == errno.ENODEV:
            return False
        raise


def own_places(mountinfo: str, own: str) -> tuple[Path | None, Path | None]:
    """Folders of the cgroups that a process is in: that of version 2, and that of version 1's `pids` (pure).

    `mountinfo` and `own` are the texts of its /proc/PID/mountinfo and /proc/PID/cgroup.  None: there is none.
    """
    paths: dict[str, str] = {}
    for line in own.splitlines():
        _, controllers, path = line.split(":", 2)
        paths.update(dict.fromkeys(controllers.split(","), path))
    unified: Path | None = None
    counting: Path | None = None
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        root, mount, options = before.split()[3:6]
        kind, _, special = after.split()[:3]
        if "rw" not in options.split(","):
            continue
        if kind == "cgroup2" and "" in paths:
            unified = unified or _below(mount, root, paths[""])
        elif kind == "cgroup" and "pids" in special.split(",") and "pids" in paths:
            counting = counting or _below(mount, root, paths["pids"])
    return unified, counting


def _below(mount: str, root: str, path: str) -> Path | None:
    """Where a cgroup stands when the cgroup `root` is mounted at `mount`; None when it lies outside of that."""
    if ".." in path.split("/") or not Path(path).is_relative_to(root):
        return None
    return Path(_unescaped(mount)) / Path(path).relative_to(root)


def _unescaped(text: str) -> str:
    return text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")


@cache
def walls() -> Walls:
    """What this process may make on this machine; tried out once."""
    try:
        own, counting = own_places(
            Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text()
        )
    except (OSError, ValueError) as error:
        return Walls(folder=None, why_not=str(error))
    if own is None:
        return Walls(folder=None, why_not="no version 2 of them is mounted for writing")
    folder = own.parent if own.name == LEAF else own
    trial = Cgroup(folder / f"{_PREFIX}trial-{os.getpid()}")
    try:
        trial.make()
        has_kill = (trial.path / "cgroup.kill").exists()
        trial.remove()
        if not has_kill:
            return Walls(folder=None, why_not="this kernel is older than Linux 5.14")
        # Moving a process needs the right at the nearest cgroup above both places.
        (folder / "cgroup.procs").open("w").close()
    except OSError as error:
        return Walls(folder=None, why_not=f"{folder}: {error.strerror}")
    return Walls(folder=folder, counting=_counting(counting), counts=_counts(folder))


def _counts(folder: Path) -> bool:
    """True when cgroups below the folder can count processes, now or because this process arranged it."""
    control = folder / "cgroup.subtree_control"
    with contextlib.suppress(OSError):
        if "pids" not in (folder / "cgroup.controllers").read_text().split():
            return False
        if "pids" in control.read_text().split():
            return True
        # With processes of its own its children would become useless for commands.
        if not _numbers(folder / "cgroup.procs"):
            control.write_text("+pids\n")
            return True
    return False


def _counting(folder: Path | None) -> Path | None:
    """The folder of version 1 when cgroups can be made below it."""
    if folder is None:
        return None
    trial = folder / f"{_PREFIX}trial-{os.getpid()}"
    try:
        trial.mkdir(exist_ok=True)
        trial.rmdir()
    except OSError:
        return None
    return folder


def owned(name: str) -> Cgroup | None:
    """A cgroup of this name for as long as this process lives, not made yet; None where there is none to have.

    `sweep` ends it once this process is gone.  `name`: letters, digits, '_' and '-'.
    """
    here = walls()
    if here.folder is None:
        return None
    full = f"{_PREFIX}{name}.{_pid_namespace()}.{os.getpid()}.{_start(os.getpid())}"
    counting = None if here.counts or here.counting is None else here.counting / full
    return Cgroup(here.folder / full, counting)


def sweep() -> int:
    """End all cgroups whose owners are gone; returns how many processes were killed.  Raises ProcessesRemain."""
    here = walls()
    count = 0
    for path in _left_behind(here.folder):
        counting = here.counting / path.name if here.counting is not None else None
        count += Cgroup(path, counting).end()
    for path in _left_behind(here.counting):
        with contextlib.suppress(OSError):
            path.rmdir()
    return count


def _left_behind(folder: Path | None) -> list[Path]:
    """Cgroups below a folder that belonged to processes of this machine which do not live any more."""
    found = sorted(folder.glob(f"{_PREFIX}*.*.*.*")) if folder is not None else []
    return [path for path in found if _is_left_behind(path.name)]


def _is_left_behind(name: str) -> bool:
    _, namespace, pid, start = name.rsplit(".", 3)
    # Of another container nothing can be said from here.
    return namespace == _pid_namespace() and pid.isdecimal() and _start(int(pid)) != start


def _start(pid: int) -> str | None:
    """When a process was started, in clock ticks of the machine's life; None when it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *fields = stat.rpartition(")")[2].split()
    return None if state in "ZX" else fields[18]


@cache
def _pid_namespace() -> str:
    return str(Path("/proc/self/ns/pid").stat().st_ino)


def _folders(root: Path) -> list[Path]:
    """A cgroup and all below it, each before those in it; a script may have made some."""
    found = [root] if root.is_dir() else []
    found.extend(Path(at) / name for at, names, _ in os.walk(root) for name in names)
    return found


def _numbers(path: Path) -> list[int]:
    try:
        return [int(line) for line in path.read_text().split()]
    except OSError as error:
        # Removed meanwhile, or a threaded cgroup, whose processes its parent lists.
        if error.errno in (errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP):
            return []
        raise
