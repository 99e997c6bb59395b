"""remora-server: the service on a machine of its own, in one folder: install, upgrade, backup, restore, status.

What each command does, and what it costs those who use the service, is in docs/day-two.md.
"""

from __future__ import annotations

import argparse
import datetime
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from service.installation import backups, releases
from service.installation.layout import Installation, InstallationProblem, Layout, read_installation
from service.installation.running import become
from service.installation.supervisors import supervisor_of
from service.installation.units import Unit, units_of
from service.installation.upgrades import Upgrade, releases_of_drivers, wait_until_stopped

#: The folder with the packages of the service.
ROOT = Path(__file__).resolve().parents[2]
PREFIX = Path("/opt/remora")


def main(words: Sequence[str]) -> int:
    """Run one command; the exit status of the process."""
    given = _parser().parse_args(words)
    layout = Layout(given.prefix.absolute())
    try:
        _COMMANDS[given.command](given, layout)
    except InstallationProblem as problem:
        print(f"remora-server: {problem}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"remora-server: {error}", file=sys.stderr)
        return 1
    return 0


def _install(given: argparse.Namespace, layout: Layout) -> None:
    if layout.record.exists():
        raise InstallationProblem(
            f"{layout.prefix} has an installation already; put another release in force with `remora-server upgrade`"
        )
    installation = Installation(
        supervisor=given.supervisor,
        apis=given.apis,
        port=given.port,
        controllers=given.controllers,
        head=given.head,
        has_head=not given.without_head,
        user=given.user,
    )
    layout.prefix.mkdir(parents=True, exist_ok=True)
    for folder in (layout.settings.parent, layout.home, layout.run, layout.logs, layout.backups):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not layout.settings.exists():
        with os.fdopen(os.open(layout.settings, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write("# Settings of all processes, NAME=VALUE; see docs/settings.md.\n")
    release = releases.make(layout, given.wheel, given.python, given.packages_of)
    releases.put_in_force(layout, release)
    supervisor = supervisor_of(installation, layout)
    supervisor.write(units_of(installation, [release]))
    # Last: what is recorded is whole, and an interrupted installation is begun again by the same command.
    installation.write(layout.record)
    if given.supervisor == "systemd":
        supervisor.apply()
        print(f"{release} is installed in {layout.prefix} and starts")
    else:
        print(f"{release} is installed; start it with: supervisord -c {layout.units}/supervisord.conf")


def _upgrade(given: argparse.Namespace, layout: Layout) -> None:
    upgrade = Upgrade(layout, _say)
    release = releases.make(layout, given.wheel, given.python, given.packages_of)
    before = layout.release()
    target = layout.backups / f"before-{release}.tar"
    if before != release and not target.exists():
        backups.back_up(layout, target, release=before, at=_now())
        _say(f"backup in {target}")
    upgrade.run(release)
    for name in upgrade.prune():
        _say(f"removed the release {name}")


def _backup(given: argparse.Namespace, layout: Layout) -> None:
    read_installation(layout)
    manifest = backups.back_up(layout, given.to.absolute(), release=layout.release(), at=_now())
    _say(f"{given.to}: {', '.join(manifest['files'])}, of {manifest['release']}")
    _say("it holds the keys of secrets: keep it where no one else reads it")


def _restore(given: argparse.Namespace, layout: Layout) -> None:
    installation = read_installation(layout)
    manifest = backups.read_manifest(given.source)
    supervisor = supervisor_of(installation, layout)
    units = _units(installation, layout)
    wait_until_stopped(layout, units, supervisor)
    try:
        backups.restore(layout, given.source)
    finally:
        for unit in units:
            supervisor.start(unit.name)
    _say(f"restored what was there at {manifest['at']}; what was submitted later is unknown to the service")


def _status(_: argparse.Namespace, layout: Layout) -> None:
    installation = read_installation(layout)
    print(f"release in force: {layout.release()}")
    for unit in _units(installation, layout):
        print(f"{unit.name:<40} {layout.started_from(unit.name) or 'never started'}")


def _run(given: argparse.Namespace, layout: Layout) -> None:
    installation = read_installation(layout)
    unit = next((one for one in _units(installation, layout) if one.name == given.name), None)
    if unit is None:
        # The record of a node for drivers is made by its first start.
        unit = next(
            (one for one in units_of(installation, [Path(sys.prefix).name]) if one.name == given.name), None
        )
    if unit is None:
        raise InstallationProblem(f"{layout.prefix} has no process {given.name}")
    become(unit, installation, layout, ROOT)


def _units(installation: Installation, layout: Layout) -> list[Unit]:
    names = {path.name: "" for path in layout.run.glob("drivers-*")}
    return units_of(installation, sorted({layout.release(), *releases_of_drivers(names)}))


_COMMANDS: dict[str, Callable[[argparse.Namespace, Layout], None]] = {
    "install": _install,
    "upgrade": _upgrade,
    "backup": _backup,
    "restore": _restore,
    "status": _status,
    "run": _run,
}


def _parser() -> argparse.ArgumentParser:
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--prefix", type=Path, default=PREFIX, help=f"folder of the installation; {PREFIX}")
    parser = argparse.ArgumentParser(prog="remora-server", description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)

    def add(name: str, text: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=text, description=text, parents=[shared])

    def of_wheel(command: argparse.ArgumentParser) -> None:
        command.add_argument("--wheel", type=Path, required=True, help="the release, a wheel of Remora")
        command.add_argument("--python", default=releases.this_python(), help="interpreter of the release")
        command.add_argument(
            "--packages-of",
            default="",
            metavar="PYTHON",
            help="use the packages that are installed for this interpreter, and no index",
        )

    install = add("install", "install the service in a folder")
    of_wheel(install)
    install.add_argument("--supervisor", choices=["systemd", "supervisord"], default="systemd")
    install.add_argument("--apis", type=int, default=2, help="processes of the API; 2")
    install.add_argument("--port", type=int, default=7265, help="port of the first of them; 7265")
    install.add_argument("--controllers", type=int, default=2, help="controllers, of which one leads; 2")
    install.add_argument(
        "--head", default="127.0.0.2:6379", help="address and port of the Ray head, which nodes reach"
    )
    install.add_argument("--without-head", action="store_true", help="the head is on another machine")
    install.add_argument("--user", default="", help="user that the processes run as")
    of_wheel(add("upgrade", "put another release in force, process by process, while jobs go on"))
    add("backup", "copy database and keys to one file while jobs go on").add_argument(
        "to", type=Path, help="a new file"
    )
    add("restore", "put a backup in place; running jobs go on").add_argument("source", type=Path)
    add("status", "processes and the releases that they run")
    add("run", "be one process of the installation").add_argument("name")
    return parser


def _say(text: str) -> None:
    print(text, flush=True)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
