"""remora-server: the service on a machine of its own, in one folder: install, upgrade, backup, restore, status.

What each command does, and what it costs those who use the service, is in docs/day-two.md.
"""

from __future__ import annotations

import argparse
import datetime
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from service.installation import backups, releases
from service.installation.layout import (
    Installation,
    InstallationProblem,
    Layout,
    layout_of,
    placed,
    read_installation,
    read_settings_file,
)
from service.installation.running import become
from service.installation.supervisors import supervisor_of
from service.installation.units import Unit, units_of
from service.installation.upgrades import Upgrade, releases_of_drivers, wait_until_stopped

#: The folder with the packages of the service.
ROOT = Path(__file__).resolve().parents[2]
PREFIX = Path("/opt/remora")
#: Where the head listens unless it is said.
HEAD = "127.0.0.2:6379"
#: Files of settings that deploy/azure writes on its machines.
DEPLOYED = (Path("/etc/remora/service.env"), Path("/etc/remora/database.env"))


def main(words: Sequence[str]) -> int:
    """Run one command; the exit status of the process."""
    given = _parser().parse_args(words)
    try:
        layout = layout_of(given.prefix.absolute())
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
        if given.wheel is not None:
            raise InstallationProblem(
                f"{layout.prefix} has an installation already; put another release in force with"
                " `remora-server upgrade`"
            )
        _follow(layout)
        return
    installation = _of_role(given) if given.role else _as_given(given)
    layout = placed(layout, installation)
    layout.prefix.mkdir(parents=True, exist_ok=True)
    for folder in (layout.settings.parent, layout.home, layout.run, layout.logs, layout.backups):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _give(folder, installation.user)
    if not layout.settings.exists():
        with os.fdopen(os.open(layout.settings, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write("# Settings of all processes, NAME=VALUE; see docs/settings.md.\n")
    _give(layout.settings, installation.user)
    release = (
        releases.make(layout, given.wheel, given.python, given.packages_of)
        if given.wheel is not None
        else _own_release(layout)
    )
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


def _give(path: Path, user: str) -> None:
    """Let a file or folder be the user's that the processes run as, where there is one."""
    if user:
        shutil.chown(path, user, user)


def _as_given(given: argparse.Namespace) -> Installation:
    return Installation(
        supervisor=given.supervisor,
        apis=2 if given.apis is None else given.apis,
        port=7265 if given.port is None else given.port,
        controllers=2 if given.controllers is None else given.controllers,
        head=given.head or HEAD,
        has_head=not given.without_head,
        user=given.user,
        home="" if given.home is None else str(given.home.absolute()),
        settings=tuple(str(path.absolute()) for path in given.settings),
    )


def _of_role(given: argparse.Namespace) -> Installation:
    """A machine of a deployment: its settings say where its home and the head are, and at which port it listens."""
    files = [path for path in DEPLOYED if path.exists()]
    said: dict[str, str] = {}
    for path in files:
        said |= read_settings_file(path)
    missing = [name for name in ("REMORA_HOME", "REMORA_RAY_ADDRESS") if not said.get(name)]
    if missing:
        raise InstallationProblem(f"{DEPLOYED[0]} does not say {' and '.join(missing)}")
    serves = given.role != "head"
    return Installation(
        supervisor=given.supervisor,
        apis=int(serves),
        port=int(said.get("REMORA_PORT", "7265")),
        controllers=int(serves),
        head=said["REMORA_RAY_ADDRESS"],
        has_head=given.role != "service",
        user=given.user,
        home=said["REMORA_HOME"],
        settings=tuple(str(path) for path in DEPLOYED),
    )


def _own_release(layout: Layout) -> str:
    """The release that this command is of, where it is one of this installation."""
    own = Path(sys.prefix).resolve()
    if own.parent != layout.releases.resolve():
        raise InstallationProblem("name the release to install with --wheel")
    return own.name


def _follow(layout: Layout) -> None:
    """Put the release of this command in force with the settings as they are now."""
    release, before = _own_release(layout), layout.release()
    target = layout.backups / f"before-{release}.tar"
    if before != release and read_installation(layout).apis and not target.exists():
        backups.back_up(layout, target, release=before, at=_now())
        _say(f"backup in {target}")
    upgrade = Upgrade(layout, _say)
    upgrade.run(release, starts_again=True)
    for name in upgrade.prune():
        _say(f"removed the release {name}")


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
        for path in layout.home.iterdir():
            if path.is_file() and not path.is_symlink():
                _give(path, installation.user)
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

    def of_wheel(command: argparse.ArgumentParser, *, required: bool) -> None:
        command.add_argument("--wheel", type=Path, required=required, help="the release, a wheel of Remora")
        command.add_argument("--python", default=releases.this_python(), help="interpreter of the release")
        command.add_argument(
            "--packages-of",
            default="",
            metavar="PYTHON",
            help="use the packages that are installed for this interpreter, and no index",
        )

    install = add("install", "install the service in a folder")
    of_wheel(install, required=False)
    install.add_argument(
        "--role",
        choices=["both", "head", "service"],
        help="on a machine of deploy/azure, which has its settings in /etc/remora: what it is; again after each change",
    )
    install.add_argument("--home", type=Path, help="the service's home; PREFIX/state")
    install.add_argument(
        "--settings", type=Path, action="append", default=[], help="another file of settings"
    )
    install.add_argument("--supervisor", choices=["systemd", "supervisord"], default="systemd")
    install.add_argument("--apis", type=int, help="processes of the API; 2")
    install.add_argument("--port", type=int, help="port of the first of them; 7265")
    install.add_argument("--controllers", type=int, help="controllers, of which one leads; 2")
    install.add_argument("--head", help=f"address and port of the Ray head, which nodes reach; {HEAD}")
    install.add_argument("--without-head", action="store_true", help="the head is on another machine")
    install.add_argument("--user", default="", help="user that the processes run as")
    of_wheel(
        add("upgrade", "put another release in force, process by process, while jobs go on"), required=True
    )
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
