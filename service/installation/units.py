"""The processes of an installation, and the files by which systemd or supervisord runs them (pure)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from service.installation.layout import Installation, Layout


class Kind(StrEnum):
    """What a process is."""

    HEAD = "head"
    DRIVERS = "drivers"
    MEMBER = "member"
    API = "api"
    CONTROLLER = "controller"


#: Names of releases: what else the folder of running processes names, which their user can write to, becomes no unit.
_RELEASE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.!+_-]{0,100}")
#: What runs a part of Ray.
OF_RAY = (Kind.HEAD, Kind.DRIVERS, Kind.MEMBER)


@dataclass(frozen=True)
class Unit:
    """One process."""

    name: str
    kind: Kind
    #: Of the API: its port.
    port: int = 0

    @property
    def stop_s(self) -> int:
        """Seconds between the request to end and the end by force."""
        return 5 if self.kind in OF_RAY else 15


def units_of(installation: Installation, releases_of_drivers: Sequence[str] = ()) -> list[Unit]:
    """All processes, in the order in which they are started.

    Drivers run code of the release that started their node; there is a node for each release that drivers still run in.
    Where the head is on another machine, controllers connect through a member of its cluster.
    """
    head = [Unit("head", Kind.HEAD)] if installation.has_head else []
    member = [Unit("member", Kind.MEMBER)] if installation.controllers and not head else []
    named = [release for release in releases_of_drivers if _RELEASE.fullmatch(release)]
    drivers = [Unit(f"drivers-{release}", Kind.DRIVERS) for release in named]
    apis = [Unit(f"api-{n + 1}", Kind.API, installation.port + n) for n in range(installation.apis)]
    controllers = [Unit(f"controller-{n + 1}", Kind.CONTROLLER) for n in range(installation.controllers)]
    return [*head, *member, *(drivers if installation.has_head else []), *apis, *controllers]


def command_of(unit: Unit, layout: Layout) -> list[str]:
    """What a supervisor starts.

    The node for drivers stays with its release; every other process is started from the one in force.
    """
    release = unit.name.removeprefix("drivers-") if unit.kind is Kind.DRIVERS else ""
    folder = layout.releases / release if release else layout.current
    return [str(folder / "bin" / "remora-server"), "run", unit.name, "--prefix", str(layout.prefix)]


def systemd_unit(unit: Unit, installation: Installation, layout: Layout) -> str:
    """The text of `remora-NAME.service`."""
    # Nodes of the local cluster are processes that a controller starts and the next one goes on with.
    kill = "process" if unit.kind is Kind.CONTROLLER else "control-group"
    after = " remora-head.service remora-member.service" if unit.kind is Kind.CONTROLLER else ""
    user = [f"User={installation.user}"] if installation.user else []
    closed = ["NoNewPrivileges=yes", "ProtectSystem=full", "PrivateTmp=yes"] if unit.kind is Kind.API else []
    lines = [
        "[Unit]",
        f"Description=Remora: {unit.name}",
        "Wants=network-online.target",
        f"After=network-online.target{after}",
        "StartLimitIntervalSec=0",
        "",
        "[Service]",
        "Type=exec",
        f"ExecStart={' '.join(command_of(unit, layout))}",
        "WorkingDirectory=/",
        *user,
        *closed,
        f"KillMode={kill}",
        f"TimeoutStopSec={unit.stop_s}",
        f"Restart={'on-failure' if unit.kind is Kind.DRIVERS else 'always'}",
        "RestartSec=1",
        "LimitNOFILE=65536",
        "LimitCORE=0",
        "TasksMax=infinity",
        "",
        "[Install]",
        "WantedBy=multi-user.target",
    ]
    return "\n".join(lines) + "\n"


def supervisord_configuration(units: Sequence[Unit], layout: Layout, socket: str) -> str:
    """The text of `supervisord.conf`, of the program of that name from PyPI."""
    head = [
        "[supervisord]",
        "nodaemon=true",
        f"logfile={layout.logs}/supervisord.log",
        f"pidfile={layout.run}/supervisord.pid",
        f"childlogdir={layout.logs}",
        "[unix_http_server]",
        f"file={socket}",
        "chmod=0700",
        "[supervisorctl]",
        f"serverurl=unix://{socket}",
        "[rpcinterface:supervisor]",
        "supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface",
    ]
    return "\n".join([*head, *(line for unit in units for line in _program(unit, layout))]) + "\n"


def _program(unit: Unit, layout: Layout) -> list[str]:
    # A drivers' node that is retired ends for good.
    again = "unexpected" if unit.kind is Kind.DRIVERS else "true"
    # Ray's processes of a part are a group; those of local nodes have sessions of their own.
    is_group = "true" if unit.kind in OF_RAY else "false"
    return [
        f"[program:{unit.name}]",
        f"command={' '.join(command_of(unit, layout)).replace('%', '%%')}",
        "directory=/",
        f"autorestart={again}",
        "startretries=1000000",
        "startsecs=0",
        f"stopasgroup={is_group}",
        f"killasgroup={is_group}",
        f"stopwaitsecs={unit.stop_s}",
        "redirect_stderr=true",
        f"stdout_logfile={layout.logs}/{unit.name}.log",
    ]
