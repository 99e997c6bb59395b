"""remora-server: the service on a machine of its own, in one folder: install, upgrade, backup, restore, rotate, status.

What each command does, and what it costs those who use the service, is in docs/day-two.md.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import pwd
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from cluster.local.certificates import BY_RESTART, ends_soon
from cluster.local.folders import ClusterFolders
from service.api_certificate import api_ends_soon
from service.installation import as_user, backups, beside, container_commands, missing_files, releases
from service.installation.alone import alone
from service.installation.arguments import parser
from service.installation.cluster_secret import replace_secret
from service.installation.containers import SUPERVISOR
from service.installation.databases import database_url
from service.installation.layout import (
    Installation,
    InstallationProblem,
    Layout,
    WentBack,
    layout_of,
    placed,
    read_installation,
    read_settings_file,
)
from service.installation.running import become
from service.installation.supervisors import supervisor_of
from service.installation.units import OF_RAY, Kind, Unit, units_of
from service.installation.upgrades import Upgrade, releases_of_drivers
from service.steady_clock import CLOCK
from service.store.database import Database
from service.store.failures import StoreError
from service.store.migrate import migrate, revision_of

#: The folder with the packages of the service.
ROOT = Path(__file__).resolve().parents[2]
#: Files of settings that deploy/azure writes on its machines.
DEPLOYED = (Path("/etc/remora/service.env"), Path("/etc/remora/database.env"))
#: Exit status of a command that has put the release before in force again; deploy/azure/machine/install.py knows it.
WENT_BACK = 4
#: Where deploy/azure/machine/install.py writes a cluster's secret that the vault has and that is not in force yet.
NEXT_SECRET = Path("/var/lib/remora-apply/ray.token")


def main(words: Sequence[str]) -> int:
    """Run one command; the exit status of the process: 0, 1 for what cannot be done, and WENT_BACK."""
    given = parser().parse_args(words)
    # The processes of the service read its releases, and may have another user.
    os.umask(0o022)
    try:
        layout = layout_of(given.prefix.absolute())
        _COMMANDS[given.command](given, layout)
    except InstallationProblem as problem:
        print(f"remora-server: {problem}", file=sys.stderr)
        return WENT_BACK if isinstance(problem, WentBack) else 1
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
        with alone(layout.prefix):
            _follow(given, layout)
        return
    if given.user and given.supervisor == "supervisord":
        raise InstallationProblem(
            "with supervisord, processes run as its own user: leave --user out, and start it so"
        )
    installation = _of_role(given) if given.role else _as_given(given)
    with alone(layout.prefix):
        _install_first(given, placed(layout, installation), installation)


def _install_first(given: argparse.Namespace, layout: Layout, installation: Installation) -> None:
    _make_folders(layout, installation)
    if given.wheel is not None:
        release = releases.make(layout, given.wheel, given.python, given.packages_of)
    else:
        release = _own_release(layout)
        releases.bring_packages(layout, release)
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


def _make_folders(layout: Layout, installation: Installation) -> None:
    """Make what is missing of an installation's folders, and its file of settings."""
    layout.prefix.mkdir(parents=True, exist_ok=True)
    # Backups hold keys, and this command works in their folder: it stays that of the user who installs.
    layout.backups.mkdir(mode=0o700, parents=True, exist_ok=True)
    for folder in (layout.settings.parent, layout.home, layout.run, layout.logs):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _give(folder, installation.user)
    if not layout.settings.exists():
        with os.fdopen(os.open(layout.settings, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write("# Settings of all processes, NAME=VALUE; see docs/settings.md.\n")
    _give(layout.settings, installation.user)


def _give(path: Path, user: str) -> None:
    """Let a file or folder be the user's that the processes run as, where there is one; a link is not followed.

    Raises InstallationProblem when there is no such user.
    """
    if not user:
        return
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        raise InstallationProblem(
            f"there is no user {user} on this machine; make it with `useradd --system --user-group {user}`"
        ) from None
    opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fchown(opened, entry.pw_uid, entry.pw_gid)
    finally:
        os.close(opened)


def _as_given(given: argparse.Namespace) -> Installation:
    return Installation(
        supervisor=given.supervisor,
        apis=2 if given.apis is None else given.apis,
        port=7265 if given.port is None else given.port,
        controllers=2 if given.controllers is None else given.controllers,
        head=given.head,
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
        apis=(given.apis or 1) if serves else 0,
        port=int(said.get("REMORA_PORT", "7265")),
        controllers=(given.controllers or 1) if serves else 0,
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


def _follow(given: argparse.Namespace, layout: Layout) -> None:
    """Put the release of this command in force with the settings as they are now."""
    if given.role:
        # The role, addresses and folders of the machine may have changed, too; who runs the processes has not.
        had = read_installation(layout)
        installation = replace(_of_role(given), supervisor=had.supervisor, user=given.user or had.user)
        layout = placed(layout, installation)
        _make_folders(layout, installation)
        installation.write(layout.record)
    release = _own_release(layout)
    releases.bring_packages(layout, release)
    _back_up_before(release, layout)
    upgrade = Upgrade(layout, _say)
    upgrade.run(release, starts_again=True)
    for name in upgrade.prune():
        _say(f"removed the release {name}")


def _upgrade(given: argparse.Namespace, layout: Layout) -> None:
    container_commands.expect_no_containers(read_installation(layout))
    with alone(layout.prefix):
        upgrade = Upgrade(layout, _say)
        release = releases.make(layout, given.wheel, given.python, given.packages_of)
        _back_up_before(release, layout)
        upgrade.run(release)
        for name in upgrade.prune():
            _say(f"removed the release {name}")


def _back_up_before(release: str, layout: Layout) -> None:
    """Make the backup of an upgrade, once; a machine with the head alone has no database."""
    before, installation = layout.release(), read_installation(layout)
    target = layout.backups / f"before-{release}.tar"
    if before == release or target.exists() or not (installation.apis or installation.controllers):
        return
    backups.back_up(layout, target, release=before, at=_now(), user=installation.user)
    _say(f"backup in {target}")


def _backup(given: argparse.Namespace, layout: Layout) -> None:
    user = read_installation(layout).user
    # Not while a restoration has replaced a part of what a backup has.
    with alone(layout.prefix):
        manifest = backups.back_up(
            layout, given.to.absolute(), release=layout.release(), at=_now(), user=user
        )
    _say(f"{given.to}: {', '.join(manifest['files'])}, of {manifest['release']}")
    _say("it holds the keys of secrets: keep it where no one else reads it")


def _restore(given: argparse.Namespace, layout: Layout) -> None:
    read_installation(layout)
    manifest = backups.read_manifest(given.source)
    with alone(layout.prefix):
        _put_back(given, layout, read_installation(layout))
    _say(
        f"restored what was there at {manifest['at']}; what was submitted later is unknown to the service, whose"
        " controllers end its drivers"
    )
    # The processes work already: to look through the storage takes the longer the more jobs there are.
    if user := read_installation(layout).user:
        _say(as_user.call(user, "service.installation.missing_files", str(layout.prefix)))
    else:
        missing_files.main([str(layout.prefix)])


def _put_back(given: argparse.Namespace, layout: Layout, installation: Installation) -> None:
    """End what writes to the database, put the backup in place, and start it again.  Raises InstallationProblem."""
    supervisor = supervisor_of(installation, layout)
    if installation.supervisor == SUPERVISOR:
        container_commands.expect_no_process()
    problems = []
    # What writes to the database, and no process that jobs need.
    names = [unit.name for unit in units_of(installation) if unit.kind in (Kind.API, Kind.CONTROLLER)]
    try:
        for name in names:
            supervisor.stop(name)
        (layout.home / "api.url").unlink(missing_ok=True)
        backups.restore(layout, given.source, user=installation.user)
    except (InstallationProblem, OSError) as problem:
        problems.append(f"the backup is not in place: {problem}")
    for name in names:
        try:
            supervisor.start(name)
        except InstallationProblem as problem:
            problems.append(str(problem))
    if problems:
        raise InstallationProblem("; ".join(problems))


def _rotate(given: argparse.Namespace, layout: Layout) -> None:
    installation = read_installation(layout)
    container_commands.expect_no_containers(installation)
    # There the vault has the secret of a cluster, which each machine and each node of it reads.
    is_of_vault = str(DEPLOYED[0]) in installation.settings
    if not installation.has_head and not is_of_vault:
        raise InstallationProblem(
            "the head is on another machine: run this there, then copy state/ray.token here and restart the member and"
            " the controllers"
        )
    if not given.yes:
        raise InstallationProblem(
            "Ray reads its secret when a process starts, so that all workers end and their jobs resume from their"
            " newest checkpoints; say so with --yes"
        )
    with alone(layout.prefix):
        secret = _secret_of_vault() if is_of_vault else ""
        units, supervisor = _units(installation, layout), supervisor_of(installation, layout)
        replace_secret(layout, installation, units, supervisor, _say, secret)
        if is_of_vault:
            # Last: interrupted, the next call finds it and does the same.
            NEXT_SECRET.unlink(missing_ok=True)
    if not is_of_vault and layout.read_settings().get("REMORA_CLOUD") == "azure":
        _say(
            f"machines of Azure join with what the vault holds: put {layout.home / 'ray.token'} there as"
            " remora-CLUSTER-ray-token; until then no machine joins"
        )


def _secret_of_vault() -> str:
    """The next secret of the cluster, which the vault has and this machine has fetched."""
    try:
        secret = NEXT_SECRET.read_text(encoding="utf-8")
    except FileNotFoundError:
        secret = ""
    if not secret:
        raise InstallationProblem(
            "the vault has no other secret of the cluster: put one there as remora-CLUSTER-ray-token with `az keyvault"
            " secret set`, wait a minute until `journalctl -u remora-apply` names it, and run this again"
        )
    return secret


def _migrate(_: argparse.Namespace, layout: Layout) -> None:
    read_installation(layout)
    settings = layout.read_settings()
    # Libraries of databases read their own, such as PGPASSWORD.
    os.environ.update(settings)
    try:
        with contextlib.closing(Database(database_url(layout, settings))) as database:
            migrate(database)
            print(database.query(revision_of))
    except StoreError as error:
        raise InstallationProblem(str(error)) from None


def _status(_: argparse.Namespace, layout: Layout) -> None:
    installation = read_installation(layout)
    print(f"release in force: {layout.release()}")
    for unit in _units(installation, layout):
        print(f"{unit.name:<40} {layout.started_from(unit.name) or 'never started'}")
    folders = ClusterFolders(layout.home)
    for unit in _units(installation, layout):
        temporary = folders.temporary_of(unit.name)
        if unit.kind in OF_RAY and (soon := ends_soon(folders, temporary, CLOCK(), unit.name, BY_RESTART)):
            print(soon)
    certificate = layout.read_settings().get("REMORA_TLS_CERTIFICATE")
    if installation.apis and certificate and (soon := api_ends_soon(Path(certificate), CLOCK())):
        print(soon)


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
    "rotate": _rotate,
    "migrate": _migrate,
    "status": _status,
    "run": _run,
    "drivers": beside.drivers,
    "certificates": beside.certificates,
    "prepare": container_commands.prepare,
    "process": container_commands.process,
}


def _say(text: str) -> None:
    print(text, flush=True)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
