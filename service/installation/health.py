"""Whether a process of the service works, for what starts processes again that do not: `remora-server health`.

An engine of containers starts it again and again: what it does not need is not loaded.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from service.installation.layout import InstallationProblem
from service.settings import Settings, read_settings

if TYPE_CHECKING:
    import sqlalchemy as sa

    from service.store.database import Database
    from service.store.leases import LeaseRow

#: Seconds between two looks at a lease.
_LOOK_S = 0.5
NO_TABLES = (
    "the database has no tables of Remora yet: `remora-server prepare` makes them, and so do the API and the controller"
    " when they start"
)


def is_led(before: LeaseRow | None, now: LeaseRow | None) -> bool:
    """Whether a controller has renewed or taken the lease between two looks (pure)."""
    if before is None or now is None:
        return now is not None and not now.is_free
    return not now.is_free and (before.token, before.renewals) != (now.token, now.renewals)


def check_api(settings: Settings) -> None:
    """Raise InstallationProblem when the process of the API on this machine does not answer."""
    given = {"REMORA_HOST": settings.host}
    if settings.tls_certificate is not None:
        given["REMORA_TLS_CERTIFICATE"] = str(settings.tls_certificate)
    if not answers(settings.port, given):
        raise InstallationProblem(f"the API does not answer at port {settings.port} of this machine")


def check_controllers(
    database: Database,
    settings: Settings,
    monotonic: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Wait until a controller of the cluster renews its lease, of which one is enough: the others take over.

    Raises InstallationProblem when none has for twice as long as a lease lasts, and StoreError.
    """
    from service.store import leases

    name = leases.controller_of(settings.cluster)
    before = database.query(lambda connection: leases.get(connection, name))
    deadline = monotonic() + 2 * settings.lease_s
    while True:
        pause(_LOOK_S)
        if is_led(before, database.query(lambda connection: leases.get(connection, name))):
            return
        if monotonic() >= deadline:
            raise InstallationProblem(
                f"no controller has led the cluster {settings.cluster} for {2 * settings.lease_s:g} s"
            )


def main(words: Sequence[str]) -> int:
    """Look at a process, by the settings in the environment; the exit status of the process."""
    parser = argparse.ArgumentParser(prog="remora-server", description=__doc__)
    parser.add_argument("command", choices=["health"])
    parser.add_argument("process", choices=["api", "controller"])
    given = parser.parse_args(words)
    try:
        settings = own_settings()
        if given.process == "api":
            check_api(settings)
        else:
            _check_controllers_of(settings)
    except InstallationProblem as problem:
        print(f"remora-server: {problem}", file=sys.stderr)
        return 1
    return 0


def own_settings() -> Settings:
    """The settings in the environment of this container.  Raises InstallationProblem when one is wrong."""
    found = read_settings({})
    if found is None:
        raise InstallationProblem("a setting in the environment of this container is wrong")
    return found


def _check_controllers_of(settings: Settings) -> None:
    import sqlalchemy as sa

    from service.store.database import Database
    from service.store.failures import StoreError, why_failed

    try:
        with contextlib.closing(Database(settings.database)) as database:
            check_controllers(database, settings)
    except StoreError as error:
        raise InstallationProblem(str(error)) from None
    except (sa.exc.ProgrammingError, sa.exc.OperationalError) as error:
        raise InstallationProblem(NO_TABLES if _lacks_a_table(error) else why_failed(error)) from None
    except sa.exc.SQLAlchemyError as error:
        raise InstallationProblem(why_failed(error)) from None


def _lacks_a_table(error: sa.exc.DBAPIError) -> bool:
    """By PostgreSQL's `undefined_table`, and by SQLite's message, for which it has no code of its own."""
    return getattr(error.orig, "sqlstate", None) == "42P01" or str(error.orig).startswith("no such table")


def answers(port: int, settings: Mapping[str, str]) -> bool:
    """Whether a process of the API answers at this machine, by the settings that it has."""
    from service.embedded.parts import get, local_url

    certificate = settings.get("REMORA_TLS_CERTIFICATE")
    host = settings.get("REMORA_HOST") or str(Settings.model_fields["host"].default)
    url = f"{local_url(host, port, has_tls=bool(certificate))}/healthz"
    return get(url, certificate=Path(certificate) if certificate else None) is not None
