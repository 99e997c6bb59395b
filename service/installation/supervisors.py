"""What runs the processes of an installation: systemd, or supervisord where there is no systemd."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from service.installation.containers import SUPERVISOR
from service.installation.layout import Installation, InstallationProblem, Layout
from service.installation.units import Unit, supervisord_configuration, systemd_unit

#: Seconds for one request to a supervisor.
_TIMEOUT_S = 120.0
#: Where systemd looks for units of this machine.
SYSTEMD_UNITS = Path("/etc/systemd/system")


class Supervisor(Protocol):
    """Starts, restarts and ends processes by the names of their units."""

    def write(self, units: Sequence[Unit]) -> None:
        """Let these be the processes; what runs goes on.  Raises InstallationProblem."""

    def apply(self) -> None:
        """Start what was written and does not run, and end what is no more among them.  Raises InstallationProblem."""

    def restart(self, unit: str) -> None:
        """End a process and start it again.  Raises InstallationProblem."""

    def stop(self, unit: str) -> None:
        """End a process until it is started again; fine when it has ended.  Raises InstallationProblem."""

    def start(self, unit: str) -> None:
        """Start a process; fine when it runs.  Raises InstallationProblem."""


def supervisor_of(installation: Installation, layout: Layout) -> Supervisor:
    """That of an installation."""
    if installation.supervisor == "systemd":
        return Systemd(installation, layout)
    if installation.supervisor == SUPERVISOR:
        return Containers()
    return Supervisord(layout)


class Containers:
    """An engine of containers, outside of this one: its user starts and ends them, and nothing is done here."""

    def write(self, units: Sequence[Unit]) -> None:
        """As `Supervisor.write`; there is nothing to write."""

    def apply(self) -> None:
        """As `Supervisor.apply`."""

    def restart(self, unit: str) -> None:
        """As `Supervisor.restart`."""

    def stop(self, unit: str) -> None:
        """As `Supervisor.stop`; who restores has stopped them."""

    def start(self, unit: str) -> None:
        """As `Supervisor.start`; who restores starts them again."""


class Systemd:
    """Units in PREFIX/units, linked into the folder of this machine's units."""

    def __init__(self, installation: Installation, layout: Layout, folder: Path = SYSTEMD_UNITS) -> None:
        self._installation = installation
        self._layout = layout
        self._folder = folder

    def write(self, units: Sequence[Unit]) -> None:
        """As `Supervisor.write`."""
        self._layout.units.mkdir(parents=True, exist_ok=True)
        names = {_systemd_name(unit.name) for unit in units}
        for unit in units:
            path = self._layout.units / _systemd_name(unit.name)
            path.write_text(systemd_unit(unit, self._installation, self._layout), encoding="utf-8")
        for path in self._layout.units.glob("remora-*.service"):
            if path.name not in names:
                self._call("disable", "--now", path.name)
                path.unlink()

    def apply(self) -> None:
        """As `Supervisor.apply`."""
        paths = sorted(self._layout.units.glob("remora-*.service"))
        for path in paths:
            self._call("link", str(path))
        self._call("daemon-reload")
        self._call("enable", "--now", *(path.name for path in paths))

    def restart(self, unit: str) -> None:
        """As `Supervisor.restart`."""
        self._call("restart", _systemd_name(unit))

    def stop(self, unit: str) -> None:
        """As `Supervisor.stop`."""
        self._call("stop", _systemd_name(unit))

    def start(self, unit: str) -> None:
        """As `Supervisor.start`."""
        self._call("start", _systemd_name(unit))

    def _call(self, *words: str) -> None:
        _run(["systemctl", "--no-pager", *words])


class Supervisord:
    """One file for supervisord, which an operator or a container runs in the foreground."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    @property
    def configuration(self) -> Path:
        """What to run `supervisord -c` with."""
        return self._layout.units / "supervisord.conf"

    def write(self, units: Sequence[Unit]) -> None:
        """As `Supervisor.write`."""
        self._layout.units.mkdir(parents=True, exist_ok=True)
        text = supervisord_configuration(units, self._layout, _socket(self._layout))
        draft = self.configuration.with_suffix(".draft")
        draft.write_text(text, encoding="utf-8")
        draft.replace(self.configuration)

    def apply(self) -> None:
        """As `Supervisor.apply`."""
        self._call("update")

    def restart(self, unit: str) -> None:
        """As `Supervisor.restart`."""
        self.stop(unit)
        self.start(unit)

    def stop(self, unit: str) -> None:
        """As `Supervisor.stop`."""
        self._call("stop", unit, fine="ERROR (not running)")

    def start(self, unit: str) -> None:
        """As `Supervisor.start`."""
        self._call("start", unit, fine="ERROR (already started)")

    def _call(self, *words: str, fine: str = "") -> None:
        _run([sys.executable, "-m", "supervisor.supervisorctl", "-c", str(self.configuration), *words], fine)


def _systemd_name(unit: str) -> str:
    return f"remora-{unit}.service"


def _socket(layout: Layout) -> str:
    """The supervisor's socket: in the installation, or in a short folder where its path would be too long for one."""
    path = layout.run / "supervisor.sock"
    if len(str(path)) < 100:
        return str(path)
    short = hashlib.sha256(str(layout.prefix).encode()).hexdigest()[:12]
    return str(Path(tempfile.gettempdir()) / f"remora-{short}.sock")


def _run(command: list[str], fine: str = "") -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InstallationProblem(f"`{' '.join(command[-3:])}` failed: {error}") from None
    said = f"{done.stdout}{done.stderr}".strip()
    if fine and fine in said:
        return
    if done.returncode or "ERROR" in said:
        raise InstallationProblem(f"`{' '.join(command[-3:])}` failed: {said[-400:]}")
