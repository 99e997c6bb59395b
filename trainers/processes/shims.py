"""Starts the shim of a command, in a cgroup of its own where the node has them."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import marshal
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from remora import cgroups
from remora.cgroups import Cgroup
from trainers.processes.fork_server_client import CommandShim, ShimRequest, receive_shim, shim_environment

#: Set in the environment of the command, and so of all that it starts, to find them when the shim cannot.
MARK_VARIABLE = "REMORA_CHILD"
#: Process id of the supervisor, in the environment of a shim and of a command: a forked shim is not its child.
SUPERVISOR_VARIABLE = "REMORA_SUPERVISOR"
_SHIM = Path(__file__).with_name("command_shim.py")
#: Names of the cgroups of a shim and of its command, below that of the worker.
_SHIM_CGROUP, COMMAND_CGROUP = "shim", "command"
#: Seconds that a shim may take to start.
_SHIM_START_S = 30.0

log = logging.getLogger(__name__)


def make_cgroup(name: str, most_processes: int | None) -> Cgroup | None:
    """A cgroup for a worker's processes and their shim; None where the node has none."""
    cgroup = cgroups.owned(name)
    if cgroup is None:
        return None
    try:
        cgroup.make(_SHIM_CGROUP, COMMAND_CGROUP)
    except OSError as error:
        log.warning("no cgroup could be made: %s", error)
        cgroup.remove()
        return None
    if most_processes is not None:
        cgroup.limit(most_processes)
    return cgroup


def inside(request: ShimRequest, cgroup: Cgroup) -> ShimRequest:
    """The same command, in such a cgroup."""
    entered = [cgroup.path / COMMAND_CGROUP, *([cgroup.counting] if cgroup.counting is not None else [])]
    own = str(cgroup.path / _SHIM_CGROUP)
    return dataclasses.replace(request, own_cgroup=own, cgroups=tuple(str(path) for path in entered))


@dataclasses.dataclass(frozen=True)
class StandardStreams:
    """Descriptors, or what `subprocess` has for them."""

    input: int
    output: int
    errors: int


def start_shim(
    request: ShimRequest, streams: StandardStreams, status: int, inherited: tuple[int, ...] = ()
) -> CommandShim:
    """Start a shim, which starts the command; both have the streams, and the command what is `inherited`.

    `status` is the descriptor to which the shim writes.  Raises ValueError or OSError for a command that the operating
    system cannot take.
    """
    _check(request.environment)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with theirs, os.fdopen(os.memfd_create("request"), "wb") as file:
        marshal.dump({**request.fields(), "status": status, "life_line": theirs.fileno()}, file)
        file.flush()
        os.lseek(file.fileno(), 0, os.SEEK_SET)
        try:
            process = subprocess.Popen(
                [sys.executable, "-S", "-E", str(_SHIM), str(file.fileno()), "--", *request.command],
                cwd=request.folder,
                env=shim_environment(os.environ, request.environment),
                stdin=streams.input,
                stdout=streams.output,
                stderr=streams.errors,
                pass_fds=(*inherited, status, theirs.fileno(), file.fileno()),
            )
            theirs.close()
            if request.own_cgroup:
                # Moving a process takes the kernel ten milliseconds, and hardly any right after another one: so the
                # command's own move is quick once the shim's interpreter has started.
                with contextlib.suppress(OSError):
                    Path(request.own_cgroup, "cgroup.procs").write_text(str(process.pid))
            ours.settimeout(_SHIM_START_S)
            # The shim detaches itself at once.
            process.wait()
            return receive_shim(ours, is_forked=False)
        except BaseException:
            ours.close()
            raise


def _check(environment: Mapping[str, str]) -> None:
    """Raises ValueError for variables that no process can have."""
    for name, value in environment.items():
        if "\0" in name or "\0" in value:
            raise ValueError("embedded null byte")
        if not name or "=" in name:
            raise ValueError("illegal environment variable name")
