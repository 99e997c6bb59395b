"""Processes that send traces: what they refuse to start with, and that a collector that hangs does not keep them."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from remora.states import AttemptState, EndReason
from service.clouds.fixed_pool import LocalSupply
from service.controller.connecting import ClusterConnection
from service.controller.controller import END_S, Process
from service.queue import lifecycle
from service.queue.rows import AttemptRow
from service.settings import Settings
from service.store import jobs, leases
from service.store.database import Database
from service.store.migrate import migrate
from service.store.rows import columns
from service.store.tables import attempts
from service.tracing.request_spans import CLOSE_S
from tests.contracts.service.otlp_receivers import otlp_receiver
from tests.contracts.service.owners import owner_of
from tests.contracts.service.test_service_process import ROOT, environment
from tests.service_fakes import FakeCluster, FakeLauncher, job_row

URL = "http://127.0.0.1:9"
MODULES = ["service.api_process", "service.controller.controller"]


def start(home: Path, module: str, first: str = "", **settings: str) -> tuple[int, str]:
    words = ["--port", "0"] if module == "service.api_process" else []
    script = f"import sys\n{first}\nfrom {module} import main\nsys.exit(main({words}))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment(home, REMORA_OTLP_ENDPOINT=URL, **settings),
        cwd=ROOT,
        capture_output=True,
        timeout=120,
        text=True,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("module", MODULES)
def test_without_the_packages_one_sentence_says_what_to_install(tmp_path: Path, module: str) -> None:
    code, said = start(tmp_path, module, "sys.modules['opentelemetry.sdk'] = None")
    assert code == 2
    assert "its extra `tracing`" in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("module", MODULES)
def test_headers_that_cannot_be_used_are_one_sentence_without_them(tmp_path: Path, module: str) -> None:
    file = tmp_path / "headers"
    file.write_text("Authorization: Bearer s3cret\ns3cret-without-a-name\n")
    code, said = start(tmp_path, module, REMORA_OTLP_HEADERS_FILE=str(file))
    assert code == 2
    assert "line 2 of" in said
    assert "s3cret" not in said
    assert len(said.splitlines()) == 1


def test_a_controller_ends_in_time_although_the_collector_hangs(tmp_path: Path) -> None:
    with otlp_receiver() as collector:
        collector.answers += [0] * 20
        settings = Settings(home=tmp_path, tick_s=0.01, otlp_endpoint=collector.url)
        database = Database(settings.database)
        migrate(database)
        job, now = job_row(time.time()), time.time()
        ended = AttemptRow(
            id="att_1",
            job_id=job.id,
            attempt=1,
            created_at=now,
            state=AttemptState.ENDED,
            end_reason=EndReason.COMPLETED,
            ended_at=now,
            released_at=now,
            listed_at=now,
        )
        database.transact(lambda c: jobs.insert_job(c, lifecycle.submit(job)))
        database.transact(lambda c: c.execute(attempts.insert(), [columns(ended)]))
        fakes = FakeCluster()

        def connect(_: Settings, __: str) -> ClusterConnection:
            return ClusterConnection(FakeLauncher(), fakes, fakes, LocalSupply(settings), fakes)

        (tmp_path / "ray.address").write_text("first:1\n")
        process = Process(settings, database, connect)
        thread = threading.Thread(target=process.run)
        thread.start()
        collector.wait()
        began = time.monotonic()
        process.stopping.set()
        thread.join(20)
        assert time.monotonic() - began < END_S + 2.0
        assert not process.is_stuck
        lease = database.query(lambda connection: leases.get(connection, "controller"))
        assert lease is not None
        assert lease.is_free
        database.close()


def test_the_api_ends_in_time_although_the_collector_hangs(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    with otlp_receiver() as collector:
        collector.answers += [0] * 20
        with owner_of(database, database_url, tmp_path, otlp_endpoint=collector.url) as owner:
            owner.submit()
            collector.wait()
            owner.world.controller.traces.close()
            began = time.monotonic()
        assert time.monotonic() - began < CLOSE_S + 3.0
