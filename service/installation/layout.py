"""What an installation is made of and where its files are; one folder holds all of it.

```
PREFIX/installation.json   what is installed: processes, ports, the head's address
PREFIX/etc/remora.env      the settings, one NAME=VALUE per line, for all processes; others may be elsewhere
PREFIX/releases/RELEASE/   a virtual environment for each release
PREFIX/current             a link to the release in force
PREFIX/state/              the service's home (REMORA_HOME), unless it is elsewhere
PREFIX/run/                release and process id of each process when it was started last, and the supervisor's socket
PREFIX/units/              what systemd or supervisord reads
PREFIX/backups/            one is made before each upgrade
PREFIX/commands.lock       held by the one command that changes the installation
PREFIX/restarting          while all processes are started again: with which release and settings
```
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

#: Lines of a file of settings that are read at most.
_MOST_LINES = 1000


class InstallationProblem(Exception):
    """Something cannot be done with an installation; the message is one sentence for people."""


class WentBack(InstallationProblem):
    """A release did not work, and the one before is in force again."""


@dataclass(frozen=True)
class Layout:
    """Paths below an installation's folder, absolute; building it touches nothing."""

    prefix: Path
    #: The service's home, when it is not below the prefix.
    own_home: Path | None = None
    #: Further files of settings, such as those of a deployment; what they say counts.
    more_settings: tuple[Path, ...] = ()

    @property
    def record(self) -> Path:
        """What is installed, as JSON."""
        return self.prefix / "installation.json"

    @property
    def settings(self) -> Path:
        """Settings of all processes; may hold secrets, so that its owner alone reads it."""
        return self.prefix / "etc" / "remora.env"

    @property
    def releases(self) -> Path:
        """A virtual environment for each release."""
        return self.prefix / "releases"

    @property
    def current(self) -> Path:
        """A link to the release in force."""
        return self.prefix / "current"

    @property
    def home(self) -> Path:
        """The service's home."""
        return self.own_home or self.prefix / "state"

    @property
    def run(self) -> Path:
        """From which release each process was started."""
        return self.prefix / "run"

    @property
    def units(self) -> Path:
        """What the supervisor of processes reads."""
        return self.prefix / "units"

    @property
    def logs(self) -> Path:
        """What processes print, where the supervisor keeps no journal of its own."""
        return self.home / "logs"

    @property
    def backups(self) -> Path:
        """One backup is made before each upgrade."""
        return self.prefix / "backups"

    @property
    def restarting(self) -> Path:
        """While all processes are started again: a digest of the release and the settings that they get."""
        return self.prefix / "restarting"

    def read_settings(self) -> dict[str, str]:
        """What all files of settings say.  Raises InstallationProblem."""
        found: dict[str, str] = {}
        for path in (self.settings, *self.more_settings):
            found |= read_settings_file(path)
        return found

    def release(self) -> str:
        """Name of the release in force.  Raises InstallationProblem when there is none."""
        try:
            return self.current.readlink().name
        except OSError:
            raise InstallationProblem(
                f"{self.prefix} has no release in force; install one with `remora-server install`"
            ) from None

    def started_from(self, unit: str) -> str:
        """Name of the release from which a process was started last, empty when it never was."""
        return self._of_start(unit)[0]

    def pid_of(self, unit: str) -> int:
        """Id of the process that was started last, which may have ended; 0 when there never was one."""
        said = self._of_start(unit)[1]
        return int(said) if said.isdecimal() else 0

    def write_start(self, unit: str, release: str, pid: int) -> None:
        """Say that a process starts, which is done before it does.  Raises OSError."""
        self.run.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = self.run / f".{unit}"
        draft.write_text(f"{release}\n{pid}\n", encoding="utf-8")
        draft.replace(self.run / unit)

    def _of_start(self, unit: str) -> tuple[str, str]:
        try:
            lines = [*(self.run / unit).read_text(encoding="utf-8").splitlines(), "", ""]
        except (OSError, UnicodeDecodeError):
            return "", ""
        return lines[0].strip(), lines[1].strip()


@dataclass(frozen=True, kw_only=True)
class Installation:
    """What is installed: which processes run on this machine, and how they are reached."""

    #: What starts and ends processes: `systemd` or `supervisord`.
    supervisor: str
    #: Processes of the API, at consecutive ports from `port`.
    apis: int
    port: int
    #: Controllers, of which one leads.
    controllers: int
    #: `host:port` of the Ray head; the head runs on this machine if `has_head`.
    head: str
    has_head: bool
    #: The user that the processes run as, empty for the one that installs.
    user: str = ""
    #: The service's home and further files of settings, where they are not below the prefix.
    home: str = ""
    settings: tuple[str, ...] = ()

    def write(self, path: Path) -> None:
        """Write it as a whole or not at all."""
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")
        draft.replace(path)


def layout_of(prefix: Path) -> Layout:
    """Where the files of the installation in a folder are.  Raises InstallationProblem when its record is none."""
    layout = Layout(prefix)
    if not layout.record.exists():
        return layout
    found = read_installation(layout)
    return placed(layout, found)


def placed(layout: Layout, installation: Installation) -> Layout:
    """The same with what an installation has elsewhere."""
    home = Path(installation.home) if installation.home else None
    return replace(layout, own_home=home, more_settings=tuple(Path(path) for path in installation.settings))


def read_installation(layout: Layout) -> Installation:
    """What is installed there.  Raises InstallationProblem when nothing is, or it cannot be read."""
    try:
        fields = json.loads(layout.record.read_text(encoding="utf-8"))
        return Installation(**{**fields, "settings": tuple(fields.get("settings", ()))})
    except FileNotFoundError:
        raise InstallationProblem(
            f"nothing is installed in {layout.prefix}; begin with `remora-server install`"
        ) from None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise InstallationProblem(f"{layout.record} cannot be read: {error}") from None


def read_settings_file(path: Path) -> dict[str, str]:
    """The settings in a file of NAME=VALUE lines; empty lines and those that begin with # say nothing.

    Raises InstallationProblem for a line of another form, which it does not print: it may hold a secret.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise InstallationProblem(f"{path} cannot be read: {error}") from None
    if len(lines) > _MOST_LINES:
        raise InstallationProblem(f"{path} has more than {_MOST_LINES} lines")
    settings = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise InstallationProblem(f"line {number} of {path} is not NAME=VALUE")
        settings[name] = value
    return settings
