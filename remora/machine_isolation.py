"""Tries out, once in each process, whether this machine can keep commands of jobs apart.

`users` needs the rights of root, or the capabilities of the node's unit; `namespaces` needs user namespaces that the
kernel makes for every user, and Linux 5.12.  Used by the platform's own processes on a node and by the start of the
service.  Standard library only.

Source: mount_namespaces(7), user_namespaces(7), pid_namespaces(7), proc(5), mount_setattr(2).
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path

from remora.isolation import UIDS_VARIABLE, USUAL_UIDS, Isolation, Offer, missing, parse_uids

_CLONE_NEWNS, _MS_REC, _MS_SLAVE, _MS_PROC = 0x20000, 16384, 1 << 19, 2 | 4 | 8


#: Does, in a process of its own, each thing that `trainers/isolation/own_namespaces.py` does; prints what failed.
_TRIAL = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def check(answer, what):
    if answer != 0:
        print(f"it {what}: {os.strerror(ctypes.get_errno())}", flush=True)
        os._exit(1)
uid, gid = os.geteuid(), os.getegid()
check(libc.unshare(0x10000000 | 0x20000 | 0x8000000 | 0x20000000), "can make no namespaces without rights")
try:
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
except OSError as error:
    ctypes.set_errno(error.errno)
    check(-1, "can map no user")
ulong, none = ctypes.c_ulong, None
check(libc.mount(none, b"/", none, ulong(16384 | 1 << 19), none), "can change no mounts in a user namespace")
check(libc.mount(b"remora", b"/tmp", b"tmpfs", ulong(6), b"mode=755"), "can mount no empty folder there")
read_only = (ctypes.c_uint64 * 4)(1, 0, 0, 0)
check(libc.syscall(442, -100, b"/", 0x8000, read_only, ulong(32)), "can make no folders read-only there")
terminals = libc.mount(b"devpts", b"/dev/pts", b"devpts", ulong(10), b"newinstance,ptmxmode=0666")
check(terminals, "can mount no terminals there")
pid = os.fork()
if pid == 0:
    check(libc.mount(b"proc", b"/proc", b"proc", ulong(14), none), "can mount no /proc of its own")
    os._exit(0)
os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
#: Seconds that this may take.
_TRIAL_S = 20.0


@cache
def offered(asked: Isolation = "auto") -> Offer:
    """What this machine offers to this process; tried once.

    Namespaces are tried where they may be needed: they are `asked` for, or there are no users.
    """
    try:
        uids = parse_uids(os.environ.get(UIDS_VARIABLE) or USUAL_UIDS)
        status, uid_map = Path("/proc/self/status").read_text(), Path("/proc/self/uid_map").read_text()
        why_not = missing(status, uid_map, uids) or _try()
    except (OSError, ValueError) as error:
        why_not = str(error)
    if not why_not and asked != "namespaces":
        return Offer(uids=uids, why_no_namespaces="namespaces were not tried")
    why_no_namespaces = _try_namespaces() if asked in ("auto", "namespaces") else "namespaces were not tried"
    return Offer(
        uids=None if why_not else uids,
        why_not=why_not,
        has_namespaces=not why_no_namespaces,
        why_no_namespaces=why_no_namespaces,
    )


def _try_namespaces() -> str:
    """Whether a process without rights can have what commands need; "" or what failed."""
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _TRIAL],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TRIAL_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"namespaces could not be tried out: {error}"
    if done.returncode == 0:
        return ""
    return done.stdout.strip() or "namespaces could not be tried out"


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
