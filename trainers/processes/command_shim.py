"""The shim: a process between a supervisor and the user's command, which ends whatever the command starts.

It is to a command what containerd-shim is to a container: its parent, the reaper of its orphans, and the reporter of
its exit status.

Run as a file by the supervisor's interpreter with `-S -E`, standard library only, so that it starts in milliseconds:

    python -S -E command_shim.py REQUEST_FD -- COMMAND ARG...

REQUEST_FD is a file with one marshalled dictionary (see `main`).  The shim detaches itself, so that what ends the
children of the supervisor does not end it too: its life line is a socket, on which it sends `{"pid": n}` with a pidfd
of its own, and whose other end closes when the supervisor dies.  The job's environment is the command's alone.

It makes itself the reaper of all its descendants (`PR_SET_CHILD_SUBREAPER`), so that a process that detached itself
with `setsid` or a double fork still belongs to it.  Where there are control groups, the command and all that it starts
are in one, which the shim kills whole, or the supervisor when the shim is gone; where there are none, a second process,
the outer shim, is the parent of the shim and ends what is left when the shim is killed.

When all is over the shim writes one JSON object to its status: `{"exit_code": n}`, `{"signal": n}` or
`{"start_failed": "why"}`, and `"outlived": n` when it had to end n processes that the command left behind.

SIGTERM: pass it on, and after GRACE_S seconds kill everything.  SIGUSR1: kill everything at once.

Source: prctl(2), cgroups(7), and the kernel's page on Yama.
"""

from __future__ import annotations

import _socket
import ctypes
import errno
import fcntl
import marshal
import os
import select
import signal
import sys
import time

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_PTRACER = 0x59616D61
_RLIMIT_CORE = 4
_TIOCSCTTY = 0x540E
#: Signals that a terminal sends, or stops with.
_OF_TERMINALS = (
    *(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT),
    *(signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU),
)
#: Signals that wake a shim.
WATCHED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1)
_LIBC = ctypes.CDLL(None, use_errno=True)
#: Seconds in which what a command left behind may end by itself, as Python's own trackers of semaphores do.
_LATE_EXIT_S = 0.2

#: Seconds by which the kernel's time stamp of a file may be older than the clock.
_TICK_S = 0.02
#: Where Linux keeps files in memory, and those of them that are ours.
_SHARED, _SNAPSHOTS = b"/dev/shm/", b"/dev/shm/remora-"


def main(arguments: list[str]) -> None:
    """Run the command and end with it.

    The request: `status`, `life_line` (descriptors), `grace_s`, `supervisor` (a pid), `environment` (of the command),
    `variable_files` (paths of files with values of more variables, by their names),
    `cgroups` (folders of those that the command enters: all that lives in the first one is the command's; [] for none),
    `own_cgroup` (folder of the shim's), `container` (a pid in the container that the command enters; 0: none),
    `walls` (what `confinement.py` does to the command; None: nothing), `has_terminal` (its standard input is one, which
    becomes that of its session).
    """
    with open(int(arguments[0]), "rb") as file:
        request = marshal.load(file)  # noqa: S302 - the supervisor has written it
    command = arguments[2:]
    if os.fork() != 0:
        os._exit(0)
    os.setsid()
    status_fd, cgroups = request["status"], request["cgroups"]
    os.set_inheritable(status_fd, False)
    os.set_inheritable(request["life_line"], False)
    # Kept open until the end.
    life_line = _socket.socket(fileno=request["life_line"])
    began_at = announce(life_line, are_two=not cgroups)
    errors_read, errors_write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(errors_read)
        try:
            leave_shim(request["supervisor"], cgroups)
            folder = os.getcwd()
            if request["walls"]:
                # This file is run outside of any package, and there are no packages of ours in a container.
                sys.path[0] = os.path.join(os.path.dirname(os.path.dirname(__file__)), "isolation")
                from confinement import confine  # type: ignore[import-not-found]
            if request["container"]:
                enter_container(request["container"])
            if request["walls"]:
                confine(request["walls"], folder)
            if request["has_terminal"]:
                _take_terminal()
            _become(command, with_secrets(request["environment"], request["variable_files"]))
        except OSError as error:
            os.write(errors_write, f"{command[0]}: {_why(error)}".encode())
        os._exit(127)
    os.close(errors_write)
    with os.fdopen(errors_read, "rb") as errors:
        start_failed = errors.read().decode(errors="replace")
    own = request["own_cgroup"]
    # Memory of a confined command is gone with its job, and paths in it are not those of the node.
    walls = request["walls"]
    memory_since = None if walls else began_at
    command_cgroup = enter_own_cgroup(cgroups, own)
    run_to_end(
        child,
        status_fd,
        request["grace_s"],
        command_cgroup,
        memory_since,
        start_failed,
        has_namespaces=bool(walls and walls["has_namespaces"]),
    )


def announce(life_line: _socket.socket, *, are_two: bool) -> float:
    """Become the shim that the supervisor at the other end of the life line started; returns the time of day.

    The process ends when that end closes.  With `are_two`, which is for nodes without
    cgroups, a second process becomes the parent of this one.

    Returns in the shim itself.
    """
    began_at = time.time()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _reap_descendants()
    _end_with(life_line)
    mine = os.pidfd_open(os.getpid())
    carried = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, mine.to_bytes(4, sys.byteorder))
    life_line.sendmsg([b'{"pid": %d}\n' % os.getpid()], [carried])
    os.close(mine)
    if are_two:
        _add_outer_shim()
    return began_at


def _end_with(life_line: _socket.socket) -> None:
    """Have the kernel send SIGUSR1 to this process when the other end of the life line closes."""
    life_line.setblocking(False)
    fcntl.fcntl(life_line, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(life_line, fcntl.F_SETSIG, signal.SIGUSR1)
    flags = fcntl.fcntl(life_line, fcntl.F_GETFL)
    fcntl.fcntl(life_line, fcntl.F_SETFL, flags | os.O_ASYNC)
    if _is_closed(life_line):
        os._exit(0)


def _is_closed(life_line: _socket.socket) -> bool:
    poll = select.poll()
    poll.register(life_line, select.POLLIN)
    return bool(poll.poll(0))


def _reap_descendants() -> None:
    """Make this process the reaper of all that will descend from it, and let signals wait for `run_to_end`."""
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _add_outer_shim() -> None:
    """Without cgroups: let a forked process be the shim, and end what it leaves when it is killed.

    Returns in the forked process.  This one passes signals on, and is the shim that the supervisor knows.
    """
    above = os.getpid()
    below = os.fork()
    if below == 0:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGUSR1, 0, 0, 0)
        if os.getppid() != above:
            os._exit(1)
        _reap_descendants()
        return
    # The supervisor sees the shim's end when its descriptors close, so this process keeps none of them.
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    while True:
        received = signal.sigtimedwait(WATCHED, 3600.0)
        if received is not None and received.si_signo != signal.SIGCHLD:
            _kill(below, signal.Signals(received.si_signo))
            # It may have been stopped.
            _kill(below, signal.SIGCONT)
        if _reap(below) is not None:
            _end_descendants("")
            os._exit(0)


def enter_own_cgroup(cgroups: list[str], own: str) -> str:
    """Enter the shim's own cgroup; returns that of the command, "" where there are none."""
    if not cgroups:
        return ""
    # Not before: the kernel may take milliseconds, and the command does not wait for them.
    _enter(own)
    return cgroups[0]


def run_to_end(
    child: int,
    status_fd: int,
    grace_s: float,
    command_cgroup: str,
    began_at: float | None,
    start_failed: str = "",
    *,
    has_namespaces: bool = False,
) -> None:
    """Wait for the command's own process, end what it left behind, and write how it ended.

    Every process in `command_cgroup` is the command's.  `began_at` is a time of day before the command began; None:
    the command leaves nothing in memory.  With `has_namespaces` one process more is there as long as another one is,
    and counts for none.
    """
    # Here, and not at the top: the command does not wait for it.
    import json

    memory = _Memory(began_at)
    status, kill_at = _wait(child, grace_s, command_cgroup, memory)
    if kill_at is not None:
        # A shell does not outlive SIGTERM, and what it has started may still be saving.
        _let_descendants_end(kill_at)
    elif "exit_code" in status:
        _let_descendants_end(time.monotonic() + _LATE_EXIT_S)
    memory.note({*_descendants(), *_in_cgroup(command_cgroup)})
    outlived = _end_descendants(command_cgroup)
    memory.remove_left()
    if start_failed:
        status = {"start_failed": start_failed}
    if outlived > has_namespaces:
        status["outlived"] = outlived - has_namespaces
    os.write(status_fd, json.dumps(status).encode())


def leave_shim(supervisor: int, cgroups: list[str]) -> None:
    """In the forked process: a session and cgroups of its own, no signal blocked, dead as soon as the shim is.

    Where Yama restricts ptrace, the process `supervisor` may read this one's stack all the same.
    """
    os.setsid()
    _LIBC.prctl(_PR_SET_PTRACER, supervisor, 0, 0, 0)
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    for cgroup in cgroups:
        _enter(cgroup)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)


def with_secrets(environment: dict[str, str], files: dict[str, str]) -> dict[str, str]:
    """In the forked process: the environment with the contents of these files as variables.

    A process with secrets leaves no core dump, which would be written to a disk and have its variables beside it: a
    limit of one byte is too small for a file, and keeps the kernel from starting a program for one (core(5)).
    Raises OSError.
    """
    if "REMORA_SECRETS" in environment:
        # Without the module `resource`, of which a script may have its own.
        _LIBC.setrlimit(_RLIMIT_CORE, (ctypes.c_ulong * 2)(1, 1))
    contents = {}
    for name, path in files.items():
        with open(path, "rb") as file:
            contents[name] = os.fsdecode(file.read())
    return {**environment, **contents}


def enter_container(pid: int) -> None:
    """In the forked process: see the files of the container in which the process `pid` is, in the same folder.

    A user namespace of its own is entered too.  Raises OSError.
    """
    # os.execvpe imports it, and finds no modules of this interpreter any more.
    import warnings  # noqa: F401

    folder = os.getcwd()
    entered = []
    for kind in ("user", "mnt"):
        namespace = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)
        if not os.path.samestat(os.fstat(namespace), os.stat(f"/proc/self/ns/{kind}")):
            entered.append(namespace)
    for namespace in entered:
        if _LIBC.setns(namespace, 0) != 0:
            raise OSError(
                ctypes.get_errno(), f"its container cannot be entered: {os.strerror(ctypes.get_errno())}"
            )
    os.chdir(folder)
    # Forgotten by the kernel with the change of the user namespace.
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _enter(cgroup: str) -> None:
    """Move this process into a cgroup.  Raises OSError."""
    with open(os.path.join(cgroup, "cgroup.procs"), "w") as file:
        file.write("0")


def _take_terminal() -> None:
    """In the forked process, a leader of its session: standard input is the session's terminal, with its signals.

    Raises OSError.
    """
    fcntl.ioctl(0, _TIOCSCTTY, 0)
    # A service that was started in the background ignores some of them, and so would all that it starts.
    for number in _OF_TERMINALS:
        signal.signal(number, signal.SIG_DFL)


def _become(command: list[str], environment: dict[str, str]) -> None:
    """Turn the forked process into the command; never returns.  Raises OSError."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.execvpe(command[0], command, environment)


def _why(error: OSError) -> str:
    if error.errno == errno.E2BIG:
        return "its arguments and environment variables are too long"
    if error.errno == errno.ENOEXEC:
        return f"{error.strerror}; write bash before it, or #!/bin/bash as its first line"
    return str(error.strerror)


class _Memory:
    """Files in memory that processes of the command map, and that a process which is killed leaves there for ever."""

    def __init__(self, began_at: float | None) -> None:
        self._began_at = began_at
        self._seen: set[bytes] = set()

    def note(self, pids: set[int]) -> None:
        """To be called before they are killed."""
        if self._began_at is not None:
            self._seen |= _mapped(pids)

    def remove_left(self) -> None:
        """Remove those that were made since the command began and that no process uses any more."""
        if not self._seen or self._began_at is None:
            return
        others = {int(entry) for entry in os.listdir("/proc") if entry.isdigit()}
        for path in self._seen - _mapped(others):
            try:
                status = os.lstat(path)
                if status.st_uid == os.getuid() and status.st_ctime >= self._began_at - _TICK_S:
                    os.unlink(path)
            except OSError:
                pass  # gone already, or of another user


def _mapped(pids: set[int]) -> set[bytes]:
    """Files in memory that these processes map, but for those of snapshots, which shall outlive them."""
    found: set[bytes] = set()
    for pid in pids:
        try:
            with open(f"/proc/{pid}/maps", "rb") as file:
                found.update(line[line.index(_SHARED) : -1] for line in file if _SHARED in line)
        except OSError:
            continue
    return {path for path in found if not path.startswith(_SNAPSHOTS) and not path.endswith(b" (deleted)")}


def _wait(
    child: int, grace_s: float, command_cgroup: str, memory: _Memory
) -> tuple[dict[str, object], float | None]:
    """Wait for the command's own process; returns how it ended, and until when others may end after SIGTERM."""
    kill_at: float | None = None
    while True:
        timeout = 3600.0 if kill_at is None else max(0.05, kill_at - time.monotonic())
        received = signal.sigtimedwait(WATCHED, timeout)
        if received is None:
            if kill_at is not None:
                _kill_all(signal.SIGKILL, command_cgroup)
        elif received.si_signo == signal.SIGTERM and kill_at is None:
            kill_at = time.monotonic() + grace_s
            memory.note(set(_descendants()))
            _kill_all(signal.SIGTERM, command_cgroup)
        elif received.si_signo == signal.SIGUSR1:
            memory.note(set(_descendants()))
            kill_at = time.monotonic()
            _kill_all(signal.SIGKILL, command_cgroup)
        ended = _reap(child)
        if ended is not None:
            return ended, kill_at


def _reap(child: int) -> dict[str, object] | None:
    """Collect every process that ended; the command's own status when it is among them."""
    found: dict[str, object] | None = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found if found is not None else {"exit_code": 1}
        if pid == 0:
            return found
        if pid == child:
            found = (
                {"signal": os.WTERMSIG(status)}
                if os.WIFSIGNALED(status)
                else {"exit_code": os.WEXITSTATUS(status)}
            )


def _let_descendants_end(until: float) -> None:
    """Wait, until this time of the monotonic clock, for descendants that end by themselves."""
    while _descendants() and (left_s := until - time.monotonic()) > 0:
        received = signal.sigtimedwait(WATCHED, left_s)
        _reap(-1)
        if received is None or received.si_signo != signal.SIGCHLD:
            return


def _end_descendants(command_cgroup: str) -> int:
    """Kill what is left until nothing is; returns how many processes there were."""
    seen: set[int] = set()
    while True:
        left = {*_descendants(), *_in_cgroup(command_cgroup)}
        if not left:
            return len(seen)
        seen.update(left)
        _kill_all(signal.SIGKILL, command_cgroup)
        signal.sigtimedwait((signal.SIGCHLD,), 0.05)
        _reap(-1)


def _kill_all(number: signal.Signals, command_cgroup: str) -> None:
    if command_cgroup and number == signal.SIGKILL:
        # All at once: nothing is forked meanwhile.
        try:
            with open(os.path.join(command_cgroup, "cgroup.kill"), "w") as file:
                file.write("1")
        except OSError:
            pass
    for pid in _descendants():
        _kill(pid, number)


def _in_cgroup(command_cgroup: str) -> list[int]:
    """Every living process in a cgroup or below it; [] without one."""
    found: list[int] = []
    for folder, _, _ in os.walk(command_cgroup) if command_cgroup else ():
        try:
            with open(os.path.join(folder, "cgroup.procs")) as file:
                found.extend(int(line) for line in file)
        except OSError:
            pass
    return found


def _kill(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def _descendants() -> list[int]:
    """Every living process below this one, from /proc; zombies that are not ours to reap are left out."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", "rb") as file:
                    state, parent = file.read().rpartition(b")")[2].split()[:2]
            except OSError:
                continue
            if state != b"Z":
                parents[int(entry)] = int(parent)
    found: list[int] = []
    level = {os.getpid()}
    while level:
        level = {pid for pid, parent in parents.items() if parent in level}
        found.extend(level)
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
