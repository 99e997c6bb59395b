"""The commands of remora-server and their arguments."""

from __future__ import annotations

import argparse
from pathlib import Path

from service.installation import releases
from service.installation.containers import ContainerProcess

DESCRIPTION = "The service on a machine of its own, in one folder: install, upgrade, back up and restore it."
PREFIX = Path("/opt/remora")
#: Where the head listens unless it is said.
HEAD = "127.0.0.2:6379"


def parser() -> argparse.ArgumentParser:
    """What reads the arguments."""
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--prefix", type=Path, default=PREFIX, help=f"folder of the installation; {PREFIX}")
    made = argparse.ArgumentParser(prog="remora-server", description=DESCRIPTION)
    commands = made.add_subparsers(dest="command", required=True)

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
    install.add_argument(
        "--head", default=HEAD, help=f"address and port of the Ray head, which nodes reach; {HEAD}"
    )
    install.add_argument("--without-head", action="store_true", help="the head is on another machine")
    install.add_argument("--user", default="", help="user that the processes run as")
    of_wheel(
        add("upgrade", "put another release in force, process by process, while jobs go on"), required=True
    )
    add("backup", "copy database and keys to one file while jobs go on").add_argument(
        "to", type=Path, help="a new file"
    )
    add("restore", "put a backup in place; running jobs go on").add_argument("source", type=Path)
    add("migrate", "bring the database to this release's schema, as an upgrade does first")
    add("rotate", "give the cluster another secret; jobs resume from their checkpoints").add_argument(
        "--yes", action="store_true", help="all workers end, and resume from their newest checkpoints"
    )
    add("status", "processes and the releases that they run")
    add("run", "be one process of the installation").add_argument("name")
    drivers = add("drivers", "be a Ray node for drivers, on another machine than the head's")
    drivers.add_argument("--home", type=Path, required=True, help="a home with the cluster's secret")
    drivers.add_argument("--head", required=True, help="address and port of the Ray head")
    drivers.add_argument("--address", required=True, help="address of this machine, which the others reach")
    drivers.add_argument("--name", default="drivers", help="name of the node, where a machine has several")
    certificates = add(
        "certificates", "make the authority of a home, and the certificate of the head's machine"
    )
    certificates.add_argument("home_of_head", type=Path, metavar="HOME", help="home of the service")
    certificates.add_argument(
        "addresses", nargs="+", metavar="ADDRESS", help="address or name of the machine, as nodes reach it"
    )
    add("prepare", "in containers: make what they share, and bring the database to this release's schema")
    add("process", "in containers: be one process, by the settings in the environment").add_argument(
        "process", choices=[str(one) for one in ContainerProcess]
    )
    add("health", "in containers: exit with 0 while the API answers, or a controller leads").add_argument(
        "process", choices=[str(ContainerProcess.API), str(ContainerProcess.CONTROLLER)]
    )
    return made
