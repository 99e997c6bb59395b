"""A database without space, or that may only be read, says so; what it took stands, and it goes on by itself."""

from __future__ import annotations

import hashlib
import io
import logging
import os
import pwd
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient
from sqlalchemy.exc import DBAPIError, OperationalError

from remora.states import JobState
from remora.views import Job as JobView
from remora.views import Page, Problem
from service.api.app import create_app
from service.controller.controller import Process
from service.settings import Settings
from service.store.database import Database
from service.store.failures import DatabaseFailure, failure_of, why_failed
from service.store.migrate import migrate
from tests.postgres import PostgresServer
from tests.service_fakes import World
from tests.small_disks import fill, fill_but, small_disk
from trainers.storage import Storage, StorageFull

pytestmark = pytest.mark.timeout(120)

SPEC = {"command": "python train.py", "name": "x" * 60}


class FullService:
    """An API and a controller on a database whose space is made to end."""

    def __init__(self, url: str, home: Path) -> None:
        self.database = Database(url)
        settings = Settings(home=home, database_url=url, nodes=3, node_cpus=1, lease_s=5.0)
        self.world = World(self.database, settings)
        self.client = TestClient(create_app(settings), base_url="http://127.0.0.1")

    def submit_until_refused(self, most: int = 3000) -> tuple[list[str], Problem]:
        """Ids of the accepted jobs, and how the first one was refused that was not."""
        accepted: list[str] = []
        for _ in range(most):
            answer = self.client.post("/v1/jobs", json={**SPEC, "command": "echo " + "x" * 8000})
            if answer.status_code != 201:
                assert answer.headers["content-type"] == "application/problem+json"
                return accepted, Problem.model_validate_json(answer.content)
            accepted.append(answer.json()["id"])
        raise AssertionError("the disk never became full")

    def listed(self) -> set[str]:
        found: set[str] = set()
        cursor: str | None = None
        while True:
            answer = self.client.get(
                "/v1/jobs", params={"limit": 50, **({"cursor": cursor} if cursor else {})}
            )
            page = Page[JobView].model_validate_json(answer.content)
            found |= {job.id for job in page.items}
            if (cursor := page.next_cursor) is None:
                return found

    def close(self) -> None:
        self.client.__exit__(None, None, None)
        self.database.close()


class DatabaseDisk:
    """The space that a database has: how it ends, and how more is made."""

    def __init__(self, url: str, ballast: Path | None) -> None:
        self.url = url
        self._ballast = ballast

    def end(self, service: FullService) -> None:
        """From now on there is none, whatever is free inside of its files."""
        if self._ballast is not None:
            fill(self._ballast.parent)
            return
        pages = service.database.query(lambda c: c.execute(sa.text("PRAGMA page_count")).scalar_one())
        limit = f"PRAGMA max_page_count = {pages + 40}"
        for database in (service.database, service.client.app.state.remora.database):  # type: ignore[attr-defined]
            database.transact(lambda c: c.execute(sa.text(limit)))

    def make(self, service: FullService) -> None:
        """There is space again."""
        if self._ballast is not None:
            os.truncate(self._ballast, 0)
            return
        for database in (service.database, service.client.app.state.remora.database):  # type: ignore[attr-defined]
            database.transact(lambda c: c.execute(sa.text("PRAGMA max_page_count = 1000000")))


@pytest.fixture(params=["sqlite limit", "sqlite disk", "postgresql disk"])
def database_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DatabaseDisk]:
    if request.param == "sqlite limit":
        yield DatabaseDisk(f"sqlite:///{tmp_path / 'remora.db'}", None)
        return
    # Pytest's own folders are closed to the server's user.
    with (
        tempfile.TemporaryDirectory() as open_folder,
        small_disk(Path(open_folder) / "disk", 32 << 20) as disk,
    ):
        Path(open_folder).chmod(0o755)
        if request.param == "sqlite disk":
            yield DatabaseDisk(f"sqlite:///{disk / 'remora.db'}", fill_but(disk, 8 << 20))
            return
        server: PostgresServer = request.getfixturevalue("postgres")
        with tablespace(server, disk) as url:
            yield DatabaseDisk(url, fill_but(disk, 4 << 20))


@contextmanager
def tablespace(server: PostgresServer, disk: Path) -> Iterator[str]:
    """A database of the server whose tables lie on that disk."""
    if os.environ.get("REMORA_TEST_PG_URL"):
        pytest.skip("the server of REMORA_TEST_PG_URL does not see this disk")
    folder = disk / "tables"
    folder.mkdir()
    user = pwd.getpwnam("postgres")
    os.chown(folder, user.pw_uid, user.pw_gid)
    url = server.create()
    name = sa.make_url(url).database
    server._run(f"CREATE TABLESPACE small LOCATION '{folder}'")
    server._run(f'ALTER DATABASE "{name}" SET TABLESPACE small')
    try:
        yield url
    finally:
        server.drop(url)
        server._run("DROP TABLESPACE small")


@pytest.fixture
def service(database_disk: DatabaseDisk, tmp_path: Path) -> Iterator[FullService]:
    database = Database(database_disk.url)
    migrate(database)
    database.close()
    opened = FullService(database_disk.url, tmp_path / "home")
    opened.client.__enter__()
    yield opened
    opened.close()


def test_a_full_disk_is_said_and_what_was_accepted_stands(
    database_disk: DatabaseDisk, service: FullService
) -> None:
    running = service.world.submit()
    service.world.tick(8)
    driver = service.world.launcher.driver_of(running)
    database_disk.end(service)
    accepted, problem = service.submit_until_refused()
    assert (problem.status, problem.code, problem.title) == (507, "database_full", "Insufficient storage")
    assert "free space" in problem.detail
    assert service.listed() == {running, *accepted}

    # A controller notices by itself, and says it in one sentence.
    driver.report("log", rank=0, stream="stdout", text="x" * (4 << 20))
    with pytest.raises(DBAPIError) as refused:
        service.world.tick(50)
    assert failure_of(refused.value) is DatabaseFailure.FULL
    assert "free space" in why_failed(refused.value)

    database_disk.make(service)
    service.world.now += 60.0
    driver.report("ended", end_reason="completed", message="done", exit_code=0)
    for _ in service.world.ticks_until("the job that ran has succeeded"):
        if service.world.job(running).state is JobState.SUCCEEDED:
            break
    later = service.client.post("/v1/jobs", json=SPEC)
    assert later.status_code == 201
    assert service.listed() == {running, *accepted, later.json()["id"]}


@pytest.mark.parametrize("database_disk", ["sqlite disk"], indirect=True)
def test_the_controllers_process_says_it_once_and_keeps_its_lease_when_there_is_space(
    database_disk: DatabaseDisk, service: FullService, caplog: pytest.LogCaptureFixture
) -> None:
    world = service.world
    running = world.submit()
    world.tick(8)
    world.controller.resign()
    process = Process(world.settings, service.database, lambda *_: world.connect())
    process._keep()
    held = process.lease
    assert held is not None
    process._go_on_with(world.connect())
    database_disk.end(service)
    service.submit_until_refused()
    world.launcher.driver_of(running).report("log", rank=0, stream="stdout", text="x" * (4 << 20))
    with caplog.at_level(logging.WARNING, "service.controller.controller"):
        for _ in range(3):
            process._complain("work", process._work(process._controller))
    (said,) = [one.getMessage() for one in caplog.records if one.name == "service.controller.controller"]
    assert "free space" in said
    assert "trying again" in said
    database_disk.make(service)
    assert process._work(process._controller) == ""
    process._keep()
    assert process.lease == held
    assert world.job(running).log_seq == 1, "the line that found no capacity is there"


def test_a_postgresql_that_may_only_be_read_says_so(postgres: PostgresServer, tmp_path: Path) -> None:
    url = postgres.create()
    name = sa.make_url(url).database
    service = FullService(url, tmp_path / "home")
    try:
        job_id = service.world.submit()
        service.database.close()
        service.database = Database(url)
        service.world.database = service.database
        service.world.controller = service.world.new_controller()
        postgres._run(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
        with service.client:
            answer = service.client.post("/v1/jobs", json=SPEC)
            assert (answer.status_code, answer.json()["code"]) == (503, "database_read_only")
            assert "write" in answer.json()["detail"]
            with pytest.raises(DBAPIError, match="read-only"):
                service.world.tick()
            postgres._run(f'ALTER DATABASE "{name}" SET default_transaction_read_only = off')
            service.database.close()
            service.database = service.world.database = Database(url)
            service.world.controller = service.world.new_controller()
            service.world.tick(4)
            assert service.world.nodes(), "it goes on"
            assert service.world.job(job_id).state is JobState.ADMITTED
    finally:
        service.database.close()
        postgres.drop(url)


def _failure(database: Database) -> DatabaseFailure:
    with pytest.raises(DBAPIError) as raised:
        database.transact(lambda connection: connection.execute(sa.text("DELETE FROM jobs")))
    assert why_failed(raised.value)
    return failure_of(raised.value)


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[tuple[Path, Database]]:
    file = tmp_path / "remora.db"
    database = Database(f"sqlite:///{file}")
    migrate(database)
    yield file, database
    database.close()


def test_a_file_that_is_no_database_any_more(sqlite: tuple[Path, Database]) -> None:
    file, database = sqlite
    database.close()
    for beside in file.parent.glob("remora.db-*"):
        beside.unlink()
    file.write_bytes(b"something else" * 1000)
    again = Database(f"sqlite:///{file}")
    assert _failure(again) is DatabaseFailure.DAMAGED
    again.close()


def test_a_query_only_connection_may_only_be_read(sqlite: tuple[Path, Database]) -> None:
    _, database = sqlite
    database.transact(lambda connection: connection.execute(sa.text("PRAGMA query_only = 1")))
    assert _failure(database) is DatabaseFailure.READ_ONLY


def test_what_is_one_transactions_own_fault_fails_no_other_one(database: Database) -> None:
    def twice(connection: sa.Connection) -> None:
        connection.execute(sa.text("INSERT INTO pool_reopenings (pool, at) VALUES ('a', 1), ('a', 2)"))

    with pytest.raises(DBAPIError) as raised:
        database.transact(twice)
    assert failure_of(raised.value) is DatabaseFailure.REFUSED


def test_a_database_that_is_away_does_not_answer() -> None:
    error = OperationalError("SELECT", {}, psycopg.OperationalError("connection refused\nby no server"))
    assert (failure_of(error), why_failed(error)) == (
        DatabaseFailure.AWAY,
        "the database does not answer: connection refused",
    )


def _bundle() -> bytes:
    """An archive of 200 kB that nothing makes smaller."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("data.bin", os.urandom(200_000))
    return packed.getvalue()


def test_a_full_storage_and_a_full_home_say_so(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        storage = Storage(disk / "storage")
        storage.write_bytes("a", b"x")
        url = f"sqlite:///{tmp_path / 'remora.db'}"
        database = Database(url)
        migrate(database)
        database.close()
        (disk / "home").mkdir()
        settings: dict[str, Any] = {"database_url": url, "storage_url": str(disk / "storage")}
        content = _bundle()
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        ballast = fill(disk)
        with pytest.raises(StorageFull, match="is full: free space"):
            storage.write_bytes("b", b"x" * 100_000)
        for home, code in ((disk / "home", "disk_full"), (tmp_path / "home", "storage_full")):
            app = create_app(Settings(home=home, **settings))
            with TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
                answer = client.put(f"/v1/bundles/{digest}", content=content)
                assert (answer.status_code, answer.json().get("code")) == (507, code), answer.text
        ballast.unlink()
        storage.write_bytes("b", b"x")
