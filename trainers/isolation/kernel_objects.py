"""Removes what a user left in the kernel outside of every view: System V objects, and POSIX queues of messages.

They outlive all processes, and the next job with the same number would own them.

Source: sysvipc(7), proc(5), mq_overview(7).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

_LISTS, _QUEUES = Path("/proc/sysvipc"), Path("/dev/mqueue")
_IPC_RMID = 0
_LIBC = ctypes.CDLL(None, use_errno=True)
#: By the name of a list in /proc/sysvipc: the column with the number of an object, and what removes it.
_KINDS: dict[str, tuple[str, Callable[[int], int]]] = {
    "shm": ("shmid", lambda number: int(_LIBC.shmctl(number, _IPC_RMID, None))),
    "sem": ("semid", lambda number: int(_LIBC.semctl(number, 0, _IPC_RMID, 0))),
    "msg": ("msqid", lambda number: int(_LIBC.msgctl(number, _IPC_RMID, None))),
}


def remove_objects(uid: int) -> int:
    """Remove those that a user owns or has made; returns how many.  Raises OSError."""
    count = 0
    for name, (column, remove) in _KINDS.items():
        for number in objects_of(uid, name, column):
            if remove(number) == 0:
                count += 1
            elif objects_of(uid, name, column).count(number):
                error = ctypes.get_errno()
                raise OSError(error, f"{column} {number} of the user {uid} stays: {os.strerror(error)}")
    return count + _remove_queues(uid)


def objects_of(uid: int, name: str, column: str) -> list[int]:
    """Numbers of the System V objects of one kind; none where the kernel has no such list."""
    try:
        head, *lines = (_LISTS / name).read_text().splitlines()
    except FileNotFoundError:
        return []
    columns = head.split()
    rows = (dict(zip(columns, line.split(), strict=False)) for line in lines)
    return [int(row[column]) for row in rows if str(uid) in (row["uid"], row["cuid"])]


def _remove_queues(uid: int) -> int:
    count = 0
    for path in _QUEUES.iterdir() if _QUEUES.is_dir() else ():
        if path.lstat().st_uid == uid:
            path.unlink(missing_ok=True)
            count += 1
    return count
