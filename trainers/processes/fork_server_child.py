"""From a fork of the warm interpreter to the user's command: the state that a fresh interpreter would have otherwise.

Standard library only.  What remains different is written down in
`docs/decisions/0021-python-commands-are-forked-from-a-preloaded-interpreter.md`.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import io
import os
import runpy
import site
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any, TextIO

from remora.script import native_threads
from trainers.processes.fork_server_rules import PythonInvocation

_LIBC = ctypes.CDLL(None)
#: What finds modules in an interpreter that has read no .pth file.
_FINDERS = (
    importlib.machinery.BuiltinImporter,
    importlib.machinery.FrozenImporter,
    importlib.machinery.PathFinder,
)
#: What .pth files of the node have put before them: this module is imported before anything else.
_FINDERS_OF_NODE = tuple(one for one in sys.meta_path if one not in _FINDERS)
#: Fields 48 to 51 of /proc/self/stat, counted from the fourth: where the arguments and the environment lie in memory.
_ARGUMENTS_START, _ARGUMENTS_END, _ENVIRONMENT_START, _ENVIRONMENT_END = 44, 45, 46, 47
#: Names under which builds of OpenBLAS take their number of threads.
_OPENBLAS_SETTERS = (
    "scipy_openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "openblas_set_num_threads",
)


@dataclass(frozen=True, kw_only=True)
class ForkedCommand:
    """One command that a process is to become."""

    #: The command as the user wrote it.
    command: list[str]
    invocation: PythonInvocation
    #: All of it, as `os.environ` shall be.
    environment: dict[str, str]
    #: Files that are read into it, by variable, by the process of the command: nothing of them stays here.
    variable_files: dict[str, str]
    #: Working directory.
    folder: str
    #: Process id of the supervisor.
    supervisor: int
    #: Folder of the shim's cgroup; empty: there are none here.
    own_cgroup: str = ""
    #: Folders of the cgroups that the command enters; every process in the first one is the command's.
    cgroups: list[str] = field(default_factory=list)
    #: The worker's own interpreter and its folder of packages; None: it has none of its own.
    python: str | None = None
    packages: str | None = None
    #: The folder of packages of the job's environment between the worker's own and those of the node; None: there is
    #: none, or the fork server runs that environment's interpreter.
    layer: str | None = None
    #: What `confinement.py` does to the command; None: nothing.
    walls: dict[str, Any] | None = None


def take_name(title: str, environment: Mapping[str, str]) -> None:
    """Let `ps` and /proc show the title and the environment, which marks all that belongs to a job.

    The kernel reads both from where they lay when the program was started, so they are written there; the fork server
    was started with memory reserved for them (`max_size`).
    """
    block = _block(environment)
    where = _stat()
    size = where[_ENVIRONMENT_END] - where[_ENVIRONMENT_START]
    ctypes.memmove(where[_ENVIRONMENT_START], block.ljust(size, b"\0"), size)
    size = where[_ARGUMENTS_END] - where[_ARGUMENTS_START]
    # A last byte that is not zero shows the kernel that this is a title: proc(5), setproctitle.
    text = os.fsencode(title)[: size - 2]
    ctypes.memmove(where[_ARGUMENTS_START], text.ljust(size - 1, b"\0") + b" ", size)


def max_size() -> int:
    """Bytes that a command's environment may have."""
    where = _stat()
    return where[_ENVIRONMENT_END] - where[_ENVIRONMENT_START]


def size_of(environment: Mapping[str, str]) -> int:
    """Bytes that an environment takes in memory."""
    return len(_block(environment))


def _block(environment: Mapping[str, str]) -> bytes:
    return b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in environment.items())


def _stat() -> list[int]:
    with open("/proc/self/stat", "rb") as file:
        return [int(word) for word in file.read().rpartition(b")")[2].split()[1:]]


def take_environment(command: ForkedCommand) -> None:
    """Have the command's environment, for Python and for C."""
    os.environ.clear()
    os.environ.update(command.environment)


def close_all_but(descriptors: Sequence[int]) -> None:
    """Close what this process has open, but for its standard streams and `descriptors`."""
    lowest = 3
    for kept in sorted(descriptors):
        os.closerange(lowest, kept)
        lowest = kept + 1
    os.closerange(lowest, os.sysconf("SC_OPEN_MAX"))


def become(command: ForkedCommand, output: int, errors: int) -> Callable[[], object]:
    """Be the command's process up to its first line; returns what runs it."""
    os.dup2(output, 1)
    os.dup2(errors, 2)
    os.close(output)
    os.close(errors)
    os.chdir(command.folder)
    _renew_streams(command)
    _reseed()
    _set_threads(int(command.environment["OMP_NUM_THREADS"]))
    time.tzset()
    native_threads.guard()
    _take_interpreter(command)
    return _main_module(command)


def _take_interpreter(command: ForkedCommand) -> None:
    """Be the worker's own interpreter, whose packages come before those of the one that was forked."""
    if command.python is None or command.packages is None:
        return
    sys.executable = command.python
    sys.prefix = sys.exec_prefix = os.path.dirname(os.path.dirname(command.python))
    site.PREFIXES, site.ENABLE_USER_SITE = [sys.prefix], False
    if (paths := sys.modules.get("sysconfig")) is not None:
        # It keeps what it has computed from the prefix.
        vars(paths).update(
            _PREFIX=sys.prefix, _EXEC_PREFIX=sys.prefix, _CONFIG_VARS=None, _CONFIG_VARS_INITIALIZED=False
        )
    if command.layer is None:
        below = next((i for i, path in enumerate(sys.path) if path.endswith("-packages")), len(sys.path))
        sys.path.insert(below, command.packages)
        return
    # The node's packages lie below the environment's, which `site` finds as it does in an interpreter that starts: by
    # the .pth file among the worker's own packages.
    sys.path[:] = [path for path in sys.path if _is_standard(path)]
    sys.meta_path[:] = [one for one in sys.meta_path if one not in _FINDERS_OF_NODE]
    site.addsitedir(command.packages)


def _is_standard(path: str) -> bool:
    """It is a folder or an archive of the standard library."""
    library = os.path.join(sys.base_prefix, sys.platlibdir, "python")
    return path.startswith(library) and not path.endswith("-packages")


def _renew_streams(command: ForkedCommand) -> None:
    """Standard streams as a fresh interpreter makes them on pipes (CPython's create_stdio)."""
    unbuffered = command.invocation.is_unbuffered or bool(command.environment.get("PYTHONUNBUFFERED"))
    sys.stdin = sys.__stdin__ = _stream(0, "<stdin>", sys.stdin, unbuffered)  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = _stream(1, "<stdout>", sys.stdout, unbuffered)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _stream(2, "<stderr>", sys.stderr, unbuffered)  # type: ignore[misc]
    if unbuffered:
        for name in ("stdin", "stdout", "stderr"):
            _LIBC.setvbuf(ctypes.c_void_p.in_dll(_LIBC, name), None, 2, 0)


def _stream(number: int, name: str, like: TextIO, unbuffered: bool) -> io.TextIOWrapper:
    raw = io.FileIO(number, "rb" if number == 0 else "wb", closefd=False)
    raw.name = name
    if number == 0:
        buffer: io.FileIO | io.BufferedReader | io.BufferedWriter = io.BufferedReader(raw)
    else:
        buffer = raw if unbuffered else io.BufferedWriter(raw)
    stream = io.TextIOWrapper(
        buffer,
        encoding=like.encoding,
        errors=like.errors,
        newline=None if number == 0 else "\n",
        line_buffering=number == 2 and not unbuffered,
        write_through=unbuffered,
    )
    stream.mode = "r" if number == 0 else "w"  # type: ignore[misc]
    return stream


def _reseed() -> None:
    """Draw again what modules drew at import; `random` does so by itself when a process forks."""
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        numpy_random.seed()
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.seed()
    if (processes := sys.modules.get("multiprocessing.process")) is not None:
        processes.current_process().authkey = os.urandom(32)
    if "tempfile" in sys.modules:
        vars(sys.modules["tempfile"])["tempdir"] = None


def _set_threads(count: int) -> None:
    """OMP_NUM_THREADS was read when the libraries were loaded, with 1."""
    if count == 1:
        return
    if (torch := sys.modules.get("torch")) is not None:
        # MKL takes no more than there are cores, and torch follows MKL.
        torch.set_num_threads(min(count, _cores()) if torch.backends.mkl.is_available() else count)
    _call_in("openblas", _OPENBLAS_SETTERS, count)


def _cores() -> int:
    """Physical cores of this machine."""
    with open("/proc/cpuinfo") as file:
        lines = [line.split(":")[1].strip() for line in file if line.startswith(("physical id", "core id"))]
    return len(set(zip(lines[::2], lines[1::2], strict=False))) or os.cpu_count() or 1


def _call_in(library: str, names: Sequence[str], number: int) -> None:
    """Call the first of these functions that there is, in every loaded library of that name."""
    for path in _loaded_libraries(library):
        functions = ctypes.CDLL(path)
        found = next((name for name in names if hasattr(functions, name)), None)
        if found is not None:
            getattr(functions, found)(number)


def _loaded_libraries(name: str) -> set[str]:
    with open("/proc/self/maps") as maps:
        return {line.split(maxsplit=5)[5].strip() for line in maps if name in line.rpartition("/")[2]}


def _main_module(command: ForkedCommand) -> Callable[[], object]:
    """A new `__main__`, `sys.argv` and `sys.path` as `python` sets them; returns what runs it."""
    invocation = command.invocation
    main = ModuleType("__main__")
    sys.modules["__main__"] = main
    names = main.__dict__
    names["__builtins__"] = sys.modules["builtins"]
    names["__annotations__"] = {}
    sys.orig_argv[:] = command.command
    if invocation.kind == "module":
        sys.argv[:] = ["-m", *invocation.arguments]
        sys.path.insert(0, os.getcwd())
        names["__loader__"] = importlib.machinery.BuiltinImporter
        # What `-m` calls.
        return partial(runpy._run_module_as_main, invocation.target)  # type: ignore[attr-defined]
    if invocation.kind == "code":
        sys.argv[:] = ["-c", *invocation.arguments]
        sys.path.insert(0, "")
        names["__loader__"] = importlib.machinery.BuiltinImporter
        code = compile(invocation.target + "\n", "<string>", "exec", dont_inherit=True)
        return partial(exec, code, names)
    sys.argv[:] = [invocation.target, *invocation.arguments]
    sys.path.insert(0, os.path.dirname(os.path.realpath(invocation.target)))
    path = os.path.abspath(invocation.target)
    names["__file__"] = path
    names["__cached__"] = None
    names["__loader__"] = importlib.machinery.SourceFileLoader("__main__", path)
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    return partial(exec, code, names)
