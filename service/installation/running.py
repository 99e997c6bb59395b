"""`remora-server run NAME`: become one process of an installation."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from cluster.local.environment import is_of_machines, machine_environment, process_environment
from cluster.ray.joining import FORKED_VARIABLE
from remora.process_log import FORMAT_VARIABLE
from service.installation.layout import Installation, InstallationProblem, Layout
from service.installation.units import Kind, Unit
from trainers.preloaded import FORKED, PRELOAD_VARIABLE, PRELOADED


def arguments_of(unit: Unit, installation: Installation, layout: Layout) -> list[str]:
    """Module and arguments of a process (pure)."""
    home = ["--home", str(layout.home)]
    match unit.kind:
        case Kind.HEAD | Kind.DRIVERS | Kind.MEMBER:
            return ["cluster.head", str(unit.kind), *home, "--head", installation.head, "--name", unit.name]
        case Kind.API:
            return ["service.api_process", *home, "--port", str(unit.port)]
        case Kind.CONTROLLER:
            return ["service.controller", *home]


def environment_of(
    unit: Unit,
    installation: Installation,
    layout: Layout,
    settings: Mapping[str, str],
    before: Mapping[str, str],
) -> dict[str, str]:
    """Variables of a process (pure): what it was started with, then the settings, then what the installation fixes.

    Processes of Ray get the settings of machines alone: neither the database's password nor a key of secrets.
    """
    cloud = settings.get("REMORA_CLOUD", "local")
    if unit.kind in (Kind.HEAD, Kind.DRIVERS):
        settings = {name: value for name, value in settings.items() if is_of_machines(name)}
    fixed = {"REMORA_HOME": str(layout.home), "PYTHONUNBUFFERED": "1"}
    if unit.kind in (Kind.API, Kind.CONTROLLER):
        fixed["REMORA_RAY_ADDRESS"] = installation.head
    if cloud != "azure":
        # Nodes that a controller starts on this machine have them from there.
        fixed |= {PRELOAD_VARIABLE: PRELOADED, FORKED_VARIABLE: FORKED}
    return {FORMAT_VARIABLE: "json", **before, **settings, **fixed}


def become(unit: Unit, installation: Installation, layout: Layout, root: Path) -> None:
    """Replace this process; `root` is the folder with the service's packages of this release.

    Which release it is, is written down first.  Returns only where it is a drivers' node of a release that is not in
    force any more, which ended.  Raises InstallationProblem and OSError.
    """
    release = Path(sys.prefix).name
    if unit.kind is Kind.DRIVERS and release != layout.release():
        # Its last driver has ended.
        (layout.run / unit.name).unlink(missing_ok=True)
        return
    settings = layout.read_settings()
    inherits = machine_environment if unit.kind in (Kind.HEAD, Kind.DRIVERS) else process_environment
    environment = environment_of(unit, installation, layout, settings, inherits(layout.home))
    environment["PYTHONPATH"] = str(root)
    layout.write_start(unit.name, release, os.getpid())
    # The link to the release in force may change while this process imports.
    python = str(Path(sys.prefix).resolve() / "bin" / "python")
    if not Path(python).exists():
        raise InstallationProblem(f"{python} is gone; install the release again with `remora-server upgrade`")
    command = [python, "-P", "-m", *arguments_of(unit, installation, layout)]
    os.execve(python, command, environment)  # noqa: S606  # a list, no shell
