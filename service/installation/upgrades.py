"""Which process of an installation is replaced next while a release comes into force (pure), and how that is done."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from cluster.local.environment import process_environment
from service.installation.health import answers
from service.installation.layout import (
    Installation,
    InstallationProblem,
    Layout,
    WentBack,
    read_installation,
)
from service.installation.releases import in_use, migrations_of, put_in_force, remove_others
from service.installation.supervisors import Supervisor, supervisor_of
from service.installation.units import Kind, Unit, units_of
from service.store.migrate import knows

#: Seconds in which a process of the API has to answer.
READY_S = 120.0
#: Seconds for which one controller has to live, longer than what it needs to begin, so that it counts as started.
LIVES_S = 5.0
_LOOK_S = 0.1
#: Bytes of one file that count as settings.
_MOST_BYTES = 2**20


def next_unit(units: Sequence[Unit], working: Mapping[str, str], release: str) -> Unit | None:
    """The process to replace next, None when all that are replaced are of the release.

    One at a time: first the processes of the API, of which the others answer meanwhile, then the controllers, of which
    another one takes the lead.  The head and the nodes for drivers go on: they are of their own release until their
    work is done or an operator restarts them.
    """
    order = {Kind.API: 0, Kind.CONTROLLER: 1}
    waiting = [unit for unit in units if unit.kind in order and working.get(unit.name, "") != release]
    return min(waiting, key=lambda unit: order[unit.kind], default=None)


def releases_of_drivers(units: Mapping[str, str]) -> list[str]:
    """The releases of which a node for drivers was started, by what is in PREFIX/run (pure)."""
    return sorted(name.removeprefix("drivers-") for name in units if name.startswith("drivers-"))


class Upgrade:
    """Replaces processes one by one; called again after it was killed, it goes on with those that are left."""

    def __init__(self, layout: Layout, say: Callable[[str], None]) -> None:
        """Raises InstallationProblem when nothing is installed there."""
        self._layout = layout
        self._installation: Installation = read_installation(layout)
        self._supervisor: Supervisor = supervisor_of(self._installation, layout)
        self._say = say
        #: The release that was in force before.
        self._kept: set[str] = set()
        #: Drivers' nodes of other releases were asked to end: what they carry can be started nowhere else.
        self._has_retired = False
        #: Why that was in vain.
        self._problems: list[str] = []

    def run(self, release: str, *, starts_again: bool = False) -> None:
        """Put a release in force.  Raises InstallationProblem when one of its processes does not work.

        The database is brought to its schema first; nothing was replaced when that fails.  Later, what was replaced is
        put back to the release before, if that one can read the schema, and WentBack is raised.  With `starts_again`
        the processes of the API and the controllers are started again if they are of the release already: their
        settings have changed.  A call after one that did not come to its end goes on with those that are left, unless
        they have changed again.
        """
        before = self._layout.release()
        self._kept = {before}
        if starts_again:
            self._begin_again(release, has_changed=before != release)
        revision = self._migrate(release)
        put_in_force(self._layout, release)
        try:
            self._replace(release)
        except InstallationProblem as problem:
            self._go_back(before, release, revision, str(problem))
        if self._problems:
            raise InstallationProblem(
                f"all processes run {release}, but drivers' nodes of other releases could not be retired"
                f" ({'; '.join(self._problems)}); run the same command again"
            )
        self._layout.restarting.unlink(missing_ok=True)

    def _begin_again(self, release: str, *, has_changed: bool) -> None:
        """Let all processes of the API and the controllers count as never started, unless a call before did so."""
        layout, digest = self._layout, _digest_of(release, self._layout)
        if layout.restarting.exists() and layout.restarting.read_text(encoding="utf-8") == digest:
            return
        if not has_changed:
            for unit in units_of(self._installation):
                if unit.kind in (Kind.API, Kind.CONTROLLER):
                    (layout.run / unit.name).unlink(missing_ok=True)
        # Last: killed before, the next call begins again, and none was started yet.
        layout.restarting.write_text(digest, encoding="utf-8")

    def _migrate(self, release: str) -> str:
        """Let the release bring the database to its schema, however long that takes; the revision.

        The release before still runs: from now on it works on this schema, but cannot be started on it.
        """
        if not (self._installation.apis or self._installation.controllers):
            return ""
        program = self._layout.releases / release / "bin" / "remora-server"
        said = self._call([str(program), "migrate", "--prefix", str(self._layout.prefix)], {"PYTHONPATH": ""})
        if said.returncode:
            raise InstallationProblem(
                f"{release} cannot migrate the database, and nothing was replaced: {_last_line(said.stderr)}"
            )
        return _last_line(said.stdout)

    def _go_back(self, before: str, release: str, revision: str, problem: str) -> None:
        """Put the release before in force again where it can work; always raises InstallationProblem.

        Raises WentBack where it did.
        """
        if before == release:
            raise InstallationProblem(problem)
        if self._has_retired or (revision and not knows(revision, migrations_of(self._layout, before))):
            why = "the drivers' node" if self._has_retired else "the schema of the database"
            raise InstallationProblem(
                f"{problem}; {release} stays in force, as {why} is its own: repair what is wrong and run the same"
                " command again"
            )
        self._say(f"{problem}; going back to {before}")
        put_in_force(self._layout, before)
        try:
            self._replace(before, retires=False)
        except InstallationProblem as another:
            problem = f"{problem}; {another}"
        raise WentBack(f"{problem}; {before} is in force again")

    def _replace(self, release: str, *, retires: bool = True) -> None:
        units = units_of(self._installation, self._drivers(release))
        self._supervisor.write(units)
        self._supervisor.apply()
        # One of the release may have been started by a call that was killed, and not work.
        working: dict[str, str] = {}
        while (unit := next_unit(units, working, release)) is not None:
            working[unit.name] = release
            if retires and unit.kind is Kind.CONTROLLER and next_unit(units, working, release) is None:
                # A new controller that leads makes drivers ready for the next jobs; the others do not lead yet.
                self._retire(release)
            if self._layout.started_from(unit.name) != release:
                self._supervisor.restart(unit.name)
            self._wait(unit, release)
            self._say(f"{unit.name} runs {release}")

    def _drivers(self, release: str) -> list[str]:
        """A node for drivers of this release, and of each release whose node was not retired."""
        if not self._installation.has_head:
            return []
        names = {path.name: "" for path in self._layout.run.glob("drivers-*")}
        return sorted({release, *releases_of_drivers(names)})

    def _retire(self, release: str) -> None:
        """Let drivers' nodes of other releases, on any machine, take no more drivers."""
        given = ["--home", str(self._layout.home), "--head", self._installation.head]
        command = [sys.executable, "-P", "-m", "cluster.head.retire", *given, "--for", f"drivers-{release}"]
        done = self._call(command, process_environment(self._layout.home))
        names = done.stdout.split()
        self._has_retired = self._has_retired or bool(names)
        for name in names:
            self._say(f"{name} ends with its last driver")
        if done.returncode:
            self._problems.append(_last_line(done.stderr))

    def _call(self, command: list[str], variables: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """Run a command as the user whose files the home has, without a limit of time."""
        user = self._installation.user or None
        return subprocess.run(
            command,
            env={**os.environ, **variables},
            user=user,
            group=user,
            extra_groups=[] if user else None,
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )

    def _wait(self, unit: Unit, release: str) -> None:
        deadline, alive = time.monotonic() + READY_S, Alive()
        while not self._is_ready(unit, release, alive):
            if time.monotonic() > deadline:
                raise InstallationProblem(
                    f"{unit.name} of {release} does not work after {READY_S:.0f} s; see its log in {self._layout.logs}"
                )
            time.sleep(_LOOK_S)

    def _is_ready(self, unit: Unit, release: str, alive: Alive) -> bool:
        if self._layout.started_from(unit.name) != release:
            return False
        if unit.kind is Kind.API:
            return answers(unit.port, self._layout.read_settings())
        pid = self._layout.pid_of(unit.name)
        return alive.seconds(pid, time.monotonic(), runs=_runs(pid)) >= LIVES_S

    def prune(self) -> list[str]:
        """Remove the releases of which no process runs, except the one in force before; returns their names."""
        return remove_others(self._layout, {self._layout.release(), *self._kept, *in_use(self._layout)})


class Alive:
    """For how long one process has been seen to live; one that is started again begins again."""

    def __init__(self) -> None:
        self._pid, self._since = 0, 0.0

    def seconds(self, pid: int, now: float, *, runs: bool) -> float:
        """Seconds since it was first seen; `now` is the time of a monotonic clock."""
        if not runs or pid != self._pid:
            self._pid, self._since = pid if runs else 0, now
        return now - self._since if runs else 0.0


def _digest_of(release: str, layout: Layout) -> str:
    """Of a release, the installation, its settings, and the files that these name, such as a certificate."""
    named = [Path(value) for value in layout.read_settings().values() if value.startswith("/")]
    found = hashlib.sha256(release.encode())
    for path in (layout.record, layout.settings, *layout.more_settings, *named):
        content = _content(path)
        found.update(f"\n{path} {len(content)}\n".encode() + content)
    return found.hexdigest()


def _content(path: Path) -> bytes:
    """What a file has, nothing where there is none or something else, such as a pipe."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            return file.read(_MOST_BYTES) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b""
    except OSError:
        return b""


def _runs(pid: int) -> bool:
    """Whether a process lives."""
    try:
        return pid > 0 and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:300] if lines else "it said nothing"
