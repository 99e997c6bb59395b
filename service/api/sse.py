"""Server-sent events: our own response, which ends at once when the client or the service leaves."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field

from sqlalchemy.exc import DBAPIError
from starlette.background import BackgroundTask
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from cluster.policies.policies import Policies
from service.api.problem_documents import ApiProblem
from service.identities.principals import LOCAL, Principal

log = logging.getLogger(__name__)

#: Streams of events and of logs that are open at the same time.
MOST_STREAMS = 1000
#: Seconds between two looks whether a stream's client may still read it.
ALLOWED_S = 2.0
PING = b": ping\n\n"
#: How long a client waits before it connects again, in milliseconds.
RETRY = b"retry: 1000\n\n"


def frame(event: str, data: str, identity: int | None = None) -> bytes:
    """One event; `data` has no line breaks (it is JSON)."""
    head = "" if identity is None else f"id: {identity}\n"
    return f"{head}event: {event}\ndata: {data}\n\n".encode()


@dataclass(frozen=True)
class StreamOwner:
    """Whose a stream is, and how many streams they may have."""

    principal: Principal
    #: That of its job.
    project: str
    policies: Policies = field(default_factory=Policies)


class OpenStreams:
    """Counts the streams of a process.  Used on its event loop only."""

    def __init__(self) -> None:
        self._by_principal: Counter[str] = Counter()
        self._by_project: Counter[str] = Counter()

    @contextlib.contextmanager
    def one(self, owner: StreamOwner) -> Iterator[None]:
        """One more of the owner while the block runs."""
        one, other = Counter({owner.principal.id: 1}), Counter({owner.project: 1})
        self._by_principal += one
        self._by_project += other
        try:
            yield
        finally:
            # Counters keep names at 0, these do not.
            self._by_principal -= one
            self._by_project -= other

    @property
    def count(self) -> int:
        """How many are open."""
        return self._by_principal.total()

    def of_project(self, project: str) -> int:
        """How many of the project are open."""
        return self._by_project[project]

    def check(self, owner: StreamOwner) -> None:
        """Raise ApiProblem 429 `too_many_streams` when the owner can have no further one."""
        said = self._too_many(owner)
        if said is not None:
            hint = "end one of them, or ask for pages"
            raise ApiProblem(429, "too_many_streams", said, hint=hint, headers={"Retry-After": "5"})

    def _too_many(self, owner: StreamOwner) -> str | None:
        count, mine = self._by_principal.total(), self._by_principal[owner.principal.id]
        of_project, most = self._by_project[owner.project], owner.policies.limits_of(owner.project).streams
        if owner.principal is not LOCAL and mine >= owner.policies.principals.streams:
            return f"{mine} streams of yours are open and the limit is {owner.policies.principals.streams}"
        if most is not None and of_project >= most:
            return f"{of_project} streams of the project {owner.project} are open and its limit is {most}"
        return f"{count} streams are open and the limit is {MOST_STREAMS}" if count >= MOST_STREAMS else None


class EventStream(Response):
    """Sends frames until they end, the client leaves, or `closing` is set; none of these is an error."""

    media_type = "text/event-stream"

    def __init__(
        self,
        frames: AsyncGenerator[bytes],
        closing: asyncio.Event,
        streams: OpenStreams,
        owner: StreamOwner,
        still_allowed: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        """`still_allowed` is asked again and again; once it says no, the stream ends.

        Raises ApiProblem when `streams` are too many already.
        """
        streams.check(owner)
        self._streams = streams
        self._owner = owner
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._frames = frames
        self._closing = closing
        self._still_allowed = still_allowed
        self.background: BackgroundTask | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        with self._streams.one(self._owner):
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
