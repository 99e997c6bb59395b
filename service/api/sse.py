"""Server-sent events: our own response, which ends at once when the client or the service leaves."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator

from sqlalchemy.exc import DBAPIError
from starlette.background import BackgroundTask
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.api.problem_documents import ApiProblem
from service.identities.principals import LOCAL, Principal

log = logging.getLogger(__name__)

#: Streams of events and of logs that are open at the same time.
MOST_STREAMS = 128
#: Of one principal, where there are several: the others keep some.
MOST_OF_PRINCIPAL = 64
#: Seconds between two looks whether a stream's client may still read it.
ALLOWED_S = 2.0
PING = b": ping\n\n"
#: How long a client waits before it connects again, in milliseconds.
RETRY = b"retry: 1000\n\n"


def frame(event: str, data: str, identity: int | None = None) -> bytes:
    """One event; `data` has no line breaks (it is JSON)."""
    head = "" if identity is None else f"id: {identity}\n"
    return f"{head}event: {event}\ndata: {data}\n\n".encode()


class OpenStreams:
    """Counts the streams of a process.  Used on its event loop only."""

    def __init__(self) -> None:
        #: By principal.
        self._open: Counter[str] = Counter()

    @contextlib.contextmanager
    def one(self, principal: Principal) -> Iterator[None]:
        """One more of the principal while the block runs."""
        self._open[principal.id] += 1
        try:
            yield
        finally:
            self._open[principal.id] -= 1
            # Counters keep names at 0.
            self._open += Counter()

    def check(self, principal: Principal) -> None:
        """Raise ApiProblem 429 `too_many_streams` when the principal can have no further one."""
        count, mine = self._open.total(), self._open[principal.id]
        limited = principal is not LOCAL and mine >= MOST_OF_PRINCIPAL
        if limited or count >= MOST_STREAMS:
            raise ApiProblem(
                429,
                "too_many_streams",
                f"{mine} streams of yours are open" if limited else f"{count} streams are open",
                hint="end one of them, or ask for pages",
                headers={"Retry-After": "5"},
            )


class EventStream(Response):
    """Sends frames until they end, the client leaves, or `closing` is set; none of these is an error."""

    media_type = "text/event-stream"

    def __init__(
        self,
        frames: AsyncGenerator[bytes],
        closing: asyncio.Event,
        streams: OpenStreams,
        principal: Principal,
        still_allowed: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        """`still_allowed` is asked again and again; once it says no, the stream ends.

        Raises ApiProblem when `streams` are too many already.
        """
        streams.check(principal)
        self._streams = streams
        self._principal = principal
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._frames = frames
        self._closing = closing
        self._still_allowed = still_allowed
        self.background: BackgroundTask | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        with self._streams.one(self._principal):
            await self._answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["remora.is_stream"] = True
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        tasks = [
            asyncio.create_task(self._send(send)),
            asyncio.create_task(_until_left(receive)),
            asyncio.create_task(self._closing.wait()),
        ]
        if self._still_allowed is not None:
            tasks.append(asyncio.create_task(_until_refused(self._still_allowed)))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        with contextlib.suppress(OSError):
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send) -> None:
        try:
            await send({"type": "http.response.body", "body": RETRY, "more_body": True})
            async with contextlib.aclosing(self._frames) as frames:
                async for body in frames:
                    await send({"type": "http.response.body", "body": body, "more_body": True})
        except OSError:
            return
        except Exception:
            # The client connects again and goes on where it was.
            log.exception("a stream was cut")


async def _until_refused(still_allowed: Callable[[], Awaitable[bool]]) -> None:
    """A database that does not answer refuses nothing: what the stream reads comes from it as well."""
    is_allowed = True
    while is_allowed:
        await asyncio.sleep(ALLOWED_S)
        with contextlib.suppress(DBAPIError):
            is_allowed = await still_allowed()


async def _until_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
