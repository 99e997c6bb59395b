"""How the web page keeps up: `make bench-page` writes `benchmarks/out/page.json`; it needs `make browser`.

`paint`: by the number of jobs in the store, milliseconds from the request to the first paint and to the first job that
is to be seen, in Debian's Chromium with empty caches; the same of the jobs page of Ray's dashboard and of MLflow's list
of runs where `make page-peers` has installed them.

`update_ms`: from the commit of a job's step to the moment that the table of jobs shows it.

`watchers`: microseconds of the server's CPU for one event and one watcher, by the number of watchers of one job; the
peer is a bare Starlette that sends the same bytes.

`logs`: milliseconds until the view of a job shows its newest line, and of the API alone for its newest lines, all, of
one rank that prints rarely, or with a text that none has, by the number of lines that the job has printed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import httpx2
import psutil
import sqlalchemy as sa

from benchmarks.served import serve
from remora.states import JobState
from service.store.database import Database
from service.store.migrate import migrate
from service.store.tables import events, jobs, log_lines
from tests.browser.chromium import chromium
from tests.service_fakes import job_row

JOBS = (100, 10_000)
WATCHERS = (1, 50, 500)
LINES = (10_000, 10_000_000)
#: Measurements of each kind; the median counts.
ROUNDS = 5
UPDATES = 9
EVENTS = 40
#: Watchers that come from one address.
OF_ADDRESS = 100
#: The ranks of the job that prints; the last one prints only one line of a thousand.
RANKS = 8
_ROOT = Path(__file__).parent.parent
_PEERS = _ROOT / ".venv-page-peers" / "bin" / "python"
#: Where peers show their lists, and the first entry of these.
_PEER_PAGES = {
    "ray": ("/#/jobs", "tbody tr td"),
    "mlflow": ("/#/experiments/0/runs", "[role=row] a"),
}
_FIRST_PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"


def run() -> dict[str, Any]:
    """All of it; minutes."""
    # Playwright's own event loop would be in the way of that of the watchers.
    watchers = _watchers()
    with chromium() as browser:
        peers, missing = _peers(browser)
        return {
            **({"missing": missing} if missing else {}),
            "paint": {"remora": {str(count): _paint_of_ours(browser, count) for count in JOBS}, **peers},
            "update_ms": {str(count): _update_ms(browser, count) for count in JOBS},
            "watchers": watchers,
            "logs": {str(count): _logs(browser, count) for count in LINES},
        }


@contextlib.contextmanager
def service_with(count: int) -> Iterator[tuple[str, psutil.Process, Database]]:
    """The API's address and process, and its database with that number of jobs of which the newest one runs."""
    with tempfile.TemporaryDirectory(prefix="remora-bench-") as folder:
        url = f"sqlite:///{folder}/remora.db"
        database = Database(url)
        migrate(database)
        now = time.time()
        ended = vars(job_row(now, state=JobState.SUCCEEDED, attempt=1, step=100, total_steps=100))
        rows = [
            ended | {"id": job_id_of(number), "created_at": now - count + number} for number in range(count)
        ]
        rows[-1] |= {"state": JobState.RUNNING, "total_steps": 1_000_000, "step": 1}
        database.transact(lambda connection: connection.execute(sa.insert(jobs), rows))
        words = ["-m", "service.api_process", "--home", folder, "--port", "0"]
        settings = {"REMORA_DATABASE_URL": url, "REMORA_MAX_STREAMS": "1000"}
        try:
            with serve(words, settings, Path(folder) / "api.url") as (host, process):
                yield f"http://{host}", process, database
        finally:
            database.close()


def job_id_of(number: int) -> str:
    """Of the job with that number; the first one is 0."""
    return f"job_{number:026d}"


def _paint_of_ours(browser: Any, count: int) -> dict[str, float]:
    with service_with(count) as (address, _, _):
        return _paint(browser, f"{address}/#/jobs", "tbody tr td a")


def _paint(browser: Any, address: str, entry: str) -> dict[str, float]:
    """Medians of milliseconds, each with a browser context of its own."""
    found = [_painted(browser, address, entry) for _ in range(ROUNDS)]
    return {name: round(median(one[name] for one in found), 1) for name in found[0]}


def _painted(browser: Any, address: str, entry: str) -> dict[str, float]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    try:
        page = context.new_page()
        page.goto(address)
        page.locator(entry).first.wait_for(timeout=120_000)
        shown = page.evaluate("performance.now()")
        page.wait_for_function(_FIRST_PAINT)
        return {"first_paint_ms": page.evaluate(_FIRST_PAINT), "first_entry_ms": shown}
    finally:
        context.close()


def _update_ms(browser: Any, count: int) -> float:
    """Median from the commit of a step to the table that shows it."""
    with service_with(count) as (address, _, database):
        context = browser.new_context()
        try:
            page = context.new_page()
            page.goto(f"{address}/#/jobs")
            page.get_by_text("1 of 1,000,000").first.wait_for()
            return round(median(_update(page, database, count, step) for step in range(2, 2 + UPDATES)), 1)
        finally:
            context.close()


def _update(page: Any, database: Database, count: int, step: int) -> float:
    mine = jobs.c.id == job_id_of(count - 1)
    database.transact(lambda connection: connection.execute(sa.update(jobs).where(mine).values(step=step)))
    began = time.perf_counter()
    page.get_by_text(f"{step} of 1,000,000").first.wait_for()
    return 1000.0 * (time.perf_counter() - began)


def _watchers() -> dict[str, Any]:
    return {str(count): {"remora": cost_of_ours(count), "bare": cost_of_bare(count)} for count in WATCHERS}


def cost_of_ours(count: int, events_of_each: int = EVENTS) -> float:
    """Microseconds of CPU of the API for one event and one of that number of watchers."""
    with service_with(1) as (address, process, database):
        job_id = job_id_of(0)

        def add(seq: int) -> None:
            row = {
                "job_id": job_id,
                "seq": seq,
                "at": time.time(),
                "kind": "job.noted",
                "message": "a",
                "data": {},
            }

            def write(connection: sa.Connection) -> None:
                connection.execute(sa.insert(events), row)
                connection.execute(sa.update(jobs).where(jobs.c.id == job_id).values(event_seq=seq))

            database.transact(write)

        return asyncio.run(_cost(f"{address}/v1/jobs/{job_id}/events", process, count, events_of_each, add))


def cost_of_bare(count: int, events_of_each: int = EVENTS) -> float:
    """The same of `benchmarks.bare_stream`."""
    with tempfile.TemporaryDirectory(prefix="remora-bench-") as folder:
        file = Path(folder) / "url"
        with serve(["-m", "benchmarks.bare_stream", str(file)], {}, file) as (host, process):

            def add(seq: int) -> None:
                # Without `verify` it reads no certificates for each event.
                httpx2.post(f"http://{host}/add/{seq}", verify=False).raise_for_status()

            return asyncio.run(_cost(f"http://{host}/events", process, count, events_of_each, add))


async def _cost(address: str, server: psutil.Process, watchers: int, count: int, add: Any) -> float:
    """Microseconds of the server's CPU for one event and watcher; each event is added when all have the one before."""
    seen = asyncio.Semaphore(0)
    async with contextlib.AsyncExitStack() as stack:
        # The API takes 256 connections of one address.
        clients = [
            await stack.enter_async_context(
                httpx2.AsyncClient(transport=_from(f"127.0.0.{10 + at}"), timeout=120)
            )
            for at in range(-(-watchers // OF_ADDRESS))
        ]
        watching = [
            asyncio.create_task(_watch(clients[at // OF_ADDRESS], address, seen)) for at in range(watchers)
        ]
        await asyncio.to_thread(add, 1)
        await _all(seen, watching)
        before = server.cpu_times()
        for seq in range(2, 2 + count):
            await asyncio.to_thread(add, seq)
            await _all(seen, watching)
        after = server.cpu_times()
        for one in watching:
            one.cancel()
        await asyncio.gather(*watching, return_exceptions=True)
    used = after.user + after.system - before.user - before.system
    return round(1e6 * used / (count * watchers), 1)


def _from(address: str) -> httpx2.AsyncHTTPTransport:
    return httpx2.AsyncHTTPTransport(
        local_address=address, verify=False, limits=httpx2.Limits(max_connections=None)
    )


async def _all(seen: asyncio.Semaphore, watching: Sequence[asyncio.Task[None]]) -> None:
    """Wait until each watcher has seen the newest event.  Raises what ended one of them."""

    async def all_of_them() -> None:
        for _ in watching:
            await seen.acquire()

    waiting = asyncio.create_task(all_of_them())
    done, _ = await asyncio.wait([waiting, *watching], return_when=asyncio.FIRST_COMPLETED)
    if waiting not in done:
        waiting.cancel()
        for one in done:
            one.result()
        raise RuntimeError("a stream ended before all events were seen")


async def _watch(client: httpx2.AsyncClient, address: str, seen: asyncio.Semaphore) -> None:
    async with client.stream("GET", address, headers={"Accept": "text/event-stream"}) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if line.startswith('data: {"seq"'):
                seen.release()


def _logs(browser: Any, count: int) -> dict[str, float]:
    with service_with(1) as (address, _, database):
        database.transact(lambda connection: store_lines(connection, count))
        newest = f"{address}/v1/jobs/{job_id_of(0)}/logs?tail=1000&limit=1000"
        return {
            "first_entry_ms": _paint(browser, f"{address}/#/jobs/{job_id_of(0)}", ".log div")[
                "first_entry_ms"
            ],
            "newest_ms": answer_ms(newest),
            "newest_of_rank_ms": answer_ms(f"{newest}&rank={RANKS - 1}"),
            "search_without_result_ms": answer_ms(f"{newest}&contains=never+printed"),
        }


def store_lines(connection: sa.Connection, count: int) -> None:
    """Lines of all ranks alternately; those of the last rank are few."""
    rank = f"CASE WHEN n % 1000 = 0 THEN {RANKS - 1} ELSE n % {RANKS - 1} END"
    connection.execute(
        sa.text(
            f"WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {count}) "  # noqa: S608 - numbers of ours
            f"INSERT INTO {log_lines.name} (job_id, seq, at, attempt, rank, stream, text) "
            f"SELECT '{job_id_of(0)}', n, 1000.0 + n, 1, {rank}, 'stdout', 'step ' || n || ' loss=0.5' FROM numbers"
        )
    )
    connection.execute(sa.update(jobs).values(log_seq=count))


def answer_ms(address: str) -> float:
    """Median milliseconds of a request."""
    took = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        httpx2.get(address, timeout=120).raise_for_status()
        took.append(1000.0 * (time.perf_counter() - began))
    return round(median(took), 1)


def _peers(browser: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """Figures of each peer by its number of entries, and why one has none."""
    if not _PEERS.exists():
        return {}, dict.fromkeys(_PEER_PAGES, "it is not installed: make page-peers")
    figures: dict[str, Any] = {}
    missing: dict[str, str] = {}
    for name, (path, entry) in _PEER_PAGES.items():
        try:
            figures[name] = {str(count): _paint_of_peer(browser, name, count, path, entry) for count in JOBS}
        except (RuntimeError, subprocess.SubprocessError) as error:
            missing[name] = str(error)
    return figures, missing


def _paint_of_peer(browser: Any, name: str, count: int, path: str, entry: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="remora-bench-") as folder:
        words = [str(_PEERS), "-m", "benchmarks.page_peers", name, str(count), folder]
        process = subprocess.Popen(
            words,
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"{name} did not start")
            return _paint(browser, json.loads(line)["address"] + path, entry)
        finally:
            # It ends what it has started once its input ends.
            process.communicate(timeout=60)
