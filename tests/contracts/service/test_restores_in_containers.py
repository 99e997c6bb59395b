"""A backup is restored in containers only while no process of the service works with the database."""

from __future__ import annotations

import os

import pytest
import sqlalchemy as sa

from service.installation.container_commands import expect_no_process
from service.installation.layout import InstallationProblem
from service.store.database import Database
from tests.e2e.processes import until


@pytest.fixture
def given(database_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The settings in the environment, as containers have them."""
    for name in [name for name in os.environ if name.startswith("REMORA_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("REMORA_DATABASE_URL", database_url)
    monkeypatch.setenv("REMORA_LEASE_S", "0.3")
    return database_url


def test_a_process_that_is_connected_is_one_that_the_restore_would_harm(given: str) -> None:
    if given.startswith("sqlite"):
        pytest.skip("SQLite does not know who reads it")
    api = Database(given)
    api.query(lambda connection: connection.scalar(sa.text("SELECT 1")))
    with pytest.raises(InstallationProblem, match="end them with `compose stop api controller`"):
        expect_no_process()
    api.close()
    until(is_free, "the server has ended its session")


def is_free() -> bool:
    try:
        expect_no_process()
    except InstallationProblem:
        return False
    return True


def test_a_database_whose_tables_are_gone_may_be_restored(given: str) -> None:
    database = Database(given)
    database.transact(lambda connection: connection.execute(sa.text("DROP TABLE leases")))
    database.close()
    expect_no_process()


def test_a_wrong_setting_is_not_taken_for_a_service_that_does_not_run(
    given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REMORA_LEASE_S", "x")
    with pytest.raises(InstallationProblem, match="a setting in the environment of this container is wrong"):
        expect_no_process()
