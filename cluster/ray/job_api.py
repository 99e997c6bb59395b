"""Ray's job API, which `ray job submit` speaks: by which flags and variables a head serves it, and what it needs.

The head serves it on loopback alone, in clear, to who shows the cluster's secret.  Its programs run on the head's
machine as the head's user, as every program with that secret may.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from importlib.metadata import version

#: The setting with the port; empty or 0: it is not served.
PORT_VARIABLE = "REMORA_RAY_JOBS_PORT"
#: What Ray imports before it serves anything over HTTP (`ray.dashboard.optional_deps`).
_NEEDED = (
    *("aiohttp", "aiohttp_cors", "grpc", "opencensus", "opentelemetry", "opentelemetry.exporter.prometheus"),
    *("opentelemetry.proto", "prometheus_client", "pydantic"),
)


class JobApiMissing(Exception):
    """The head cannot serve the job API; the message says in one sentence what to install, or to write."""


def port_of(environment: Mapping[str, str]) -> int:
    """The port that the environment names; 0: none.  Raises JobApiMissing when it is no port."""
    said = environment.get(PORT_VARIABLE, "").strip() or "0"
    if not said.isascii() or not said.isdigit() or int(said) > 65535:
        raise JobApiMissing(f"{PORT_VARIABLE} is {said[:40]!r}; it is a port, 0 for none")
    return int(said)


def usable_port(
    environment: Mapping[str, str], is_free: Callable[[int], bool], report: Callable[[str], None]
) -> int:
    """The port at which a head can serve the API now; 0, and a report of why, where it cannot or need not.

    A head that did not start for it would take the whole cluster with it.
    """
    try:
        port = port_of(environment)
        if port:
            check_packages()
    except JobApiMissing as error:
        report(f"{error}; the head starts without Ray's job API")
        return 0
    if port and not is_free(port):
        report(f"port {port} of {PORT_VARIABLE} is taken: the head starts without Ray's job API")
        return 0
    return port


def flags_of(port: int, free_port: Callable[[], int]) -> list[str]:
    """Flags of `ray start --head`; `port` 0: nothing is served over HTTP.

    The server passes requests on to the agent of the head's node, whose usual port another head here may have.
    """
    if not port:
        return ["--include-dashboard=false"]
    server = ("--include-dashboard=true", "--dashboard-host=127.0.0.1", f"--dashboard-port={port}")
    return [*server, f"--dashboard-agent-listen-port={free_port()}"]


def variables_of(port: int) -> dict[str, str]:
    """Variables of such a head.

    The measurements of its HTTP server would be served to everyone who reaches the machine, without the secret.  Ray
    has no variable that leaves them out, as for those of nodes (`RAY_SETTINGS`): without a port that exists it only
    logs an error.
    """
    return {"DASHBOARD_METRIC_PORT": "-1"} if port else {}


def check_packages() -> None:
    """Raise JobApiMissing when a package is missing without which Ray serves no job API."""
    missing = [name for name in _NEEDED if not _is_there(name)]
    if missing:
        raise JobApiMissing(
            f"{PORT_VARIABLE} needs the packages of Ray's job API in the head's environment, of which"
            f" {', '.join(missing)} cannot be imported: pip install 'ray[default]=={version('ray')}'"
        )


def _is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False
