"""The process between a supervisor and the user's command: whatever the command starts, it ends.

Run as a file by the supervisor's interpreter with `-S -E`, standard library only, so that it starts in milliseconds:

    python -S -E keeper.py STATUS_FD GRACE_S -- COMMAND ARG...

It makes itself the reaper of all its descendants (`PR_SET_CHILD_SUBREAPER`), so that a process that detached itself
with `setsid` or a double fork still belongs to it, and asks the kernel to be told when the supervisor dies
(`PR_SET_PDEATHSIG`).  It writes one JSON object to STATUS_FD when all is over: `{"exit_code": n}`, `{"signal": n}` or
`{"start_failed": "why"}`, and `"outlived": n` when it had to end n processes that the command left behind.

SIGTERM: pass it on, and after GRACE_S seconds kill everything.  SIGUSR1: kill everything at once.

Source: prctl(2), and the kernel's page on Yama.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_PTRACER = 0x59616D61
#: Signals that wake a keeper.
WATCHED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1)
_LIBC = ctypes.CDLL(None, use_errno=True)
#: Seconds in which what a command left behind may end by itself, as Python's own trackers of semaphores do.
_LAST_WORDS_S = 0.2


def main(arguments: list[str]) -> None:
    """Run the command and end with it."""
    status_fd, grace_s = int(arguments[0]), float(arguments[1])
    command = arguments[3:]
    supervisor = os.getppid()
    reap_descendants()
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGUSR1, 0, 0, 0)
    if os.getppid() != supervisor:
        return
    os.set_inheritable(status_fd, False)
    errors_read, errors_write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(errors_read)
        _become(command, supervisor, errors_write)
    os.close(errors_write)
    with os.fdopen(errors_read, "rb") as errors:
        start_failed = errors.read().decode(errors="replace")
    keep(child, status_fd, grace_s, start_failed)


def reap_descendants() -> None:
    """Make this process the reaper of all that will descend from it, and let signals wait for `keep`."""
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def keep(child: int, status_fd: int, grace_s: float, start_failed: str = "") -> None:
    """Wait for the command's own process, end what it left behind, and write how it ended."""
    status = _wait(child, grace_s)
    if "exit_code" in status:
        _let_descendants_end()
    outlived = _end_descendants()
    if start_failed:
        status = {"start_failed": start_failed}
    if outlived:
        status["outlived"] = outlived
    os.write(status_fd, json.dumps(status).encode())


def leave_keeper(supervisor: int) -> None:
    """In the forked process: a session of its own, no signal blocked, dead as soon as the keeper is.

    Where Yama restricts ptrace, the process `supervisor` may read this one's stack all the same.
    """
    os.setsid()
    _LIBC.prctl(_PR_SET_PTRACER, supervisor, 0, 0, 0)
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)


def _become(command: list[str], supervisor: int, errors_fd: int) -> None:
    """Turn the forked process into the command; never returns."""
    leave_keeper(supervisor)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(errors_fd, f"{command[0]}: {error.strerror}".encode())
    os._exit(127)


def _wait(child: int, grace_s: float) -> dict[str, object]:
    """Wait for the command's own process; returns how it ended."""
    kill_at: float | None = None
    while True:
        timeout = 3600.0 if kill_at is None else max(0.05, kill_at - time.monotonic())
        received = signal.sigtimedwait(WATCHED, timeout)
        if received is None:
            if kill_at is not None:
                _kill_all(signal.SIGKILL)
        elif received.si_signo == signal.SIGTERM and kill_at is None:
            kill_at = time.monotonic() + grace_s
            _kill_all(signal.SIGTERM)
        elif received.si_signo == signal.SIGUSR1:
            kill_at = time.monotonic()
            _kill_all(signal.SIGKILL)
        ended = _reap(child)
        if ended is not None:
            return ended


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


def _let_descendants_end() -> None:
    """Give a moment to what is ending by itself, because its parent ended."""
    deadline = time.monotonic() + _LAST_WORDS_S
    while _descendants() and (left_s := deadline - time.monotonic()) > 0:
        received = signal.sigtimedwait(WATCHED, left_s)
        _reap(-1)
        if received is None or received.si_signo != signal.SIGCHLD:
            return


def _end_descendants() -> int:
    """Kill what is left until nothing is; returns how many processes there were."""
    seen: set[int] = set()
    while True:
        left = _descendants()
        if not left:
            return len(seen)
        seen.update(left)
        for pid in left:
            _kill(pid, signal.SIGKILL)
        signal.sigtimedwait((signal.SIGCHLD,), 0.05)
        _reap(-1)


def _kill_all(number: signal.Signals) -> None:
    for pid in _descendants():
        _kill(pid, number)


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
