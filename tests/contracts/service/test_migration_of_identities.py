"""What was there before there were principals belongs to the projects of its jobs afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command

from remora.roles import Role
from service.identities.principals import Access, Principal
from service.store import bundles, outputs
from service.store.database import Database
from service.store.migrate import configuration, migrate
from service.store.rows import columns
from service.store.tables import jobs, models
from tests.postgres import PostgresServer
from tests.service_fakes import job_row

pytestmark = pytest.mark.postgresql_in_soak
DIGEST = f"sha256:{'0' * 64}"


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.soak)])
def unmigrated(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "sqlite":
        opened = Database(f"sqlite:///{tmp_path / 'old.db'}")
        yield opened
        opened.close()
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    url = server.create(migrated=False)
    opened = Database(url)
    yield opened
    opened.close()
    server.drop(url)


def access(*projects: str) -> Access:
    return Access(Principal(id="user:ada", name="ada", grants=dict.fromkeys(projects, Role.VIEWER)))


#: Columns of jobs that came later.
LATER = (
    "submitted_by",
    "metric_reports",
    "metric_sum",
    "metric_step",
    "cluster",
    "stacks_requested_at",
    "traceparent",
)


def test_models_and_bundles_belong_to_the_projects_of_their_jobs(unmigrated: Database) -> None:
    database = unmigrated
    database.transact(lambda c: command.upgrade(configuration(c), "0031"))
    row = columns(job_row(project="red"))
    row = {**row, "spec": {**row["spec"], "code": DIGEST}}
    other = columns(job_row(project="blue"))
    model = {
        "name": "digits", "version": 1, "job_id": row["id"], "attempt": 1, "output": "w", "created_at": 1.0,
        "digest": DIGEST, "code": DIGEST, "command": [], "location": "x", "files": {},
    }  # fmt: skip

    def fill(connection: sa.Connection) -> None:
        for one in (row, other):
            old = {name: value for name, value in one.items() if name not in LATER}
            connection.execute(sa.insert(sa.table("jobs", *_plain(jobs, old))).values(old))
        connection.execute(sa.insert(sa.table("models", *_plain(models, model))).values(model))

    database.transact(fill)
    migrate(database)

    def seen(*projects: str) -> tuple[bool, list[str]]:
        found = database.query(
            lambda c: [one.name for one in outputs.page_of_models(c, set(projects), "", 10)]
        )
        return database.query(lambda c: bundles.is_held(c, access(*projects), DIGEST)), found

    assert seen("red") == (True, ["digits"])
    assert seen("blue") == (False, [])
    assert seen("red", "blue") == (True, ["digits"])


def _plain(table: sa.Table, values: dict[str, Any]) -> list[Any]:
    """The columns that a row of that time has, with their types."""
    return [sa.column(name, table.c[name].type) for name in values]
