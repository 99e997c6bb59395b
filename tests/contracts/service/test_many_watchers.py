"""Many clients that follow one job: each gets every event, and the database is asked as for one."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn

from service.api.app import create_app
from service.settings import Settings
from tests.statements import statements


class Running:
    """A service in this process, at a free port."""

    def __init__(self, home: Path) -> None:
        self.app = create_app(Settings(home=home))
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._server = uvicorn.Server(uvicorn.Config(self.app, log_config=None))
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._listening]}, daemon=True
        )

    def __enter__(self) -> Running:
        self._thread.start()
        assert httpx2.get(f"{self.url}/healthz").status_code == 200
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._listening.close()

    def submit(self) -> str:
        answer = httpx2.post(f"{self.url}/v1/jobs", json={"name": "a", "command": ["true"]})
        return str(answer.json()["id"])


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Running]:
    with Running(tmp_path / "home") as running:
        yield running


async def watch(client: httpx2.AsyncClient, job_id: str, begun: asyncio.Semaphore) -> list[Any]:
    """All events of the job until its end; `begun` is released at the first."""
    seen: list[Any] = []
    path, headers = f"/v1/jobs/{job_id}/events", {"Accept": "text/event-stream"}
    async with client.stream("GET", path, headers=headers) as answer:
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            if line.startswith('data: {"seq"'):
                seen.append(json.loads(line.removeprefix("data: "))["seq"])
                begun.release()
    return seen


def reads_of(service: Running, watchers: int) -> int:
    """How often the events were read while a job that has this number of watchers is cancelled."""
    job_id = service.submit()

    async def follow() -> list[list[Any]]:
        begun = asyncio.Semaphore(0)
        limits = httpx2.Limits(max_connections=None)
        async with httpx2.AsyncClient(base_url=service.url, limits=limits, timeout=60) as client:
            watching = [asyncio.create_task(watch(client, job_id, begun)) for _ in range(watchers)]
            for _ in watching:
                await begun.acquire()
            assert (await client.post(f"/v1/jobs/{job_id}/cancel")).status_code == 202
            return await asyncio.gather(*watching)

    with statements(service.app.state.remora.database) as sent:
        seen = asyncio.run(follow())
    newest = max(seen[0])
    assert all(one == list(range(1, newest + 1)) for one in seen), "each has every event once, in order"
    return sum("FROM events" in text and "max(" not in text for text in sent)


def test_the_database_is_asked_once_for_all_that_are_as_far(service: Running) -> None:
    few = reads_of(service, 2)
    # Those that connect later than a poll after the first one ask again.
    assert reads_of(service, 40) < few + 20


def test_a_client_that_leaves_ends_no_read_that_others_wait_for() -> None:
    from service.api.feed import Feed

    async def run() -> list[int]:
        feed = Feed(None)  # type: ignore[arg-type]
        go, asked = asyncio.Event(), 0

        async def read() -> int:
            nonlocal asked
            asked += 1
            await go.wait()
            return asked

        waiting = [asyncio.create_task(feed.shared("key", read)) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.sleep(0)
        go.set()
        return list(await asyncio.gather(*waiting[1:]))

    assert asyncio.run(run()) == [1, 1]
