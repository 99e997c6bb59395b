"""Bring a database to the newest schema; two processes that start at once do it once."""

from __future__ import annotations

import re
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.util.exc import CommandError
from sqlalchemy.exc import DBAPIError

from service.store.database import Database
from service.store.failures import StoreError, why_failed

#: Any number, as long as no other program takes the same advisory lock.
_LOCK = 7_265_001
#: The migrations of this release.
MIGRATIONS = Path(__file__).parent / "migrations"
_REVISION = re.compile(r"^revision\b[^=\n]*= *['\"]([^'\"\n]+)['\"]", re.MULTILINE)


def configuration(connection: sa.Connection) -> Config:
    """Alembic's configuration for a connection that is in a transaction."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["connection"] = connection
    return config


def revision_of(connection: sa.Connection) -> str:
    """The newest migration that a database has had, empty for one that has had none."""
    return MigrationContext.configure(connection).get_current_revision() or ""


def knows(revision: str, migrations: Path = MIGRATIONS) -> bool:
    """Whether the release with these migrations can start on a database of a revision.

    Its files are read and not run: they may be those of another release.
    """
    texts = (path.read_text(encoding="utf-8") for path in (migrations / "versions").glob("*.py"))
    return revision in {found for text in texts for found in _REVISION.findall(text)}


def migrate(database: Database) -> None:
    """Run the missing migrations, all in one transaction.  Raises StoreError."""

    def work(connection: sa.Connection) -> None:
        # SQLite: BEGIN IMMEDIATE lets one process in at a time already.
        if not database.is_sqlite:
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
        command.upgrade(configuration(connection), "head")

    try:
        database.transact(work)
    except CommandError as error:
        raise StoreError(
            f"the database was made by another version of Remora ({error}): use that version or a new database"
        ) from error
    except DBAPIError as error:
        raise StoreError(why_failed(error)) from error
