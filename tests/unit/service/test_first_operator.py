"""The first operator's token: one, whatever the start was interrupted between, and readable by its user only."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from service import first_operator
from service.identities import tokens
from service.identities.tokens import Standing
from service.store import tokens as store
from service.store.database import Database
from service.store.migrate import migrate
from service.store.tables import tokens as table

NOW = 1_700_000_000.0


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database(f"sqlite:///{tmp_path / 'remora.db'}")
    migrate(opened)
    yield opened
    opened.close()


def is_good(database: Database, file: Path) -> bool:
    presented = tokens.read(file.read_text().strip())
    assert presented is not None
    row = database.query(lambda c: store.get(c, presented.token_id))
    return tokens.standing(presented, row, NOW) is Standing.GOOD and tokens.principal_of(row).is_operator  # type: ignore[arg-type]


def count(database: Database) -> int:
    return int(
        database.query(lambda c: c.execute(sa.select(sa.func.count()).select_from(table)).scalar_one())
    )


def test_it_is_made_once(database: Database, tmp_path: Path) -> None:
    file = first_operator.ensure(database, tmp_path, NOW)
    text = file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert first_operator.ensure(database, tmp_path, NOW + 5).read_text() == text
    assert is_good(database, file)
    assert count(database) == 1
    assert sorted(one.name for one in tmp_path.iterdir() if "token" in one.name) == ["operator.token"]


@pytest.mark.parametrize(
    "killed_at",
    ["service.first_operator.write_private", "service.store.tokens.insert", "pathlib.Path.replace"],
)
def test_a_start_that_is_killed_is_completed_by_the_next(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_at: str
) -> None:
    class Killed(BaseException):
        pass

    def kill(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(killed_at, kill)
        with pytest.raises(Killed):
            first_operator.ensure(database, tmp_path, NOW)
        assert not (tmp_path / "operator.token").exists()
    file = first_operator.ensure(database, tmp_path, NOW)
    assert is_good(database, file)
    assert count(database) == 1, "no token is left of which no copy is there"
    assert [one.name for one in tmp_path.iterdir() if "token" in one.name] == ["operator.token"]


def test_one_that_was_revoked_stays_and_one_of_another_database_is_replaced(
    database: Database, tmp_path: Path
) -> None:
    file = first_operator.ensure(database, tmp_path, NOW)
    text = file.read_text()
    presented = tokens.read(text.strip())
    assert presented is not None
    database.transact(lambda c: store.revoke(c, presented.token_id, NOW))
    assert first_operator.ensure(database, tmp_path, NOW).read_text() == text
    assert not is_good(database, file)
    database.transact(lambda c: c.execute(sa.text("DELETE FROM token_grants")))
    database.transact(lambda c: c.execute(sa.delete(table)))
    assert first_operator.ensure(database, tmp_path, NOW).read_text() != text
    assert is_good(database, file)
