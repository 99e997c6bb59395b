"""An API of this process for the page: one that answers when a test begins."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
import uvicorn

from service.api.app import create_app
from service.settings import Settings
from tests.browser.chromium import PATIENCE_MS


@contextmanager
def api_server(settings: Settings) -> Iterator[str]:
    """The address of an API with these settings, at a free port of loopback."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(create_app(settings), log_config=None))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    address = f"http://127.0.0.1:{listening.getsockname()[1]}"
    try:
        # The connection waits until the database is migrated.
        httpx2.get(f"{address}/healthz", timeout=PATIENCE_MS / 1000).raise_for_status()
        yield address
    finally:
        server.should_exit = True
        thread.join()
        listening.close()
