"""A PostgreSQL server of our own for the tests: temporary, on a free loopback port, gone with the test run."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from itertools import count
from pathlib import Path

import psycopg
import sqlalchemy as sa

from remora.free_ports import free_port
from service.store.database import Database
from service.store.migrate import migrate

_TEMPLATE = "remora_template"


def binaries() -> Path | None:
    """The folder with initdb and postgres, or None when PostgreSQL is not installed."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    found = shutil.which("initdb")
    if found is not None:
        folders.append(Path(found).resolve().parent)
    return next((folder for folder in folders if (folder / "initdb").exists()), None)


class PostgresServer:
    """Databases on a server; each is a copy of a migrated template."""

    def __init__(self, url: str) -> None:
        self._url = sa.make_url(url).set(drivername="postgresql+psycopg")
        self._names = count(1)
        self._prefix = f"remora_test_{os.getpid()}"
        self._template = f"{self._prefix}_{_TEMPLATE}"
        self._run(f'CREATE DATABASE "{self._template}"')
        template = Database(self._named(self._template))
        migrate(template)
        template.close()

    def _named(self, name: str) -> str:
        return self._url.set(database=name).render_as_string(hide_password=False)

    def _run(self, statement: str) -> None:
        address = self._url.set(drivername="postgresql").render_as_string(hide_password=False)
        with psycopg.connect(address, autocommit=True) as connection:
            # Copying the files of a template takes a third of the time that writing all of it to the log takes.
            copies_files = " TEMPLATE " in statement and connection.info.server_version >= 150000
            connection.execute(statement + (" STRATEGY file_copy" if copies_files else ""))  # type: ignore[arg-type]

    def create(self, *, migrated: bool = True) -> str:
        """URL of a new database."""
        name = f"{self._prefix}_{next(self._names)}"
        self._run(f'CREATE DATABASE "{name}"' + (f' TEMPLATE "{self._template}"' if migrated else ""))
        return self._named(name)

    def drop(self, url: str) -> None:
        """Remove a database, whichever clients are connected."""
        self._run(f'DROP DATABASE IF EXISTS "{sa.make_url(url).database}" WITH (FORCE)')

    def close(self) -> None:
        """Remove the template."""
        self.drop(self._named(self._template))


class OwnServer:
    """A server process in a temporary folder; as user `postgres` when we are root, which PostgreSQL refuses."""

    def __init__(self, folder_of_binaries: Path) -> None:
        self._binaries = folder_of_binaries
        self._folder = Path(tempfile.mkdtemp(prefix="remora-pg-"))
        # The server must not outlive a test run that is killed.
        self._as_user = ["setpriv", "--pdeathsig", "INT"]
        if os.geteuid() == 0:
            user = pwd.getpwnam("postgres")
            os.chown(self._folder, user.pw_uid, user.pw_gid)
            self._as_user += [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
        data = self._folder / "data"
        initdb = [str(self._binaries / "initdb"), "--pgdata", str(data), "--username=remora", "--auth=trust"]
        subprocess.run(
            [*self._as_user, *initdb, "--encoding=UTF8", "--locale=C", "--no-sync"],
            check=True,
            capture_output=True,
            cwd="/",
        )
        port = free_port()
        settings = {
            "port": port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "fsync": "off",
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        log = (self._folder / "log").open("wb")
        self._process = subprocess.Popen(
            [*self._as_user, str(self._binaries / "postgres"), "-D", str(data), *options],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
        log.close()
        self.url = f"postgresql://remora@127.0.0.1:{port}/postgres"
        self._wait()

    def _wait(self) -> None:
        deadline = time.monotonic() + 30
        while True:
            try:
                psycopg.connect(self.url, connect_timeout=5).close()
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    log = (self._folder / "log").read_text()
                    self.stop()
                    raise RuntimeError(f"PostgreSQL did not start:\n{log}") from None
                time.sleep(0.05)
            else:
                return

    def stop(self) -> None:
        """End the server and remove its folder."""
        if self._process.poll() is None:
            # SIGINT is PostgreSQL's fast shutdown.
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
