"""Confines the process that becomes a job's command: another user, without rights, in a view of the files of its own.

Called by the forked process of a command just before it runs anything of the job (`command_shim.py`, `fork_server.py`),
with what the supervisor has decided (`trainers/isolation/confined.py`), and run as a program where environments are
built.  Standard library only.

The view is a mount namespace: folders are covered by empty ones or replaced by others, and /proc shows a process only
those of its own user.  Process ids, network and IPC stay those of the node, so that ranks reach each other.  Where the
node may give no users, `own_namespaces.py` makes another view from the same steps.

Source: mount_namespaces(7), capabilities(7), proc(5), prctl(2), keyctl(2).
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Under this name file systems in memory for jobs are mounted.
MEMORY = "remora-memory"
_CLONE_NEWNS, _CLONE_NEWUSER, _MNT_DETACH = 0x20000, 0x10000000, 2
#: Numbers of system calls that the C library of older systems has no names for; the same on all processors.
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_AT_EMPTY_PATH, _AT_RECURSIVE, _TREE_FLAGS = 0x1000, 0x8000, 0x1000 | 1 | os.O_CLOEXEC
_MOVE_FROM_EMPTY, _MOVE_TO_EMPTY = 0x4, 0x40
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV, _ATTR_IDMAP = 1, 2, 4, 0x100000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_SLAVE = (
    *(1, 2, 4, 8, 32, 4096, 16384),
    1 << 19,
)
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 4, 24, 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_CAPABILITY_VERSION = 0x20080522
_KEYCTL, _KEYCTL_JOIN_SESSION_KEYRING = {"x86_64": 250, "aarch64": 219}, 1
#: What an empty folder that covers another one may hold: names of what is shown below it.
_COVER = "mode=755,size=1m,nr_inodes=4096"
_LIBC = ctypes.CDLL(None, use_errno=True)


def main(arguments: list[str]) -> None:
    """Run a command confined: the walls as JSON, its folder, and its words; never returns."""
    import json

    walls, folder, *command = arguments
    try:
        confine(json.loads(walls), folder)
        os.execvpe(command[0], command, os.environ)
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")


def confine(walls: dict[str, Any], folder: str) -> None:
    """Become the job's user in its own view of the files, in `folder`.  Raises OSError with what was not possible.

    `walls`: `uid`, `groups` (a list of numbers, the first one is the process's own), `steps` (see `show`), in the order
    in which they are taken, and `has_namespaces`: the node's user stays, in namespaces of the command's own.
    """
    if walls["has_namespaces"]:
        # Beside this file, which is the first place of the path where it is run outside of any package.
        import own_namespaces  # type: ignore[import-not-found]

        own_namespaces.confine(walls, folder)
        return
    shim = os.getppid()
    # The job's user looks into the folders that are made here.
    os.umask(0o022)
    check(_LIBC.unshare(_CLONE_NEWNS), "a mount namespace")
    detach_mounts()
    sources = [opened(step["source"]) if step["source"] else -1 for step in walls["steps"]]
    _leave_others(walls["steps"])
    for step, source in zip(walls["steps"], sources, strict=True):
        if step.get("owner", -1) >= 0:
            _show_as_own(step, source, walls["uid"], walls["groups"][0])
        else:
            _take_step(step, source)
    for source in sources:
        if source >= 0:
            os.close(source)
    mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, "hidepid=invisible")
    _become_user(walls["uid"], walls["groups"])
    os.chdir(folder)
    # The kernel forgets it when the user changes.
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != shim:
        os._exit(1)


def detach_mounts() -> None:
    """In a new mount namespace: what others unmount goes here too, and nothing of this reaches them."""
    mount(None, "/", None, _MS_REC | _MS_SLAVE)


def _leave_others(steps: list[dict[str, Any]]) -> None:
    """Unmount the memory of other jobs here, so that this view does not keep it when those jobs are over."""
    with open("/proc/self/mountinfo") as file:
        lines = [line.split() for line in file]
    for line in lines:
        where = line[4]
        if line[line.index("-") + 2] == MEMORY and not any(
            f"{step['source']}/".startswith(f"{where}/") for step in steps
        ):
            _LIBC.umount2(where.encode(), _MNT_DETACH)


def _take_step(step: dict[str, Any], source: int) -> None:
    show(step, source)
    if source >= 0 and step["is_read_only"]:
        shown = place(step["target"], is_folder=True) if os.path.isdir(step["target"]) else None
        name = step["target"] if shown is None else f"/proc/self/fd/{shown}"
        mount(None, name, None, _MS_BIND | _MS_REMOUNT | _MS_RDONLY)
        if shown is not None:
            os.close(shown)


def show(step: dict[str, Any], source: int) -> None:
    """Cover the folder `target` by an empty one, or show what is open as `source` there.  Raises OSError."""
    target = place(step["target"], is_folder=source < 0 or os.path.isdir(f"/proc/self/fd/{source}"))
    here = f"/proc/self/fd/{target}"
    try:
        if source < 0:
            mount("remora", here, "tmpfs", _MS_NOSUID | _MS_NODEV, _COVER)
        else:
            mount(f"/proc/self/fd/{source}", here, None, _MS_BIND | _MS_REC)
    finally:
        os.close(target)


def set_attributes(opened_folder: int, *, is_read_only: bool, is_recursive: bool) -> None:
    """Let what is mounted at an open folder or file be changed or not, and no program in it give rights.

    Raises OSError.
    """
    asked, cleared = (_ATTR_RDONLY | _ATTR_NOSUID, 0) if is_read_only else (_ATTR_NOSUID, _ATTR_RDONLY)
    attributes = struct.pack("QQQQ", asked, cleared, 0, 0)
    flags = ctypes.c_uint(_AT_EMPTY_PATH | (_AT_RECURSIVE if is_recursive else 0))
    size = ctypes.c_size_t(len(attributes))
    answer = _LIBC.syscall(_MOUNT_SETATTR, opened_folder, b"", flags, attributes, size)
    check(answer, "what may be changed")


def _show_as_own(step: dict[str, Any], source: int, uid: int, gid: int) -> None:
    """Show an open folder, whose files belong to `owner` on disk, at `target` as the job's user's.

    Where the kernel or the file system cannot do that, what is at `target` stays: the job's own empty folder.
    """
    try:
        tree = _checked(_LIBC.syscall(_OPEN_TREE, source, b"", ctypes.c_uint(_TREE_FLAGS)), "open_tree")
    except OSError:
        return
    namespace = -1
    try:
        namespace = _namespace_of(step["owner"], uid, gid)
        attributes = struct.pack("QQQQ", _ATTR_IDMAP | _ATTR_NOSUID | _ATTR_NODEV, 0, 0, namespace)
        size = ctypes.c_size_t(len(attributes))
        _checked(
            _LIBC.syscall(_MOUNT_SETATTR, tree, b"", ctypes.c_uint(_AT_EMPTY_PATH), attributes, size),
            "owners",
        )
    except OSError:
        os.close(tree)
        return
    finally:
        if namespace >= 0:
            os.close(namespace)
    target = place(step["target"], is_folder=True)
    flags = ctypes.c_uint(_MOVE_FROM_EMPTY | _MOVE_TO_EMPTY)
    _checked(_LIBC.syscall(_MOVE_MOUNT, tree, b"", target, b"", flags), f"mounting {step['target']}")
    os.close(target)
    os.close(tree)


def _namespace_of(owner: int, uid: int, gid: int) -> int:
    """A user namespace in which the user and group `owner` are `uid` and `gid`, open.  Raises OSError."""
    ready, make = os.pipe()
    go, done = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(done)
        os.write(make, b"y" if _LIBC.unshare(_CLONE_NEWUSER) == 0 else b"n")
        os.read(go, 1)
        os._exit(0)
    # So that a child which is killed is noticed.
    os.close(make)
    try:
        if os.read(ready, 1) != b"y":
            raise OSError(1, "the kernel makes no user namespace")
        for name, number in (("uid_map", uid), ("gid_map", gid)):
            with open(f"/proc/{pid}/{name}", "w") as file:
                file.write(f"{owner} {number} 1\n")
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        for one in (ready, go, done):
            os.close(one)
        os.waitpid(pid, 0)


def opened(path: str) -> int:
    """An open folder or file that a command is shown.  Raises OSError."""
    try:
        return os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        raise OSError(error.errno, f"{path} cannot be shown to the command: {error.strerror}") from None


def place(path: str, *, is_folder: bool) -> int:
    """Open what lies at an absolute path, and make it where it is missing; no link is followed.

    A script of the same job may put links into the folders that it shares with this command.
    """
    above = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    *folders, last = [part for part in path.split("/") if part]
    try:
        for part in folders:
            below = _folder(above, part)
            os.close(above)
            above = below
        if is_folder:
            return _folder(above, last)
        try:
            os.close(os.open(last, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444, dir_fd=above))
        except FileExistsError:
            pass
        return os.open(last, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    except OSError as error:
        raise OSError(error.errno, f"{path} cannot be shown to the command: {error.strerror}") from None
    finally:
        os.close(above)


def _folder(above: int, name: str) -> int:
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(name, flags, dir_fd=above)
    except FileNotFoundError:
        os.mkdir(name, 0o755, dir_fd=above)
        return os.open(name, flags, dir_fd=above)


def _become_user(uid: int, groups: list[int]) -> None:
    """Be that user, with these groups and no rights, now and after any `exec`."""
    _forbid_rights()
    os.setgroups(groups[1:])
    os.setresgid(groups[0], groups[0], groups[0])
    os.setresuid(uid, uid, uid)
    # Of a node's user that is not root the kernel takes none.
    _drop_capabilities()
    os.umask(0o077)
    # So that /proc/self is its own again.  What it could read of its memory is nothing of others.
    _LIBC.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)


def give_up_rights() -> None:
    """Have no capabilities, now and after any `exec`.  Raises OSError."""
    _forbid_rights()
    _drop_capabilities()


def _forbid_rights() -> None:
    """Get none by any `exec`, and keep no keys of the node."""
    for capability in range(64):
        # Beyond the last one, or without the right to drop it: then `_drop_capabilities` is what counts.
        if _LIBC.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break
    _LIBC.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    check(_LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no new privileges")
    number = _KEYCTL.get(os.uname().machine)
    if number is not None:
        # That of the node's user may hold keys.
        _LIBC.syscall(number, _KEYCTL_JOIN_SESSION_KEYRING, None)


def _drop_capabilities() -> None:
    header, none = struct.pack("Ii", _CAPABILITY_VERSION, 0), bytes(24)
    check(_LIBC.capset(header, none), "giving up all capabilities")


def mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    """Mount what is named, as the call of this name does.  Raises OSError."""
    words = (None if word is None else os.fsencode(word) for word in (source, target, kind))
    text = None if options is None else options.encode()
    first, second, third = words
    check(_LIBC.mount(first, second, third, ctypes.c_ulong(flags), text), f"mounting {target}")


def _checked(answer: int, what: str) -> int:
    if answer < 0:
        check(answer, what)
    return answer


def check(answer: int, what: str) -> None:
    """Raises OSError that names `what`, unless a call of the C library has succeeded."""
    if answer != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"the command cannot be confined: {what}: {os.strerror(number)}")


if __name__ == "__main__":
    main(sys.argv[1:])
