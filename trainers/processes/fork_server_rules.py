"""When a command forked from a warm interpreter behaves as one that is started (pure; standard library only)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

#: Beginnings of the variables that an interpreter, its libraries or the framework read once, when they are loaded.
_READ_AT_START = (
    *("PYTHON", "LD_", "MALLOC_", "GLIBC_", "LC_", "LANG", "TZ"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "GOTO_", "BLIS_", "NPY_", "NUMPY_", "DNNL_", "ONEDNN_"),
    *("TORCH", "PYTORCH_", "ATEN_", "C10_", "CUDA_", "CUBLAS_", "KINETO_", "TRITON_"),
)
#: Those of them that take effect in a forked process all the same.
_FOLLOWED = (
    *("PYTHONUNBUFFERED", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"),
    # Python forgets the one that it has found (`fork_server_child`), torch and Triton ask for theirs when they compile.
    *("TMPDIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"),
    # Read with the first collective.
    "TORCH_FR_BUFFER_SIZE",
)
#: Read by torch's rendezvous when it is made, not before.
_READ_LATE = "TORCHELASTIC_"
#: Variables of a command's environment that its shim has too: which worker it belongs to, and none of the job's.
_MARKS, _MARK_PREFIX = ("RANK", "LOCAL_RANK", "WORLD_SIZE"), "REMORA_"
_MODULE_ENDINGS = (".py", ".pyc", ".so")


@dataclass(frozen=True, kw_only=True)
class PythonInvocation:
    """What a Python interpreter is asked to run."""

    kind: Literal["script", "module", "code"]
    #: Path of the script, name of the module, or the code itself.
    target: str
    #: What follows it on the command line.
    arguments: list[str]
    #: `-u` was given.
    is_unbuffered: bool


@dataclass(frozen=True, kw_only=True)
class WarmState:
    """What a warm interpreter has done already."""

    #: Names of top-level modules that are loaded.
    loaded: frozenset[str]
    #: The environment with which it was started.
    environment: Mapping[str, str]
    #: Variables that the modules have set.
    added: Mapping[str, str]
    #: Names of top-level modules that the modules have looked for in vain.
    missed: frozenset[str] = frozenset()
    #: Folders with the packages of its interpreter, without links.
    packages: frozenset[str] = frozenset()


def parse_invocation(arguments: list[str]) -> PythonInvocation | None:
    """What an interpreter with these arguments runs; None for what only a fresh interpreter can do."""
    rest = list(arguments)
    is_unbuffered = False
    while rest and rest[0] == "-u":
        is_unbuffered = True
        del rest[0]
    if len(rest) >= 2 and rest[0] in ("-m", "-c"):
        kind: Literal["module", "code"] = "module" if rest[0] == "-m" else "code"
        return PythonInvocation(kind=kind, target=rest[1], arguments=rest[2:], is_unbuffered=is_unbuffered)
    if rest and rest[0].endswith(".py") and not rest[0].startswith("-"):
        return PythonInvocation(
            kind="script", target=rest[0], arguments=rest[1:], is_unbuffered=is_unbuffered
        )
    return None


def needs_fresh_start(environment: Mapping[str, str], warm: Mapping[str, str]) -> str | None:
    """The first variable that a process started with `warm` cannot take over; None when there is none."""
    threads = environment.get("OMP_NUM_THREADS", "")
    if not threads.isdecimal() or int(threads) < 1:
        return "OMP_NUM_THREADS"
    for name in sorted(environment.keys() | warm.keys()):
        if name in _FOLLOWED or name.startswith(_READ_LATE) or not name.startswith(_READ_AT_START):
            continue
        if environment.get(name) != warm.get(name):
            return name
    return None


def marks_of(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables of a command's environment that its shim has too, by which the processes of a worker are found."""
    return {
        name: value for name, value in environment.items() if name in _MARKS or name.startswith(_MARK_PREFIX)
    }


def hidden_module(
    entries: Iterable[str], loaded: Collection[str], is_package: Callable[[str], bool]
) -> str | None:
    """The first entry of a script's folder that `import` would find, had not another module its name already."""
    for entry in sorted(entries):
        stem, dot, _ = entry.partition(".")
        if stem in loaded and (entry.endswith(_MODULE_ENDINGS) if dot else is_package(entry)):
            return entry
    return None
