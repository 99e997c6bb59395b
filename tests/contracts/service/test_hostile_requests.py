"""While the service is sent hostile requests, its event loop stays free: steps are counted, not seconds."""

from __future__ import annotations

import asyncio
import gc
import json
import shutil
import sys
import traceback
import weakref
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.types import Message

from benchmarks.hostile_requests import HostileRequest, hostile_requests, large_requests
from service.api.app import create_app
from service.api.validation_thread import MOST_WAITING, SHORT, Checks
from service.settings import Settings
from tests.steps import stopped_after

#: Lines of Python between two passes of the event loop: far more than any request takes, and a few tens of
#: milliseconds.
MOST_STEPS = 50_000
#: Values that one request may leave for the garbage collector, which stops all threads while it looks at them.
MOST_GARBAGE = 1_000
#: What a request takes on the event loop however it is checked, with a margin: routes are tried one after another.
STEPS_OF_A_REQUEST = 6_000


class CountingLoop(asyncio.SelectorEventLoop):
    """Counts the lines that its thread executes in each of its passes."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0
        self.most = 0

    def _run_once(self) -> None:
        self.steps = 0
        super()._run_once()  # type: ignore[misc]
        self.most = max(self.most, self.steps)

    def trace(self, _frame: FrameType, event: str, _argument: Any) -> Any:
        """For `sys.settrace`, which is of one thread."""
        self.steps += event == "line"
        return self.trace


async def ask(app: FastAPI, method: str, path: str, body: bytes = b"") -> tuple[int, dict[str, Any]]:
    """One request to the application and its answer, a JSON object."""
    path, _, query = path.partition("?")
    headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
    scope = {
        "type": "http", "http_version": "1.1", "method": method, "path": path, "raw_path": path.encode(),
        "query_string": query.encode(), "root_path": "", "scheme": "http", "headers": headers, "state": {},
        "server": ("127.0.0.1", 80), "client": ("127.0.0.1", 1),
    }  # fmt: skip
    chunks = [body[begin : begin + 65536] for begin in range(0, len(body), 65536)] or [b""]
    answered: list[Message] = []

    async def receive() -> Message:
        if not chunks:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": chunks.pop(0), "more_body": bool(chunks)}

    async def send(message: Message) -> None:
        answered.append(message)

    await app(scope, receive, send)
    content = b"".join(message.get("body", b"") for message in answered[1:])
    return answered[0]["status"], json.loads(content)


async def health_during(app: FastAPI, requests: list[HostileRequest]) -> list[int]:
    """Send them together; `/healthz` is asked all the while.  The statuses of their answers."""
    sent = [asyncio.create_task(ask(app, one.method, one.path, one.body)) for one in requests]
    done = asyncio.gather(*sent)
    while not done.done():
        status, _ = await ask(app, "GET", "/healthz")
        assert status == 200
        await asyncio.wait([done], timeout=0.01)
    return [status for status, _ in await done]


@pytest.fixture
def home(tmp_path: Path, migrated_sqlite: Path) -> Path:
    """A home whose database has its schema already."""
    folder = tmp_path / "home"
    folder.mkdir()
    shutil.copy(migrated_sqlite, folder / "remora.db")
    return folder


def steps_during(home: Path, requests: list[HostileRequest]) -> tuple[int, list[int]]:
    """Most steps of one pass of the event loop, and the statuses of the answers."""
    app = create_app(Settings(home=home))

    async def main() -> list[int]:
        async with app.router.lifespan_context(app):
            await ask(app, "GET", "/healthz")  # what is imported and built by the first request only
            loop.most = loop.steps = 0
            tracing = sys.gettrace()
            sys.settrace(loop.trace)
            try:
                return await health_during(app, requests)
            finally:
                sys.settrace(tracing)

    loop = CountingLoop()
    try:
        with stopped_after(120.0):
            statuses = loop.run_until_complete(main())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()
    return loop.most, statuses


@pytest.mark.parametrize("request_", list(hostile_requests()), ids=lambda one: one.name)
def test_the_event_loop_is_free_while_a_hostile_request_is_judged(
    home: Path, request_: HostileRequest
) -> None:
    most, statuses = steps_during(home, [request_])
    assert most < MOST_STEPS
    assert statuses[0] in (200, 400, 413, 422), statuses  # 200: what is wrong with a document that is checked


@pytest.mark.parametrize("request_", list(large_requests()), ids=lambda one: one.name)
def test_the_event_loop_is_free_while_a_large_request_is_answered(
    home: Path, request_: HostileRequest
) -> None:
    most, statuses = steps_during(home, [request_])
    assert most < MOST_STEPS
    assert statuses[0] in (200, 201), statuses


def test_too_many_large_requests_at_once_are_refused(home: Path) -> None:
    large = max(hostile_requests(), key=lambda one: len(one.body) if one.path == "/v1/policies/check" else 0)
    most, statuses = steps_during(home, [large] * (2 * MOST_WAITING))
    # All of them come in one pass.
    assert most < 2 * MOST_WAITING * STEPS_OF_A_REQUEST
    assert statuses.count(503) >= MOST_WAITING


def garbage_of(home: Path, request: HostileRequest) -> int:
    """How many values only the garbage collector frees once the request is answered."""
    app = create_app(Settings(home=home))

    async def main() -> int:
        async with app.router.lifespan_context(app):
            await ask(app, "GET", "/healthz")
            gc.collect()
            # What there is now is not looked at again.
            gc.freeze()
            await ask(app, request.method, request.path, request.body)
            # Behind it in the same thread, which has then let go of the check.
            await app.state.remora.checks.run(lambda: None, None)
            return gc.collect()

    thresholds = gc.get_threshold()
    gc.set_threshold(0)  # never by itself
    try:
        return asyncio.run(main())
    finally:
        gc.set_threshold(*thresholds)


@pytest.mark.parametrize("request_", [*hostile_requests(), *large_requests()], ids=lambda one: one.name)
def test_a_request_leaves_nothing_for_the_garbage_collector(home: Path, request_: HostileRequest) -> None:
    assert garbage_of(home, request_) < MOST_GARBAGE


class Tree:
    """Stands for what a check builds."""


def test_what_a_failed_check_built_is_freed_while_its_error_is_known() -> None:
    built: list[weakref.ref[Tree]] = []

    def parse() -> None:
        tree = Tree()
        built.append(weakref.ref(tree))
        raise KeyError("inner")

    def work() -> None:
        own = Tree()
        built.append(weakref.ref(own))
        try:
            parse()
        except KeyError:
            raise ValueError("outer") from None

    async def main() -> ValueError:
        checks = Checks()
        try:
            with pytest.raises(ValueError, match="outer") as caught:
                await checks.run(work, SHORT + 1)
            return caught.value
        finally:
            checks.close()

    gc.disable()
    try:
        error = asyncio.run(main())
        assert [one() for one in built] == [None, None]
    finally:
        gc.enable()
    # The log still shows where it was.
    assert [frame.name for frame in traceback.extract_tb(error.__traceback__)][-1] == "work"
