"""A connection to PostgreSQL breaks while COMMIT is under way: what was committed is not done again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
import sqlalchemy as sa

from service.queue import lifecycle
from service.queue.rows import JobRow
from service.store import jobs, transactions
from service.store.database import Database
from service.store.failures import Unsure, why_failed
from service.store.tables import jobs as jobs_table
from tests.cutting_proxy import Cut, CuttingProxy
from tests.postgres import PostgresServer
from tests.service_fakes import job_row

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def url(postgres: PostgresServer) -> Iterator[str]:
    found = postgres.create()
    yield found
    postgres.drop(found)


@pytest.fixture
def proxy(url: str) -> Iterator[CuttingProxy]:
    opened = CuttingProxy(url)
    yield opened
    opened.close()


@pytest.fixture
def database(proxy: CuttingProxy) -> Iterator[Database]:
    opened = Database(proxy.url)
    opened.query(jobs.count_active)
    yield opened
    opened.close()


class Submitting:
    """A submission without a key: a job with a new id every time that it is run."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self, connection: sa.Connection) -> JobRow:
        self.runs += 1
        return jobs.insert_job(connection, lifecycle.submit(job_row()))


def stored(url: str) -> list[str]:
    database = Database(url)
    try:
        return database.query(
            lambda connection: list(connection.execute(sa.select(jobs_table.c.id)).scalars())
        )
    finally:
        database.close()


@pytest.mark.parametrize(("where", "runs"), [(Cut.BEFORE, 2), (Cut.AT_ONCE, 1), (Cut.AFTER, 1)])
def test_a_submission_without_a_key_is_there_once(
    database: Database, proxy: CuttingProxy, url: str, where: Cut, runs: int
) -> None:
    work = Submitting()
    proxy.cut_next(where)
    job = database.transact(work)
    assert proxy.has_cut.is_set(), "the connection broke"
    assert stored(url) == [job.id]
    assert work.runs == runs


def _administer(url: str, statement: str) -> None:
    address = sa.make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(statement)  # type: ignore[arg-type]


@pytest.fixture
def slow_commits(url: str) -> Iterator[None]:
    """Commits wait for a standby that is not there; who administers the server does not."""
    _administer(url, "ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    _administer(url, "SELECT pg_reload_conf()")
    yield
    quick_commits(url)


def quick_commits(url: str) -> None:
    """They wait for no standby any more."""
    _administer(url, "ALTER SYSTEM RESET synchronous_standby_names")
    _administer(url, "SELECT pg_reload_conf()")


@pytest.mark.usefixtures("slow_commits")
def test_a_commit_that_goes_on_without_its_client_is_waited_for(
    database: Database, proxy: CuttingProxy, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = threading.Event()
    fate = transactions._fate

    def watched(*arguments: object) -> transactions.Fate | None:
        found = fate(*arguments)  # type: ignore[arg-type]
        if found is transactions.Fate.IN_PROGRESS:
            asked.set()
        return found

    monkeypatch.setattr(transactions, "_fate", watched)
    work = Submitting()
    proxy.cut_next(Cut.AT_ONCE)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(database.transact, work)
        assert asked.wait(30.0), "it is not known yet what became of it"
        quick_commits(url)
        assert stored(url) == [future.result(30.0).id]
    assert work.runs == 1


@pytest.mark.usefixtures("slow_commits")
def test_an_unknown_outcome_is_said_and_not_done_again(
    database: Database, proxy: CuttingProxy, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "PATIENCE_S", 0.3)
    work = Submitting()
    proxy.cut_next(Cut.AT_ONCE)
    with pytest.raises(Unsure) as raised:
        database.transact(work)
    assert "not known whether" in why_failed(raised.value)
    assert work.runs == 1
    quick_commits(url)


def test_a_server_that_takes_no_connection_for_a_moment_is_asked_again(
    database: Database, proxy: CuttingProxy, url: str
) -> None:
    work = Submitting()
    proxy.cut_next(Cut.AT_ONCE)
    proxy.to_refuse = 3
    job = database.transact(work)
    assert proxy.to_refuse == 0, "it was asked more than once"
    assert (stored(url), work.runs) == ([job.id], 1)


def test_a_server_that_never_heard_of_a_transaction_does_not_say_that_it_failed(
    database: Database, proxy: CuttingProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a standby that took over without the newest transactions."""
    number = transactions._number
    monkeypatch.setattr(transactions, "_number", lambda c: str(int(number(c) or 0) + 1_000_000))
    work = Submitting()
    proxy.cut_next(Cut.AT_ONCE)
    with pytest.raises(Unsure):
        database.transact(work)
    assert work.runs == 1


def test_a_server_that_was_ended_during_a_commit_is_asked_when_it_is_back(
    database: Database, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its backend is ended from outside just before the COMMIT: nothing is stored, and it is done again."""
    number = transactions._number
    ended: list[str | None] = []

    def ending(connection: sa.Connection) -> str | None:
        found = number(connection)
        if not ended:
            pid = connection.execute(sa.text("SELECT pg_backend_pid()")).scalar_one()
            _administer(url, f"SELECT pg_terminate_backend({pid}, 10000)")
            ended.append(found)
        return found

    monkeypatch.setattr(transactions, "_number", ending)
    work = Submitting()
    job = database.transact(work)
    assert ended[0] is not None
    assert (stored(url), work.runs) == ([job.id], 2)


def test_work_that_wrote_nothing_has_no_number(database: Database) -> None:
    assert database.transact(transactions._number) is None
