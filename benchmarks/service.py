"""What the service costs: `make bench-service` writes `benchmarks/out/service.json`.

`post_ratio`: how many times as fast a bare route of FastAPI and SQLAlchemy stores a body as `POST /v1/jobs` accepts a
job, turned over: 1 would be no cost beside the bare one.  Both are asked alternately by the same clients, on the same
machine and the same kind of database; CPU is what the server's process computed for one request.

`tick`: statements and milliseconds of CPU of one tick of the controller on SQLite, with fakes for all that is outside.

`driver` and `driver_log_mib`: what a driver costs; see `benchmarks/driver_cost.py`.

`idle_share`: the share of a core that a cluster without work takes; see `benchmarks/idle.py`.

`jobs_per_minute`: how many short jobs three nodes end, in peace and with nodes killed; see `benchmarks/short_jobs.py`.

`metrics_scrape_ms`: milliseconds of CPU of the store's part of `GET /metrics`, by the number of jobs there ever were.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import sqlalchemy as sa

from benchmarks import driver_cost, idle, short_jobs
from benchmarks.served import serve
from remora.states import JobState
from service.settings import Settings
from service.store.database import Database
from service.store.migrate import migrate
from service.store.tables import jobs
from service.store.totals import totals
from tests.postgres import OwnServer, PostgresServer, binaries
from tests.service_fakes import World, job_row
from tests.statements import statements

CLIENTS = (1, 8, 64)
#: Requests of each measurement, and measurements of each contestant, alternately.
REQUESTS = 512
ROUNDS = 3
#: Nodes of the controller that is measured.
NODES = 50
TICKS = 9
_BODY = json.dumps(
    {
        "name": "digits",
        "command": ["python", "train.py"],
        "workers": {"min": 1, "max": 4},
        "resources": {"cpus": 1},
    }
)


def run() -> dict[str, Any]:
    """All of it; minutes."""
    ratios: dict[str, Any] = {}
    figures: dict[str, Any] = {}
    missing: dict[str, str] = {}
    for kind in ("sqlite", "postgresql"):
        with _database(kind) as urls:
            if urls is None:
                missing[kind] = "it is not installed; install the package postgresql"
            else:
                ratios[kind], figures[kind] = _posts(*urls)
    return {
        **({"missing": missing} if missing else {}),
        "post_ratio": ratios,
        "post": figures,
        "tick": [
            tick(*counts)
            for counts in ((20, 5, 0), (200, 50, 0), (200, 50, 100), (200, 50, 5000), (200, 0, 0))
        ],
        **driver_cost.run(),
        **idle.run(),
        **short_jobs.run(),
        "metrics_scrape_ms": {str(count): scrape_ms(count) for count in (2_000, 20_000, 200_000)},
    }


@contextlib.contextmanager
def _database(kind: str) -> Iterator[tuple[str, str] | None]:
    """Two empty databases, the first one with our schema; None where it is not installed."""
    with contextlib.ExitStack() as stack:
        if kind == "sqlite":
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="remora-bench-"))
            yield f"sqlite:///{folder}/ours.db", f"sqlite:///{folder}/bare.db"
            return
        folder_of_binaries = binaries()
        if folder_of_binaries is None:
            yield None
            return
        server = OwnServer(folder_of_binaries)
        stack.callback(server.stop)
        made = PostgresServer(server.url)
        yield made.create(), made.create(migrated=False)


def _posts(ours_url: str, bare_url: str) -> tuple[dict[str, float], dict[str, Any]]:
    """Ratios, and requests in a second and CPU of each, by the number of clients."""
    ratios: dict[str, float] = {}
    figures: dict[str, Any] = {}
    with _ours(ours_url) as ours, _bare(bare_url) as bare:
        for clients in CLIENTS:
            durations: dict[str, list[tuple[float, float]]] = {"ours": [], "bare": []}
            for _ in range(ROUNDS):
                for name, server in (("ours", ours), ("bare", bare)):
                    durations[name].append(_ask(*server, clients))
            figures[str(clients)] = {
                name: {
                    "wall_ms": round(median(wall for wall, _ in found), 3),
                    "cpu_ms": round(median(cpu for _, cpu in found), 3),
                }
                for name, found in durations.items()
            }
            row = figures[str(clients)]
            row["cpu_ratio"] = round(row["bare"]["cpu_ms"] / row["ours"]["cpu_ms"], 3)
            ratios[str(clients)] = round(row["bare"]["wall_ms"] / row["ours"]["wall_ms"], 3)
    return ratios, figures


def _ask(address: str, server: psutil.Process, clients: int) -> tuple[float, float]:
    """Milliseconds of time and of the server's CPU for each request."""
    each = max(1, REQUESTS // clients)
    failed: list[int] = []

    def post() -> None:
        connection = http.client.HTTPConnection(address, timeout=120)
        for _ in range(each):
            connection.request("POST", "/v1/jobs", _BODY, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            if answer.status != 201:
                failed.append(answer.status)
        connection.close()

    threads = [threading.Thread(target=post) for _ in range(clients)]
    before, began = server.cpu_times(), time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took, after = time.perf_counter() - began, server.cpu_times()
    if failed:
        raise RuntimeError(f"{len(failed)} requests failed, the first one with {failed[0]}")
    cpu = after.user + after.system - before.user - before.system
    return 1000.0 * took / (each * clients), 1000.0 * cpu / (each * clients)


@contextlib.contextmanager
def _ours(url: str) -> Iterator[tuple[str, psutil.Process]]:
    with tempfile.TemporaryDirectory(prefix="remora-bench-") as folder:
        words = ["-m", "service.api_process", "--home", folder, "--port", "0"]
        settings = {"REMORA_DATABASE_URL": url, "REMORA_MAX_ACTIVE_JOBS": "1000000"}
        with serve(words, settings, Path(folder) / "api.url") as server:
            yield server


@contextlib.contextmanager
def _bare(url: str) -> Iterator[tuple[str, psutil.Process]]:
    with tempfile.TemporaryDirectory(prefix="remora-bench-") as folder:
        address = Path(folder) / "url"
        if url.startswith("postgresql://"):
            url = url.replace("postgresql://", "postgresql+psycopg://", 1)
        with serve(["-m", "benchmarks.bare_service", url, str(address)], {}, address) as server:
            yield server


def tick(running: int, reporting: int, queued: int) -> dict[str, Any]:
    """Median figures of one tick with the given numbers of jobs."""
    with tempfile.TemporaryDirectory(prefix="remora-bench-") as folder:
        database = Database(f"sqlite:///{folder}/remora.db")
        migrate(database)
        try:
            world = World(
                database, Settings(home=Path(folder), nodes=NODES, node_cpus=max(1, running // NODES))
            )
            world.tick(6)
            job_ids = _running(world, running)
            for _ in range(queued):
                world.submit()
            world.tick(3)
            ticks = [_one_tick(world, job_ids[:reporting], step) for step in range(1, TICKS + 1)]
        finally:
            database.close()
    return {
        "jobs": {"running": running, "reporting": reporting, "queued": queued},
        "statements": int(median(count for count, _ in ticks)),
        "cpu_ms": round(median(cpu for _, cpu in ticks), 1),
    }


def _running(world: World, count: int) -> list[str]:
    job_ids = [world.submit() for _ in range(count)]
    world.tick(3)
    addresses = [str(node.address) for node in world.nodes()]
    drivers = {driver.plan.job_id: driver for driver in world.launcher.drivers.values()}
    for number, job_id in enumerate(job_ids):
        on = {addresses[number % len(addresses)]: 1}
        drivers[job_id].report("progress", state="running", world_size=1, workers=on)
    world.tick(3)
    return job_ids


def _one_tick(world: World, reporting: list[str], step: int) -> tuple[int, float]:
    """Statements and milliseconds of CPU, of all threads of the process."""
    drivers = {driver.plan.job_id: driver for driver in world.launcher.drivers.values()}
    for job_id in reporting:
        drivers[job_id].report("metric", step=step, world_size=1, values={"loss": 0.5})
        for line in range(5):
            drivers[job_id].report("log", rank=0, stream="stdout", text=f"line {line} of step {step}")
    with statements(world.database) as sent:
        began = time.process_time()
        world.tick()
        cpu_ms = 1000.0 * (time.process_time() - began)
    return len(sent), cpu_ms


def _insert_jobs(rows: Sequence[Mapping[str, Any]], connection: sa.Connection) -> None:
    connection.execute(sa.insert(jobs), rows)


def scrape_ms(count: int) -> float:
    """Median milliseconds of CPU for the totals, with that number of jobs that have ended."""
    with tempfile.TemporaryDirectory(prefix="remora-bench-") as folder:
        database = Database(f"sqlite:///{folder}/remora.db")
        migrate(database)
        try:
            row = vars(job_row(state=JobState.SUCCEEDED, attempt=2))
            for first in range(0, count, 10_000):
                numbers = range(first, min(count, first + 10_000))
                rows = [row | {"id": f"job_{number:026d}"} for number in numbers]
                database.transact(partial(_insert_jobs, rows))
            took = []
            for _ in range(TICKS):
                began = time.process_time()
                database.query(lambda connection: totals(connection, 1000.0))
                took.append(1000.0 * (time.process_time() - began))
        finally:
            database.close()
    return round(median(took), 2)
