"""Tries out, once in each process, whether this machine can keep commands of jobs apart.

`users` needs the rights of root, or the capabilities of the node's unit.  Used by the platform's own processes on a
node and by the start of the service.  Standard library only.

Source: mount_namespaces(7), proc(5).
"""

from __future__ import annotations

import ctypes
import os
import threading
from functools import cache
from pathlib import Path

from remora.isolation import UIDS_VARIABLE, USUAL_UIDS, Offer, missing, parse_uids

_CLONE_NEWNS, _MS_REC, _MS_SLAVE, _MS_PROC = 0x20000, 16384, 1 << 19, 2 | 4 | 8


@cache
def offered() -> Offer:
    """What this machine offers to this process; tried once."""
    try:
        uids = parse_uids(os.environ.get(UIDS_VARIABLE) or USUAL_UIDS)
        status, uid_map = Path("/proc/self/status").read_text(), Path("/proc/self/uid_map").read_text()
    except (OSError, ValueError) as error:
        return Offer(uids=None, why_not=str(error))
    why_not = missing(status, uid_map, uids) or _try()
    return Offer(uids=None, why_not=why_not) if why_not else Offer(uids=uids)


def _try() -> str:
    """Whether a view of the files can be made; "" or what failed.  In a thread, whose view goes with it."""
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(_mount_proc()))
    thread.start()
    thread.join()
    return found[0] if found else "it could not be tried out"


def _mount_proc() -> str:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) != 0:
        return f"it can make no mount namespace: {os.strerror(ctypes.get_errno())}"
    if libc.mount(None, b"/", None, ctypes.c_ulong(_MS_REC | _MS_SLAVE), None) != 0:
        return f"it can change no mounts: {os.strerror(ctypes.get_errno())}"
    if libc.mount(b"proc", b"/proc", b"proc", ctypes.c_ulong(_MS_PROC), b"hidepid=invisible") != 0:
        return f"it cannot hide processes in /proc: {os.strerror(ctypes.get_errno())}"
    return ""
