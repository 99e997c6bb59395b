"""The commands of remora-server in containers: prepare, process."""

from __future__ import annotations

import argparse
import contextlib
import os

import sqlalchemy as sa

from cluster.provider import ProviderError
from service.installation import containers
from service.installation.containers import ContainerProcess
from service.installation.health import check_controllers, own_settings
from service.installation.layout import Installation, InstallationProblem, Layout
from service.settings import Settings
from service.store.database import Database
from service.store.failures import StoreError


def prepare(_: argparse.Namespace, layout: Layout) -> None:
    """Make what the containers share.  Raises InstallationProblem and OSError."""
    try:
        for sentence in containers.prepare(own_settings(), layout, os.environ):
            print(sentence, flush=True)
    except (StoreError, ProviderError) as error:
        raise InstallationProblem(str(error)) from None


def process(given: argparse.Namespace, _: Layout) -> None:
    """Become one process.  Raises InstallationProblem and OSError."""
    try:
        containers.become(ContainerProcess(given.process), own_settings())
    except ProviderError as error:
        raise InstallationProblem(str(error)) from None


def expect_no_containers(installation: Installation) -> None:
    """Raise InstallationProblem where processes are started and ended by an engine of containers."""
    if installation.supervisor == containers.SUPERVISOR:
        raise InstallationProblem(
            "containers are started and ended by their engine, and a release is their image: see docs/containers.md"
        )


def expect_no_process() -> None:
    """Raise InstallationProblem while a process of the service works: what it writes would be lost with the restore.

    Whether processes of the API do is known of PostgreSQL alone, by their sessions.  A database without the tables is
    one that is being restored.
    """
    settings = own_settings()
    try:
        with contextlib.closing(Database(settings.database)) as database:
            is_in_use = database.query(_has_other_sessions)
            is_in_use = is_in_use or _is_led(database, settings)
    except (StoreError, sa.exc.SQLAlchemyError) as error:
        raise InstallationProblem(f"the database does not answer: {str(error)[:300]}") from None
    if is_in_use:
        raise InstallationProblem(
            "the service runs, or another program is connected to its database: end them with `compose stop api"
            " controller`, restore, and start them with `compose start controller api`"
        )


def _has_other_sessions(connection: sa.Connection) -> bool:
    """Whether other clients are connected to this database of PostgreSQL; of SQLite it is not known."""
    if connection.dialect.name != "postgresql":
        return False
    others = sa.text(
        "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid <> pg_backend_pid() AND backend_type = 'client backend')"
    )
    return bool(connection.scalar(others))


def _is_led(database: Database, settings: Settings) -> bool:
    try:
        check_controllers(database, settings)
    except (InstallationProblem, StoreError, sa.exc.SQLAlchemyError):
        return False
    return True
