"""Fixtures for every test: databases of both kinds."""

from __future__ import annotations

import gc
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from service.store.database import Database
from service.store.migrate import migrate
from tests.azurite import Azurite, azurite
from tests.needed import is_missing
from tests.postgres import OwnServer, PostgresServer, binaries
from tests.slow_files import report_lost

# How fast a busy machine makes examples says nothing about what they are examples of.
# A fixture that all examples of a test share is the caller's choice.  A list that a test gives replaces this one.
# To explain a failure Hypothesis traces every line, which takes minutes where examples are whole clusters.
# REMORA_EXAMPLES: of each property that does not say itself how many it needs; other ones are drawn in each run.
settings.register_profile(
    "remora",
    max_examples=int(os.environ.get("REMORA_EXAMPLES", "100")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    phases=set(Phase) - {Phase.explain},
)
settings.load_profile("remora")


def pytest_configure() -> None:
    """Who ends a run with SIGTERM, as `timeout` does, has its clusters and servers ended as Ctrl-C does.

    A shell that starts a run in the background has it ignore SIGINT, and what the tests start would ignore it too.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What needs no second database to find its faults runs on PostgreSQL in `make soak` alone.

    This comes before pytest leaves out tests by their marks: the fast lane, which reads all files, sees whether the
    slow one loses a test.
    """
    report_lost(items)
    for item in items:
        parameters = getattr(item, "callspec", None)
        is_postgresql = parameters is not None and parameters.params.get("database_url") == "postgresql"
        if is_postgresql and item.get_closest_marker("postgresql_in_soak"):
            item.add_marker(pytest.mark.soak)


def pytest_collection_finish() -> None:
    """What was imported and collected stays until the end: the garbage collector need not look at it in each test."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Of several processes one runs all slow tests of a file, one all that cut networks, one those of one service."""
    # Without pytest-xdist no process asks for it.
    from tests.lanes import Lanes

    return Lanes(config, log)


@pytest.fixture(scope="session")
def mpirun() -> str:
    """The distribution's Open MPI."""
    return shutil.which("mpirun") or is_missing("Open MPI is not installed: apt-get install openmpi-bin")


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server: the one of REMORA_TEST_PG_URL, or our own."""
    given = os.environ.get("REMORA_TEST_PG_URL")
    if given:
        server = PostgresServer(given)
        yield server
        server.close()
        return
    folder = binaries()
    if folder is None:
        is_missing("PostgreSQL is not installed, so NOTHING IS TESTED ON IT: apt-get install postgresql")
    own = OwnServer(folder)
    try:
        yield PostgresServer(own.url)
    finally:
        own.stop()


@pytest.fixture(scope="session")
def azurite_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azurite]:
    """Azure's emulator of blob storage, with an empty container."""
    with azurite(tmp_path_factory.mktemp("azurite")) as server:
        yield server


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated database, closed: its copies need none of the migrations."""
    path = tmp_path_factory.mktemp("sqlite") / "template.db"
    database = Database(f"sqlite:///{path}")
    migrate(database)
    database.close()
    return path


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of an empty, migrated database; every test that uses it runs on both kinds."""
    if request.param == "sqlite":
        template: Path = request.getfixturevalue("migrated_sqlite")
        yield f"sqlite:///{shutil.copy(template, tmp_path / 'remora.db')}"
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    url = server.create()
    yield url
    server.drop(url)


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """The same, opened."""
    opened = Database(database_url)
    yield opened
    opened.close()
