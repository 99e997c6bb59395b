"""Builds the Python environment of a job on its node with `uv`, once for all workers that ask for the same.

An environment is a virtual environment at its final path.  It is complete when a file beside it says so; one whose
build was interrupted is removed and built again, and what `uv` had downloaded by then is in its cache.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from remora.isolation import Isolation, decide
from remora.machine_isolation import offered
from remora.private_files import open_lock
from trainers.confined_folders import remove_tree
from trainers.environments.commands import (
    EnvironmentFailed,
    ProcessBounds,
    TimeLimit,
    program_variables,
    run_program,
)
from trainers.environments.confined_build import confined_build
from trainers.environments.named_packages import is_pylock, only_names
from trainers.environments.node_packages import node_packages, not_installed, same_versions
from trainers.environments.records import (
    EnvironmentRecord,
    made_environment,
    read_record,
    remove_record,
    touch_record,
    used_at,
    write_record,
)
from trainers.environments.request import (
    INHERITED,
    EnvironmentImpossible,
    EnvironmentRequest,
    digest_of,
    inherits,
)
from trainers.environments.worker_python import write_pip
from trainers.node_folders import make_once, work_root
from trainers.public_package import public_folder

#: Seconds that a build may take.
BUILD_LIMIT_S = 1800.0
#: Environments that a node keeps; of the others the ones that were used longest ago are removed.
MOST_KEPT = 8
#: Bytes of a file of requirements.
MOST_REQUIREMENTS_BYTES = 4 * 2**20
#: A line of uv for a package of an index that it installs.
_WOULD_INSTALL = re.compile(r" \+ ([a-z0-9-]+)==(\S+)")
#: uv would obey the `uv.toml` and `[tool.uv]` that lie in the job's code: write where they say, also to the node's
#: cache.
#: A site sets variables that begin with `UV_`.
_UV_OPTIONS = ("--no-config", "--no-progress", "--color", "never")


@dataclass
class BuildWork:
    """A build while it runs: what it reports, and what ends it."""

    #: Called with lines for the job's log.
    say: Callable[[str], None]
    #: Called with the state of the build, in a few words, when it changes.
    show: Callable[[str], None]
    limit: TimeLimit
    #: Processes and threads that code of the job may have at once.
    most_processes: int
    #: Every line goes to the job's log, not only the summaries of uv.
    says_all: bool = False
    #: Packages that uv has found; 0: it has not yet.
    packages: int = 0
    #: Files that are being downloaded, with their sizes.
    downloads: dict[str, str] = field(default_factory=dict)
    #: Packages that uv would install, with their versions, while it is only asked for them.
    found: dict[str, str] | None = None
    _shown: str = ""

    def take(self, line: str) -> None:
        """Take a line of uv."""
        if self.found is not None:
            if wanted := _WOULD_INSTALL.fullmatch(line):
                self.found[wanted[1]] = wanted[2]
            return
        if self.says_all or line.startswith(("Resolved", "Prepared", "Installed", "Built", "warning")):
            self.say(line)
        word, _, rest = line.strip().partition(" ")
        name, _, size = rest.partition(" ")
        if word == "Resolved" and name.isdecimal():
            self.packages = int(name)
        elif word == "Downloading":
            self.downloads[name] = size
        elif word == "Downloaded":
            self.downloads.pop(name, None)
        elif word == "Prepared":
            self.downloads.clear()
        else:
            return
        self._show()

    def _show(self) -> None:
        count = f"{self.packages} package{'s' * (self.packages != 1)}"
        ahead = [f"{name} {size}" for name, size in list(self.downloads.items())[:3]]
        more = f" and {len(self.downloads) - 3} others" if len(self.downloads) > 3 else ""
        state = f"{count}, downloading {', '.join(ahead)}{more}" if ahead else count
        if state != self._shown:
            self._shown = state
            self.show(state[:200])


@dataclass(frozen=True, kw_only=True)
class BuiltEnvironment:
    """An environment that is ready."""

    digest: str
    #: Its interpreter.
    python: Path
    #: Seconds that its build took; 0 where it was there already.
    build_s: float
    #: How many packages were installed in it.
    packages: int
    #: Differs between two builds of the same digest, which may have found other versions.
    build_id: str
    #: Version of its Python.
    version: tuple[int, int]
    #: The folder of the Python below it, as it was before anything of a job ran in the environment.
    base: Path


@contextlib.contextmanager
def environment(
    asked: EnvironmentRequest,
    code: Path,
    say: Callable[[str], None],
    root: Path | None = None,
    *,
    bundle: str | None = None,
    show: Callable[[str], None] = lambda _: None,
    stop: threading.Event | None = None,
    isolation: Isolation = "auto",
    most_processes: int = 16_384,
) -> Iterator[BuiltEnvironment]:
    """The environment, built where it is not there yet; it stays as long as the context is open.

    `code` is the folder of the job's code and `bundle` its digest, `say` is called with lines for the job's log, and
    `show` with the state of a build whenever that changes.  A build ends when `stop` is set; what is code of the job in
    it runs as `isolation` says, and has `most_processes` at once where it has a user of its own.
    Raises EnvironmentFailed, EnvironmentImpossible, IsolationImpossible, OSError.
    """
    work = BuildWork(say, show, TimeLimit(stop or threading.Event()), most_processes)
    root = root or work_root() / "environments"
    root.mkdir(exist_ok=True, mode=0o700)
    node = node_packages()
    file, contents = _file_of_requirements(asked, code)
    is_inherited = inherits(asked, contents.decode(errors="replace"), node)
    digest = digest_of(asked, contents, node, bundle, is_inherited=is_inherited, project=_project_of(file))
    folder = root / digest
    with open_lock(root / f"{digest}.lock") as lock:
        built: list[BuiltEnvironment] = []

        def make() -> None:
            # First, so that half of it is never taken for an environment.
            remove_record(folder)
            remove_tree(folder)
            built.append(_build(asked, folder, file, code, work, isolation, is_inherited=is_inherited))

        # All who use it share the lock; only one that is not there yet, or is being removed, needs it alone.
        make_once(lock, lambda: _known(folder) is not None, make, work.limit.check)
        touch_record(folder)
        prune(root)
        known = _known(folder)
        if known is None:
            raise EnvironmentFailed("it was damaged while it was built; the next attempt builds it again")
        yield built[-1] if built else known


def environment_folders(built: BuiltEnvironment) -> list[Path]:
    """The folders without which its interpreter does not run: its own, and that of the Python below it."""
    return [built.python.parent.parent, built.base]


@dataclass(frozen=True, kw_only=True)
class KeptEnvironment:
    """An environment of this machine."""

    digest: str
    packages: int
    size_bytes: int
    #: When it was last used, in seconds since 1970.
    used_at: float


def kept_environments(root: Path) -> list[KeptEnvironment]:
    """Environments that are complete, those used last first; sizes are those of their own files."""
    known = [one for path in root.glob("*") if path.is_dir() and (one := _known(path)) is not None]
    found = [
        KeptEnvironment(
            digest=one.digest,
            packages=one.packages,
            size_bytes=_size_of(root / one.digest),
            used_at=used_at(root / one.digest),
        )
        for one in known
    ]
    return sorted(found, key=lambda one: one.used_at, reverse=True)


def _size_of(folder: Path) -> int:
    size = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            size += 0 if path.is_symlink() else path.stat().st_size
    return size


def prune(root: Path, most: int = MOST_KEPT) -> list[str]:
    """Remove environments that nothing uses, those used longest ago first, until `most` are left; returns digests."""
    found = sorted((path for path in root.iterdir() if path.is_dir()), key=used_at, reverse=True)
    removed = []
    for folder in found[most:]:
        with contextlib.suppress(OSError), open_lock(root / f"{folder.name}.lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # First, so that half of it is never taken for an environment.
            remove_record(folder)
            remove_tree(folder)
            removed.append(folder.name)
    return removed


def _known(folder: Path) -> BuiltEnvironment | None:
    record = read_record(folder)
    return None if record is None or not folder.is_dir() else _built(folder, 0.0, record)


def _built(folder: Path, build_s: float, record: EnvironmentRecord) -> BuiltEnvironment:
    return BuiltEnvironment(
        digest=folder.name,
        python=folder / "bin" / "python",
        build_s=build_s,
        packages=record.packages,
        build_id=record.build_id,
        version=record.version,
        base=record.base,
    )


def _file_of_requirements(asked: EnvironmentRequest, code: Path) -> tuple[Path | None, bytes]:
    """The file of requirements within the code, and what is in it.  Raises EnvironmentFailed."""
    if asked.requirements is None:
        return None, b""
    path = code / asked.requirements
    if not path.resolve().is_relative_to(code.resolve()) or not path.is_file():
        raise EnvironmentFailed(
            f"environment.requirements: there is no file {asked.requirements!r} in the code"
        )
    with path.open("rb") as opened:
        contents = opened.read(MOST_REQUIREMENTS_BYTES + 1)
    if len(contents) > MOST_REQUIREMENTS_BYTES:
        raise EnvironmentFailed(
            f"environment.requirements: {asked.requirements!r} has more than {MOST_REQUIREMENTS_BYTES} bytes"
        )
    return path, contents


def _project_of(file: Path | None) -> bytes:
    """What is in the pyproject.toml that a uv.lock belongs to.  Raises EnvironmentFailed."""
    if file is None or file.suffix != ".lock":
        return b""
    path = file.with_name("pyproject.toml")
    if not path.is_file() or path.is_symlink() or path.stat().st_size > MOST_REQUIREMENTS_BYTES:
        raise EnvironmentFailed(f"environment.requirements: {file.name} needs its pyproject.toml beside it")
    return path.read_bytes()


def _build(
    asked: EnvironmentRequest,
    folder: Path,
    file: Path | None,
    code: Path,
    work: BuildWork,
    isolation: Isolation,
    *,
    is_inherited: bool,
) -> BuiltEnvironment:
    began = time.monotonic()
    work.limit.deadline = began + BUILD_LIMIT_S
    work.limit.too_late = f"it was not built within {BUILD_LIMIT_S:g} s; ask for fewer packages"
    work.say(f"building the environment {folder.name[:12]} of the job")
    wanted = _interpreter(asked.python)
    _uv(["venv", "--python", wanted, "--no-project", str(folder)], code, work)
    if file is not None and file.suffix == ".lock":
        file = _export(file, folder, work, is_inherited=is_inherited)
    # Before anything of the job runs in it: what it then makes there is untrusted.
    made = made_environment(folder)
    _layer(folder, is_inherited=is_inherited)
    if asked.setup is not None:
        write_pip(folder / "bin")
    installed = _install(asked, folder, file, code, work, isolation, made.base, is_inherited=is_inherited)
    if asked.setup is not None:
        _set_up(asked.setup, folder, code, work, isolation, made.base)
    build_s = time.monotonic() - began
    record = replace(made, packages=installed)
    write_record(folder, record)
    work.say(f"the environment is ready after {build_s:.1f} s: {installed} packages were installed")
    return _built(folder, build_s, record)


def _install(
    asked: EnvironmentRequest,
    folder: Path,
    file: Path | None,
    code: Path,
    work: BuildWork,
    isolation: Isolation,
    base: Path,
    *,
    is_inherited: bool,
) -> int:
    """Install the packages; returns how many there were.  Raises EnvironmentFailed."""
    if not asked.pip and file is None:
        return 0
    options = ["pip", "install", "--python", str(folder / "bin" / "python"), "--link-mode", "hardlink"]
    if is_inherited:
        excluded = folder / "excluded.txt"
        excluded.write_text("".join(f"{name}\n" for name in not_installed()))
        options += ["--excludes", str(excluded)]
    options += ["--requirements", str(file)] if file is not None else []
    words = ["--", *asked.pip]
    is_locked = file is not None and is_pylock(file.name)
    # A command can be forked from the node's interpreter only if it has the node's versions of what is loaded.
    beside = node_packages().beside if is_inherited and not is_locked else ()
    if decide(isolation, offered(isolation)) is None:
        return _install_with(lambda asks: _uv([*asks, *words], code, work), options, folder, beside, work)
    relative = str(file.relative_to(code)) if file is not None and file.is_relative_to(code) else None
    text = "" if file is None else file.read_text(errors="replace")
    if only_names(asked.pip, relative if file is None else relative or file.name, text):
        try:
            # Wheels are unpacked and run nothing, so that they may come from the cache of the node.  `--no-build` alone
            # does not see to that: editable packages are built in spite of it.
            return _install_with(
                lambda asks: _uv([*asks, "--no-build", *words], code, work), options, folder, beside, work
            )
        except EnvironmentFailed:
            work.limit.check()
    reads = [Path(uv_program()).parent, base]
    with confined_build(isolation, folder, code, reads, work.most_processes) as build:
        assert build is not None
        if relative is not None:
            options[options.index("--requirements") + 1] = str(build.code / relative)
        options[options.index("hardlink")] = "copy"

        def run(asks: list[str]) -> int:
            command = build.command([uv_program(), *_UV_OPTIONS, *asks, *words])
            failure = "uv could not build it"
            return _run(failure, command, build.code, build.variables({}), work, build.bounds)

        return _install_with(run, options, folder, beside, work)


def _install_with(
    run: Callable[[list[str]], int],
    options: list[str],
    folder: Path,
    beside: Sequence[str],
    work: BuildWork,
) -> int:
    """Install with these options of uv, and with the versions `beside` where nothing else becomes another version.

    uv does not fail where a constraint contradicts a requirement: it goes back to old releases of what the job asked
    for.  So what it finds freely is looked at first, and all of that but what is beside is kept.
    """
    if not beside:
        return run(options)
    work.found = {}
    try:
        run([*options, "--dry-run"])
        same = same_versions(work.found, beside)
    finally:
        work.found = None
    if same:
        constraints = folder / "same.txt"
        constraints.write_text("".join(f"{line}\n" for line in same))
        try:
            return run([*options, "--constraints", str(constraints)])
        except EnvironmentFailed:
            work.limit.check()
    return run(options)


def _set_up(setup: str, folder: Path, code: Path, work: BuildWork, isolation: Isolation, base: Path) -> None:
    """Run the commands with which the job finishes its environment."""
    work.say("environment.setup begins")
    work.says_all = True
    own = {
        "PATH": f"{folder / 'bin'}:{os.environ.get('PATH', '/usr/local/bin:/usr/bin:/bin')}",
        "VIRTUAL_ENV": str(folder),
    }
    command, failure = ["bash", "-euo", "pipefail", "-c", setup], "environment.setup failed"
    reads = [Path(uv_program()).parent, base]
    with confined_build(isolation, folder, code, reads, work.most_processes) as build:
        if build is None:
            _run(failure, command, code, {**program_variables(os.environ), **own}, work)
        else:
            _run(failure, build.command(command), build.code, build.variables(own), work, build.bounds)


def _interpreter(version: str | None) -> str:
    """The node's own interpreter, another one that is installed, or the version, of which uv fetches one."""
    if version is None or version == node_packages().python:
        return sys.executable
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    installed = sorted(pyenv.glob(f"{version}.*/bin/python"))
    if installed:
        return str(installed[-1])
    return shutil.which(f"python{version}") or version


def _layer(folder: Path, *, is_inherited: bool) -> None:
    """Make `remora`, and all other packages of the node where it inherits, importable behind its own."""
    (own,) = folder.glob("lib/python3.*/site-packages")
    layers = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")] if is_inherited else []
    public = public_folder(folder)
    lines = dict.fromkeys([*layers, str(public)])
    (own / "remora-layers.pth").write_text("".join(f"{line}\n" for line in lines))


def _uv(arguments: list[str], code: Path, work: BuildWork) -> int:
    """Run uv in the folder of the code; returns how many packages it installed.  Raises EnvironmentFailed."""
    command = [uv_program(), *_UV_OPTIONS, *arguments]
    return _run("uv could not build it", command, code, program_variables(os.environ), work)


def _export(lock: Path, folder: Path, work: BuildWork, *, is_inherited: bool) -> Path:
    """Write the packages of a uv.lock as a file of requirements, without the project itself; returns that file."""
    exported = folder / "exported.txt"
    options = ["--frozen", "--no-emit-project", "--no-dev", "--quiet", "--output-file", str(exported)]
    # What only an inherited package needs goes with it.
    pruned = ["--prune", INHERITED] if is_inherited else []
    # Its own interpreter, or uv looks for one in the code.
    python = ["--python", str(folder / "bin" / "python")]
    _uv(["export", *options, *python, *pruned], lock.parent, work)
    return exported


def _run(
    failure: str,
    command: list[str],
    code: Path,
    variables: Mapping[str, str],
    work: BuildWork,
    bounds: ProcessBounds | None = None,
) -> int:
    """Run a command of a build; returns how many packages it says it installed.

    Raises EnvironmentFailed, which begins with `failure` and has its last lines.
    """
    installed = 0

    def take(line: str) -> None:
        nonlocal installed
        installed += line.startswith(" + ")
        work.take(line)

    run_program(failure, command, code, variables, work.limit, take, bounds=bounds)
    return installed


def uv_program() -> str:
    """The program.  Raises EnvironmentFailed where the node has none."""
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.exists() else shutil.which("uv")
    if found is None:
        raise EnvironmentFailed(
            "the node has no uv, which builds environments: install remora[service] there"
        )
    return found


__all__ = [
    "BuiltEnvironment",
    "EnvironmentFailed",
    "EnvironmentImpossible",
    "environment",
    "node_packages",
    "prune",
]
