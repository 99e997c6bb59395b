"""python -m benchmarks.bare_stream FILE: the least that a stream of events costs, the peer of `benchmarks/page.py`.

Writes its address to FILE.  `POST /add/SEQ` sends an event to all that follow `GET /events`; those who come later begin
with the newest one.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

_followers: set[asyncio.Queue[bytes]] = set()
_newest: list[bytes] = []


async def _frames() -> AsyncIterator[bytes]:
    queue: asyncio.Queue[bytes] = asyncio.Queue()
    for frame in _newest:
        queue.put_nowait(frame)
    _followers.add(queue)
    try:
        yield b": begun\n\n"
        while True:
            yield await queue.get()
    finally:
        _followers.discard(queue)


async def _events(_: Request) -> Response:
    return StreamingResponse(_frames(), media_type="text/event-stream")


async def _add(request: Request) -> Response:
    seq = request.path_params["seq"]
    rest = '"at":1000.0,"kind":"job.noted","message":"a","attempt":null,"data":{}'
    frame = f'id: {seq}\nevent: event\ndata: {{"seq":{seq},{rest}}}\n\n'.encode()
    _newest[:] = [frame]
    for queue in _followers:
        queue.put_nowait(frame)
    return PlainTextResponse("")


async def _health(_: Request) -> Response:
    return PlainTextResponse("")


def main(file: str) -> None:
    """Serve until the process is ended."""
    app = Starlette(
        routes=[
            Route("/events", _events),
            Route("/add/{seq:int}", _add, methods=["POST"]),
            Route("/healthz", _health),
        ]
    )
    listening = socket.create_server(("127.0.0.1", 0))
    Path(file).write_text(f"http://127.0.0.1:{listening.getsockname()[1]}\n")
    uvicorn.Server(uvicorn.Config(app, log_config=None)).run(sockets=[listening])


if __name__ == "__main__":
    main(sys.argv[1])
