"""What an emulated machine does with its start-up data: the two modules of cloud-init that ours uses (pure)."""

from __future__ import annotations

import base64
from configparser import ConfigParser, Error
from dataclasses import dataclass
from typing import Any

import yaml

#: Where the image has its interpreter; an emulated machine has the one that runs the emulator.
IMAGE_PYTHON = "/opt/remora/venv/bin/python"


class StartUpFailed(Exception):
    """The start-up data of a machine cannot be run; the message is one sentence."""


@dataclass(frozen=True, kw_only=True)
class File:
    """A file that is written before any command runs."""

    path: str
    content: str
    mode: int


@dataclass(frozen=True, kw_only=True)
class StartUp:
    """A cloud-init document."""

    files: tuple[File, ...]
    commands: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Service:
    """A service of systemd, as far as an emulated machine plays it."""

    command: tuple[str, ...]
    #: Name of its folder below /run; empty: it has none.
    runtime_folder: str


def read(custom_data: str) -> StartUp:
    """The document out of start-up data as Azure hands it over, in base64.

    Raises StartUpFailed when it is no document of cloud-init or asks for what ours never asks for.
    """
    try:
        text = base64.b64decode(custom_data, validate=True).decode()
        if not text.startswith("#cloud-config\n"):
            raise StartUpFailed("its start-up data is not a cloud-init document")
        document: dict[str, Any] = yaml.safe_load(text)
        others = document.keys() - {"write_files", "runcmd"}
        files = tuple(_file(one) for one in document.get("write_files", ()))
        commands = tuple(tuple(map(str, words)) for words in document.get("runcmd", ()))
    except (ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError) as error:
        raise StartUpFailed(f"its start-up data cannot be read: {error!r}") from error
    if others:
        raise StartUpFailed(
            f"its start-up data has {', '.join(sorted(others))}, which the emulator does not know"
        )
    return StartUp(files=files, commands=commands)


def _file(one: dict[str, Any]) -> File:
    path, content = str(one["path"]), str(one["content"])
    if not path.startswith("/") or ".." in path.split("/"):
        raise ValueError(f"{path} is no absolute path")
    return File(path=path, content=content, mode=int(str(one.get("permissions", "0644")), 8))


def started_service(start_up: StartUp) -> str:
    """Name of the one service that the commands enable and start.  Raises StartUpFailed when they do anything else."""
    services = []
    for command in start_up.commands:
        match command:
            case ("systemctl", "enable", "--now", service):
                services.append(service)
            case _:
                raise StartUpFailed(f"the emulator cannot run {' '.join(command)!r}")
    if len(services) != 1:
        raise StartUpFailed(f"its start-up data starts {len(services)} services, and the emulator knows one")
    return services[0]


def read_unit(text: str) -> Service:
    """A unit file of systemd.  Raises StartUpFailed when it has no command."""
    # Some settings stand there several times.
    unit = ConfigParser(strict=False, interpolation=None)
    try:
        unit.read_string(text)
        command = tuple(unit["Service"]["ExecStart"].split())
    except (Error, KeyError) as error:
        raise StartUpFailed(f"its image's service has no command: {error!r}") from error
    folder = unit["Service"].get("RuntimeDirectory", "")
    return Service(command=command, runtime_folder=folder)


def command_below(root: str, service: Service, start_up: StartUp, python: str) -> tuple[str, ...]:
    """The service's command on a machine whose root folder is `root`: its files lie there, and `python` runs it."""
    written = {one.path for one in start_up.files}
    # A path of the image means the same program here; of the rest only what was written exists.
    return tuple(
        python if word == IMAGE_PYTHON else root + word if word in written else word
        for word in service.command
    )
