"""Which process of an installation is replaced next while a release comes into force (pure), and how that is done."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from cluster.local.environment import process_environment
from service.embedded.parts import get
from service.installation.layout import Installation, InstallationProblem, Layout, read_installation
from service.installation.releases import in_use, put_in_force, remove_others
from service.installation.supervisors import Supervisor, supervisor_of
from service.installation.units import Kind, Unit, units_of

#: Seconds in which a process of the API has to answer.
READY_S = 120.0
_LOOK_S = 0.1


def next_unit(units: Sequence[Unit], started_from: Mapping[str, str], release: str) -> Unit | None:
    """The process to replace next, None when all that are replaced are of the release.

    One at a time: first the processes of the API, of which the others answer meanwhile, then the controllers, of which
    another one takes the lead.  The head and the nodes for drivers go on: they are of their own release until their
    work is done or an operator restarts them.
    """
    order = {Kind.API: 0, Kind.CONTROLLER: 1}
    waiting = [unit for unit in units if unit.kind in order and started_from.get(unit.name, "") != release]
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

    def run(self, release: str, *, starts_again: bool = False) -> None:
        """Put a release in force.  Raises InstallationProblem when a process of the API does not answer with it.

        What was replaced by then is put back to the release that was in force before.  With `starts_again` the
        processes of the API and the controllers are started again if they are of the release already: their settings
        have changed.
        """
        before = self._layout.release()
        self._kept = {before}
        if starts_again and before == release:
            for unit in units_of(self._installation):
                if unit.kind in (Kind.API, Kind.CONTROLLER):
                    (self._layout.run / unit.name).unlink(missing_ok=True)
        put_in_force(self._layout, release)
        try:
            self._replace(release)
        except InstallationProblem as problem:
            if before == release:
                raise
            self._say(f"{problem}; going back to {before}")
            put_in_force(self._layout, before)
            self._replace(before, retires=False)
            raise InstallationProblem(f"{problem}; {before} is in force again") from None

    def _replace(self, release: str, *, retires: bool = True) -> None:
        units = units_of(self._installation, self._drivers(release))
        self._supervisor.write(units)
        self._supervisor.apply()
        while (unit := next_unit(units, self._started_from(units), release)) is not None:
            if retires and unit.kind is Kind.CONTROLLER:
                # Before the first new controller makes drivers ready for the next jobs.
                self._retire(release)
                retires = False
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
        """Let drivers' nodes of other releases take no more drivers."""
        for name in self._drivers(release):
            if name == release:
                continue
            given = ["--home", str(self._layout.home), "--head", self._installation.head]
            command = [sys.executable, "-P", "-m", "cluster.head.retire", *given, "--name", f"drivers-{name}"]
            done = subprocess.run(
                command,
                env=process_environment(self._layout.home),
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise InstallationProblem(
                    f"{done.stderr.strip().splitlines()[-1][:300] if done.stderr.strip() else 'Ray did not answer'};"
                    " run the same command again"
                )
            self._say(f"drivers-{name} ends with its last driver")

    def _started_from(self, units: Sequence[Unit]) -> dict[str, str]:
        return {unit.name: self._layout.started_from(unit.name) for unit in units}

    def _wait(self, unit: Unit, release: str) -> None:
        deadline = time.monotonic() + READY_S
        while not self._is_ready(unit, release):
            if time.monotonic() > deadline:
                raise InstallationProblem(
                    f"{unit.name} of {release} does not work after {READY_S:.0f} s; see its log in {self._layout.logs}"
                )
            time.sleep(_LOOK_S)

    def _is_ready(self, unit: Unit, release: str) -> bool:
        if self._layout.started_from(unit.name) != release:
            return False
        return unit.kind is not Kind.API or answers(unit.port, self._layout.read_settings())

    def prune(self) -> list[str]:
        """Remove the releases of which no process runs, except the one in force before; returns their names."""
        return remove_others(self._layout, {self._layout.release(), *self._kept, *in_use(self._layout)})


def answers(port: int, settings: Mapping[str, str]) -> bool:
    """Whether a process of the API answers at this machine, by the settings that it has."""
    certificate = settings.get("REMORA_TLS_CERTIFICATE")
    scheme = "https" if certificate else "http"
    url = f"{scheme}://127.0.0.1:{port}/healthz"
    return get(url, certificate=Path(certificate) if certificate else None) is not None


def wait_until_stopped(layout: Layout, units: Sequence[Unit], supervisor: Supervisor) -> None:
    """End the processes that write to the database.  Raises InstallationProblem."""
    for unit in units:
        if unit.kind in (Kind.API, Kind.CONTROLLER):
            supervisor.stop(unit.name)
    Path(layout.home / "api.url").unlink(missing_ok=True)
