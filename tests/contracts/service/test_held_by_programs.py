"""What Ray programs hold of many nodes is written as far as it has changed, on SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from cluster.policies.documents import read_stored
from cluster.scheduling.ray_programs import Programs
from cluster.scheduling.view import JobDemand
from remora.spec.worker_sizes import WorkerSizes
from service.loops.ray_programs import record_requests
from service.loops.tick import Tick
from service.settings import Settings
from service.store import leases, ray_requests
from service.store.database import Database
from tests.statements import statements

POLICIES = read_stored("pools: {}\nray_programs: {}\n")


def programs_holding(cpus: Mapping[str, float]) -> Programs:
    """Programs that hold these CPUs of nodes."""
    return Programs(
        held={
            node: JobDemand(
                id=f"ray_{node}",
                project="ray",
                sizes=WorkerSizes(1, 1),
                worker_resources={"CPU": cpu, "memory": 1e9 / 3},
                priority=0,
                created_at=1000.1,
                is_running=True,
                is_program=True,
            )
            for node, cpu in cpus.items()
        }
    )


@pytest.mark.parametrize("nodes", [5, 50])
def test_a_change_on_one_node_writes_its_row_alone(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: int
) -> None:
    lease = database.transact(lambda connection: leases.take(connection, None, "c", "me", 1000.0))
    assert lease is not None
    tick = Tick(database, Settings(home=tmp_path), lease, 1000.0)
    written: list[list[str]] = []
    upsert: Any = vars(ray_requests)["upsert"]

    def note(
        connection: sa.Connection, table: sa.Table, rows: list[dict[str, Any]], *, replace: bool
    ) -> None:
        written.append([row["id"] for row in rows])
        upsert(connection, table, rows, replace=replace)

    monkeypatch.setattr(ray_requests, "upsert", note)
    cpus = {f"n{number}": 1.0 for number in range(nodes)}
    record_requests(tick, POLICIES, programs_holding(cpus), {}, is_known=True)
    cpus["n1"] = 2.0
    with statements(database) as asked:
        record_requests(tick, POLICIES, programs_holding(cpus), {}, is_known=True)
        assert len(asked) < 10
    assert written[1:] == [["ray_n1"]]
    record_requests(tick, POLICIES, programs_holding(cpus), {}, is_known=True)
    assert len(written) == 2, "nothing has changed"
