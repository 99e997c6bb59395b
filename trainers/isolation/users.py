"""Gives each job on a machine a user of its own, which no other job has while one of its processes may live.

A user is a number of the node's range; /etc/passwd knows none of them.  For each there is a file in a folder of the
node's user: its lock is shared by the supervisors of one job's workers, and it names the job.  What is left of a killed
supervisor's job is ended before its number is given to another one.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from remora.isolation import IsolationImpossible, UidRange
from remora.private_files import is_private, open_lock
from trainers.isolation.kernel_objects import remove_objects

log = logging.getLogger(__name__)

#: Where the locks of all users of the machine lie, in a folder of the node's user.
_ROOT = Path("/tmp")  # noqa: S108 - private below it
#: Name of the file with the number at which the search for the next user begins.
_NEXT = "next"
#: Characters of a job's name in a lock that are read.
_NAME_LENGTH = 400
#: Seconds in which killed processes of a user are gone, and that the process which kills them may take.
_END_S, _KILL_S = 10.0, 2.0
#: Run as the user whose processes it ends, itself included: the kernel signals all of them at once.  Where the node's
#: user is not root, its capabilities outlive the change of users, and CAP_KILL would reach all processes there are.
_KILL = """
import ctypes, os, struct, sys
uid, libc = int(sys.argv[1]), ctypes.CDLL(None)
os.setgroups([])
os.setresgid(uid, uid, uid)
os.setresuid(uid, uid, uid)
libc.prctl(47, 4, 0, 0, 0)
libc.capset(struct.pack("Ii", 0x20080522, 0), bytes(24))
with open("/proc/self/status") as file:
    status = dict(line.split(":", 1) for line in file)
if int(status["CapEff"], 16) == int(status["CapPrm"], 16) == 0 and set(status["Uid"].split()) == {str(uid)} and uid:
    os.kill(-1, 9)
"""


@contextlib.contextmanager
def job_user(job: str, uids: UidRange) -> Iterator[int]:
    """The number of the user of `job` (any text of one line) on this machine, as long as the context is open.

    The last one that leaves ends every process of that user.  Raises IsolationImpossible when all numbers are in use,
    OSError.
    """
    root = _root()
    with _alone(root):
        uid, lock = _shared(root, job) or _fresh(root, job, uids)
    with lock:
        try:
            yield uid
        finally:
            with _alone(root):
                _leave(uid, lock, root)


def sweep_users() -> None:
    """End what is left of the jobs of killed supervisors.  Raises OSError."""
    root = _ROOT / _name()
    if not root.is_dir() or not is_private(root):
        return
    with _alone(root):
        for uid, path in _locks(root).items():
            with open_lock(path, make=False) as lock:
                if lock.read(1) and _is_free(lock):
                    _leave(uid, lock, root)


def end_user(uid: int) -> int:
    """Kill all processes of a user and wait for their end; returns how many were seen.  Raises OSError."""
    seen: set[int] = set()
    deadline = time.monotonic() + _END_S
    while found := processes_of(uid):
        seen.update(found)
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {found[:20]} of the user {uid} did not end")
        # A process of the user may stop the one that is to end it.
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                [sys.executable, "-I", "-S", "-c", _KILL, str(uid)],
                check=False,
                stderr=subprocess.DEVNULL,
                timeout=_KILL_S,
            )
        for pid in found:
            _end(pid, uid)
    return len(seen)


def _end(pid: int, uid: int) -> None:
    """Kill one process if it is still the user's: with the rights of the node, which another one must not meet."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        # What has taken the number since `pidfd_open` is not what is signalled.
        if _is_of(pid, uid):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(process, signal.SIGKILL)
    finally:
        os.close(process)


def processes_of(uid: int) -> list[int]:
    """Living processes of a user, by any of its numbers in /proc/PID/status."""
    every = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    return [pid for pid in every if _is_of(pid, uid)]


def _is_of(pid: int, uid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    is_dead = status.partition("\nState:\t")[2][:1] in "ZX"
    return str(uid) in status.partition("\nUid:")[2].partition("\n")[0].split() and not is_dead


def _root() -> Path:
    root = _ROOT / _name()
    root.mkdir(exist_ok=True, mode=0o700)
    if not is_private(root):
        raise PermissionError(f"{root} is no folder of this user alone; remove it")
    return root


def _name() -> str:
    return f"remora-users-{os.getuid()}"


@contextlib.contextmanager
def _alone(root: Path) -> Iterator[None]:
    """Hold the lock under which numbers are given and taken back."""
    with open_lock(root / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _locks(root: Path) -> dict[int, Path]:
    return {int(path.stem): path for path in root.glob("*.lock") if path.stem.isdecimal()}


def _shared(root: Path, job: str) -> tuple[int, IO[str]] | None:
    """The user that the job has already, with its lock shared."""
    for uid, path in _locks(root).items():
        lock = open_lock(path, make=False)
        if lock.read(_NAME_LENGTH) == job:
            fcntl.flock(lock, fcntl.LOCK_SH)
            return uid, lock
        lock.close()
    return None


def _fresh(root: Path, job: str, uids: UidRange) -> tuple[int, IO[str]]:
    """A user that no job has, with its lock shared."""
    used = _locks(root)
    for uid in _from_the_last(root, uids):
        if uid not in used and processes_of(uid):
            continue
        lock = open_lock(root / f"{uid}.lock")
        if _is_free(lock):
            _end_all_of(uid)
            (root / _NEXT).write_text(str(uid + 1))
            lock.truncate(0)
            lock.write(job[:_NAME_LENGTH])
            lock.flush()
            fcntl.flock(lock, fcntl.LOCK_SH)
            return uid, lock
        lock.close()
    raise IsolationImpossible(
        f"the node runs no command: all users {uids.first} to {uids.last} belong to jobs; widen REMORA_JOB_UIDS"
    )


def _from_the_last(root: Path, uids: UidRange) -> Iterator[int]:
    """All numbers, from the one after the last that was given: what a job left somewhere is not soon another one's."""
    try:
        first = int((root / _NEXT).read_text())
    except (FileNotFoundError, ValueError):
        first = uids.first
    yield from range(max(first, uids.first), uids.last + 1)
    yield from range(uids.first, min(first, uids.last + 1))


def _end_all_of(uid: int) -> int:
    """End a user's processes and remove what they left in the kernel; returns how many there were of the former."""
    count = end_user(uid)
    remove_objects(uid)
    return count


def _is_free(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _leave(uid: int, lock: IO[str], root: Path) -> None:
    """Give a number back if this is the last one that holds it; it stays taken where its processes do not end."""
    if not _is_free(lock):
        return
    try:
        if count := _end_all_of(uid):
            log.warning("%d processes of the user %d had outlived their job and were ended", count, uid)
        (root / f"{uid}.lock").unlink(missing_ok=True)
    except OSError as error:
        log.warning("the user %d is not given back: %s", uid, error)
