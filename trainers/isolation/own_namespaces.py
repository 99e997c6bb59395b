"""Confines a job's command without the rights of root: in namespaces of its own, as the node's own user.

The command sees no process, no file and no memory of others, although all of them belong to its user: process ids, IPC
objects and mounts are those of its namespaces, and every folder that is not the system's is covered.  The network is
that of the node.

Two processes are added.  The first of a namespace of process ids is its `init`: with it the kernel ends all others, so
it is none of the job's.  It reaps, and says how the command ended.  The process that the shim has started stands for
the command outside, and ends as the command did.

Source: user_namespaces(7), pid_namespaces(7), mount_setattr(2), and the kernel's page on devpts.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING or __package__:
    from trainers.isolation import confinement
else:
    # Run by the shim, outside of any package.
    import confinement  # type: ignore[import-not-found,no-redef]

if TYPE_CHECKING:
    from typing import Any, NoReturn

_CLONE_NEWNS, _CLONE_NEWIPC, _CLONE_NEWUSER, _CLONE_NEWPID = 0x20000, 0x8000000, 0x10000000, 0x20000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8
_PR_SET_PDEATHSIG, _RLIMIT_CORE = 1, 4
#: How the command ended, as wait(2) has it, and whether nothing else is left in its namespaces.
_END = struct.Struct("ib")
#: The exit status of a process that could not be confined.
_FAILED = 127
_LIBC = ctypes.CDLL(None, use_errno=True)
_DEVICE_LINKS = {
    "ptmx": "pts/ptmx",
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
}


def confine(walls: dict[str, Any], folder: str) -> None:
    """Return in a forked process that is alone in its namespaces, in `folder`; this process stands for it.

    `walls` as in `confinement.confine`.  Raises OSError with what was not possible.
    """
    uid, gid = os.geteuid(), os.getegid()
    kinds = _CLONE_NEWUSER | _CLONE_NEWNS | _CLONE_NEWIPC | _CLONE_NEWPID
    confinement.check(_LIBC.unshare(ctypes.c_int(kinds)), "namespaces")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    os.umask(0o022)
    _make_view(walls["steps"])
    # Where it was lies below what covers it, and the command may look where the first process of its namespace is.
    os.chdir("/")
    ended_read, ended_write = os.pipe()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    pid = os.fork()
    if pid != 0:
        _stand_for(pid, ended_read)
    os.close(ended_read)
    _begin_namespace(ended_write)
    command = os.fork()
    if command != 0:
        _reap(command, ended_write)
    os.close(ended_write)
    os.setsid()
    # The kernel ends it with the first process of its namespace anyway, whose parent this process does not see.
    os.umask(0o077)
    os.chdir(folder)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _make_view(steps: list[dict[str, Any]]) -> None:
    confinement.detach_mounts()
    sources = [confinement.opened(step["source"]) if step["source"] else -1 for step in steps]
    root = confinement.opened("/")
    confinement.set_attributes(root, is_read_only=True, is_recursive=True)
    os.close(root)
    for step, source in zip(steps, sources, strict=True):
        confinement.show(step, source)
        if source >= 0:
            _set_read_only(step["target"], is_read_only=step["is_read_only"])
            os.close(source)
    _add_terminals()
    for step in steps:
        if not step["source"]:
            # What it holds of its own are names of what is shown in it.
            _set_read_only(step["target"], is_read_only=True, is_recursive=False)


def _set_read_only(target: str, *, is_read_only: bool, is_recursive: bool = True) -> None:
    place = confinement.place(target, is_folder=os.path.isdir(target))
    try:
        confinement.set_attributes(place, is_read_only=is_read_only, is_recursive=is_recursive)
    finally:
        os.close(place)


def _add_terminals() -> None:
    """In /dev, which is a new one, terminals that no other process has."""
    if not os.path.isdir("/dev/pts"):
        os.mkdir("/dev/pts")
    flags = _MS_NOSUID | _MS_NOEXEC
    confinement.mount("devpts", "/dev/pts", "devpts", flags, "newinstance,ptmxmode=0666,mode=0620")
    for name, target in _DEVICE_LINKS.items():
        os.symlink(target, f"/dev/{name}")


def _begin_namespace(ended: int) -> None:
    """Be the first process of the namespace of process ids, without rights, dead when its parent was killed."""
    confinement.mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    if os.geteuid() == 0:
        # The kernel lets root change its settings there without any rights.
        _set_read_only("/proc", is_read_only=True)
    confinement.give_up_rights()
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGUSR1, 0, 0, 0)
    if _is_closed(ended):
        os._exit(_FAILED)


def _reap(command: int, ended: int) -> NoReturn:
    """Reap every process of the namespace, and say how the command ended; the namespace ends with the last one.

    All signals are blocked here, and the kernel ignores those of the namespace that would end this process.
    """
    _close_all_but(ended)
    is_reported = False
    while True:
        received = signal.sigwait({signal.SIGCHLD, signal.SIGUSR1})
        if received == signal.SIGUSR1 and not is_reported and _is_closed(ended):
            # The process that stands for the command was killed.
            os._exit(_FAILED)
        status, is_alone = _reaped(command)
        if status is not None:
            is_reported = True
            try:
                os.write(ended, _END.pack(status, is_alone))
            except OSError:
                os._exit(_FAILED)
        if is_alone:
            os._exit(0)


def _reaped(command: int) -> tuple[int | None, bool]:
    """Collect what has ended: how the command did, if it is among that, and whether nothing is left."""
    found = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found, True
        if pid == 0:
            return found, False
        if pid == command:
            found = status


def _stand_for(first: int, ended: int) -> NoReturn:
    """Wait for the end of the command, and end in the same way; `first` is the first process of its namespace."""
    try:
        confinement.give_up_rights()
        # The kernel may have forgotten it with the change of the user namespace.
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        _close_all_but(ended)
        received = os.read(ended, _END.size)
        if len(received) == _END.size:
            status, is_alone = _END.unpack(received)
            if is_alone:
                os.waitpid(first, 0)
        else:
            _, status = os.waitpid(first, 0)
        _end_as(status)
    finally:
        os._exit(_FAILED)


def _end_as(status: int) -> None:
    if not os.WIFSIGNALED(status):
        os._exit(os.WEXITSTATUS(status))
    number = os.WTERMSIG(status)
    # The command's own core dump is enough.
    _LIBC.setrlimit(_RLIMIT_CORE, (ctypes.c_ulong * 2)(0, 0))
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})


def _is_closed(pipe: int) -> bool:
    """True when nothing can be read any more from a pipe whose other end this is."""
    poll = select.poll()
    poll.register(pipe, 0)
    return bool(poll.poll(0))


def _close_all_but(kept: int) -> None:
    """Standard streams as well: they end with the command and what it has started."""
    os.closerange(0, kept)
    os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))


if __name__ == "__main__":
    sys.exit("it is run by confinement.py")
