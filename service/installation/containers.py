"""The service in containers: which process each one becomes, and what is made before the first of them starts.

Their settings are in their environment.  What `remora-server backup` and `restore` need to know of them is written
below the prefix, a volume that all of them share; see docs/containers.md.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path

from cluster.head.commands import Part
from cluster.local import node_starter
from cluster.local.certificates import write_private
from cluster.local.environment import (
    machine_environment,
    process_environment,
    ray_environment,
    strangers_environment,
)
from cluster.ray.joining import FORKED_VARIABLE
from remora import __version__
from remora.process_log import FORMAT_VARIABLE
from service import first_operator
from service.installation.layout import Installation, InstallationProblem, Layout
from service.private_home import make_private
from service.secrets.key_file import KeyFile, KeysUnusable
from service.settings import Settings
from service.steady_clock import CLOCK
from service.store.database import Database
from service.store.migrate import migrate
from trainers.preloaded import FORKED, PRELOAD_VARIABLE, PRELOADED

#: What starts and ends the processes, in the record of the installation.
SUPERVISOR = "containers"
#: Settings begin like this; `_OF_LIBRARIES` are of libraries of databases and clouds.
_SETTINGS = "REMORA_"
_OF_LIBRARIES = ("PG", "AZURE_")


class ContainerProcess(StrEnum):
    """What the process of a container is."""

    API = "api"
    CONTROLLER = "controller"
    HEAD = "head"
    DRIVERS = "drivers"
    #: It starts the nodes of the local cluster, so that they outlive the controllers' containers.
    STARTER = "starter"


def arguments_of(process: ContainerProcess, home: Path, head: str) -> list[str]:
    """Module and arguments of a process (pure); `head` is the `host:port` of the Ray head."""
    at_home = ["--home", str(home)]
    match process:
        case ContainerProcess.API:
            return ["service.api_process", *at_home]
        case ContainerProcess.CONTROLLER:
            return ["service.controller", *at_home]
        case ContainerProcess.STARTER:
            return ["cluster.local.node_starter", *at_home]
    name = _drivers_name() if process is ContainerProcess.DRIVERS else str(Part.HEAD)
    return ["cluster.head", str(process), *at_home, "--head", head, "--name", name]


def environment_of(process: ContainerProcess, home: Path) -> dict[str, str]:
    """Variables of a process: those of its container, of which Ray's and those of nodes get no setting of the service.

    Raises ProviderError.
    """
    fixed = {"PYTHONUNBUFFERED": "1", PRELOAD_VARIABLE: PRELOADED, FORKED_VARIABLE: FORKED}
    fixed[FORMAT_VARIABLE] = os.environ.get(FORMAT_VARIABLE, "json")
    match process:
        case ContainerProcess.API:
            return strangers_environment(**fixed)
        case ContainerProcess.CONTROLLER:
            # What it started itself would end with its container.
            return process_environment(home, **fixed, **{node_starter.VARIABLE: "1"})
    return machine_environment(home, **fixed)


def become(process: ContainerProcess, settings: Settings) -> None:
    """Replace this one.  Raises InstallationProblem, ProviderError and OSError."""
    if not settings.ray_address and process not in (ContainerProcess.API, ContainerProcess.STARTER):
        raise InstallationProblem("REMORA_RAY_ADDRESS does not say at which host:port the Ray head is")
    environment = environment_of(process, settings.home)
    command = [sys.executable, "-P", "-m", *arguments_of(process, settings.home, settings.ray_address)]
    os.execve(command[0], command, environment)  # noqa: S606  # a list, no shell


def prepare(settings: Settings, layout: Layout, variables: Mapping[str, str]) -> list[str]:
    """Make what the processes share, and bring the database to this release's schema; again does what is missing.

    Returns sentences for people.  Raises InstallationProblem, StoreError and OSError.
    """
    make_private(settings.home)
    # The secret of the Ray cluster.
    ray_environment(settings.home)
    key_file = KeyFile(settings.secrets_key)
    try:
        with key_file.locked():
            if not key_file.read():
                key_file.add()
    except KeysUnusable as problem:
        raise InstallationProblem(str(problem)) from None
    said = []
    with contextlib.closing(Database(settings.database)) as database:
        migrate(database)
        if settings.authentication == "required":
            token = first_operator.ensure(database, settings.home, CLOCK())
            said.append(f"the first operator's token is in {token}")
    _record(settings, layout, variables)
    return [*said, f"{layout.prefix} is ready for release {__version__}"]


def _record(settings: Settings, layout: Layout, variables: Mapping[str, str]) -> None:
    """Write down what backups need: the release, the settings, and that containers run it."""
    layout.settings.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # It has the database's password.
    write_private(layout.settings, "".join(f"{line}\n" for line in _lines(variables)).encode())
    layout.releases.mkdir(mode=0o700, exist_ok=True)
    draft = layout.prefix / ".current"
    draft.unlink(missing_ok=True)
    draft.symlink_to(layout.releases / f"remora-{__version__}")
    draft.replace(layout.current)
    layout.backups.mkdir(mode=0o700, exist_ok=True)
    Installation(
        supervisor=SUPERVISOR,
        apis=1,
        port=settings.port,
        controllers=1,
        head=settings.ray_address,
        has_head=True,
        home=str(settings.home),
    ).write(layout.record)


def _lines(variables: Mapping[str, str]) -> Sequence[str]:
    """The settings among variables, as lines of a file (pure).  Raises InstallationProblem for one of several lines."""
    found = {name: value for name, value in variables.items() if name.startswith((_SETTINGS, *_OF_LIBRARIES))}
    broken = [name for name, value in sorted(found.items()) if len(value.splitlines()) > 1]
    if broken:
        raise InstallationProblem(f"the value of {broken[0]} has several lines; a setting has one")
    return [f"{name}={value}" for name, value in sorted(found.items())]


def _drivers_name() -> str:
    return f"{Part.DRIVERS}-{__version__}"
