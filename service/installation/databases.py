"""Copies of the two kinds of database: taken at one moment, loaded as a whole, and asked for their schema."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
from collections.abc import Mapping
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from service.installation.layout import InstallationProblem, Layout

#: Names of the copies in a backup.
SQLITE, POSTGRESQL = "database.sqlite", "database.pgdump"
#: What is in the schema goes first: a dump does not name the tables of a later release, whose migrations would meet
#: them.  What belongs to an extension stays.  The schema itself may be another user's.
_EMPTY = """\
SET client_min_messages = warning;
DO $$
DECLARE
    one record;
BEGIN
    FOR one IN
        SELECT relname, CASE relkind
            WHEN 'v' THEN 'VIEW' WHEN 'm' THEN 'MATERIALIZED VIEW' WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END AS kind
        FROM pg_class
        WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'p', 'v', 'm', 'S')
            AND NOT EXISTS (
                SELECT FROM pg_depend WHERE classid = 'pg_class'::regclass AND objid = pg_class.oid AND deptype = 'e')
        ORDER BY relkind = 'S'
    LOOP
        EXECUTE format('DROP %s IF EXISTS %I.%I CASCADE', one.kind, current_schema(), one.relname);
    END LOOP;
END
$$;
"""


def database_url(layout: Layout, settings: Mapping[str, str]) -> str:
    """URL of an installation's database."""
    return settings.get("REMORA_DATABASE_URL") or f"sqlite:///{_sqlite_path(layout, settings)}"


def dump(layout: Layout, settings: Mapping[str, str], folder: Path) -> str:
    """Copy the database into the folder; the name of the file."""
    if url := settings.get("REMORA_DATABASE_URL", ""):
        parsed = _postgresql(url)
        if parsed is not None:
            _connected(["pg_dump", "--format=custom", "--no-owner", f"--file={folder / POSTGRESQL}"], parsed)
            return POSTGRESQL
    path = _sqlite_path(layout, settings)
    if not path.is_file():
        raise InstallationProblem(f"there is no database at {path}; the service has never run here")
    try:
        with (
            sqlite3.connect(f"file:{path}?mode=ro", uri=True) as live,
            sqlite3.connect(folder / SQLITE) as copy,
        ):
            live.backup(copy)
    except sqlite3.Error as error:
        raise InstallationProblem(f"the database {path} cannot be copied: {error}") from None
    return SQLITE


def load(copied: Path, layout: Layout, settings: Mapping[str, str]) -> None:
    """Put a copy in the place of what is in the database, as a whole or not at all.  Raises InstallationProblem."""
    if copied.name == SQLITE:
        _load_sqlite(copied, _sqlite_path(layout, settings))
    else:
        _load_postgresql(copied, settings)


def revision_of_copy(copied: Path) -> str:
    """The newest migration that the database of a copy has had, empty for none.  Raises InstallationProblem."""
    return _of_sqlite(copied) if copied.name == SQLITE else _of_postgresql(copied)


def _load_sqlite(copied: Path, path: Path) -> None:
    """Write a copy over the database through SQLite: a process that has it open sees the one or the other.

    A file that is no database any more is set aside first.
    """
    try:
        try:
            _copy(copied, path)
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorname", "") not in ("SQLITE_NOTADB", "SQLITE_CORRUPT"):
                raise
            for end in ("-wal", "-shm", ""):
                with contextlib.suppress(FileNotFoundError):
                    path.with_name(path.name + end).replace(path.with_name(f"{path.name}.damaged{end}"))
            _copy(copied, path)
    except (sqlite3.Error, OSError) as error:
        raise InstallationProblem(f"the database {path} cannot be replaced: {error}") from None


def _copy(copied: Path, path: Path) -> None:
    with (
        contextlib.closing(sqlite3.connect(copied)) as source,
        contextlib.closing(sqlite3.connect(path)) as target,
    ):
        source.backup(target)


def _load_postgresql(dumped: Path, settings: Mapping[str, str]) -> None:
    parsed = _postgresql(settings.get("REMORA_DATABASE_URL", ""))
    if parsed is None:
        raise InstallationProblem(
            "the backup is of a PostgreSQL database; set REMORA_DATABASE_URL to the one to restore it to"
        )
    script, empty = dumped.with_suffix(".sql"), dumped.with_suffix(".empty.sql")
    _call(["pg_restore", "--no-owner", f"--file={script}", str(dumped)])
    empty.write_text(_EMPTY, encoding="utf-8")
    words = ["--no-psqlrc", "--quiet", "--single-transaction", "--set=ON_ERROR_STOP=1", "--output=/dev/null"]
    _connected(["psql", *words, f"--file={empty}", f"--file={script}"], parsed)


def _sqlite_path(layout: Layout, settings: Mapping[str, str]) -> Path:
    url = settings.get("REMORA_DATABASE_URL", "")
    found = sa.make_url(url).database if url else None
    return Path(found) if found else layout.home / "remora.db"


def _postgresql(url: str) -> sa.URL | None:
    if not url:
        return None
    try:
        parsed = sa.make_url(url)
    except sa.exc.ArgumentError:
        raise InstallationProblem("REMORA_DATABASE_URL is not a database URL") from None
    return parsed if parsed.get_backend_name() in ("postgresql", "postgres") else None


def connection_of(url: sa.URL) -> tuple[str, dict[str, str]]:
    """How programs of PostgreSQL reach a database as the service does: a connection string, and variables (pure).

    All that the URL says counts, such as `sslmode`.  The password goes by the environment, where no other user sees it.
    Raises InstallationProblem for another one, which cannot go there.
    """
    _, given = PGDialect_psycopg().create_connect_args(url)  # type: ignore[no-untyped-call]
    variables = {"PGPASSWORD": str(given.pop("password"))} if given.get("password") else {}
    if "sslpassword" in given:
        raise InstallationProblem(
            "REMORA_DATABASE_URL has sslpassword, which programs of PostgreSQL take from their command line alone: use"
            " a key without a password, which the service's user alone can read"
        )
    return " ".join(f"{name}={_quoted(str(value))}" for name, value in given.items()), variables


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _connected(command: list[str], url: sa.URL) -> str:
    """Run a program of PostgreSQL on a database and return what it printed."""
    connection, variables = connection_of(url)
    return _call([*command, f"--dbname={connection}"], variables)


def _call(command: list[str], variables: Mapping[str, str] | None = None) -> str:
    """Run a program of PostgreSQL and return what it printed."""
    environment = {**os.environ, **(variables or {})}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise InstallationProblem(
            f"{command[0]} is not installed; it is part of PostgreSQL's client"
        ) from None
    if done.returncode:
        raise InstallationProblem(f"{command[0]} failed: {done.stderr.strip()[-400:]}")
    return done.stdout


def _of_sqlite(copied: Path) -> str:
    try:
        with contextlib.closing(sqlite3.connect(copied)) as connection:
            found = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    except sqlite3.Error as error:
        raise InstallationProblem(f"the database in the backup cannot be read: {error}") from None
    return str(found[0]) if found else ""


def _of_postgresql(dumped: Path) -> str:
    words = ["--data-only", "--table=alembic_version", "--file=-"]
    lines = iter(_call(["pg_restore", *words, str(dumped)]).splitlines())
    return next((next(lines, "") for line in lines if line.startswith("COPY ")), "")
