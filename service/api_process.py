"""The API process.

    python -m service.api_process [--home DIR] [--host ADDRESS] [--port N] [--log-format text|json]

It writes its address to `<home>/api.url` as soon as it listens.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import gc
import logging
import resource
import signal
import socket
import ssl
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from remora.process_log import write_log
from service import first_operator
from service.api.app import create_app
from service.api.connections import GuardedProtocol
from service.listening import EVERY_ADDRESS, Listening, ListeningProblem, listening
from service.private_home import make_private
from service.request_lines import without_query
from service.settings import Settings, read_settings
from service.steady_clock import CLOCK
from service.store.database import Database
from service.store.failures import StoreError
from service.store.migrate import migrate
from service.tracing.opening import TracingUnusable, check_tracing

log = logging.getLogger(__name__)

#: Seconds that requests under way may take when the process is asked to stop.
GRACE_S = 5
#: Seconds in which a TLS handshake is done.
HANDSHAKE_S = 5.0
#: Files and connections that the process may have, where its limit allows it.
MOST_DESCRIPTORS = 8192
#: Seconds after which a thread that computes lets another one go on.
SWITCH_S = 0.001


class Server(uvicorn.Server):
    """uvicorn, which here ends streams when it is asked to stop; by itself it would wait for clients to leave."""

    def __init__(self, config: uvicorn.Config, app: FastAPI) -> None:
        super().__init__(config)
        self._app = app

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen; a connection over TLS that does not finish its handshake soon is closed, as limits count it later."""
        if self.config.is_ssl:
            loop = asyncio.get_running_loop()
            create: Any = functools.partial(loop.create_server, ssl_handshake_timeout=HANDSHAKE_S)
            loop.create_server = create  # type: ignore[method-assign]
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Called on SIGTERM and SIGINT; a second SIGINT does not wait for requests under way.

        uvicorn would raise the signal once more at its end and so keep us from tidying up.
        """
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True
        if hasattr(self._app.state, "remora"):
            self._app.state.remora.feed.close()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(512)
    except OSError:
        listening.close()
        raise
    return listening


def _url(listener: socket.socket, scheme: str) -> str:
    host, port = listener.getsockname()[:2]
    # Who listens at all addresses is reached here, too.
    host = {EVERY_ADDRESS[4]: "127.0.0.1", EVERY_ADDRESS[6]: "::1"}.get(host, host)
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _tls_options(reached: Listening) -> dict[str, Any]:
    """What uvicorn needs for TLS.  Raises ListeningProblem where the files cannot be used."""
    if reached.certificate is None:
        return {}
    certificate, key = reached.certificate
    try:
        # uvicorn would end with a traceback.
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise ListeningProblem(
            f"the certificate {certificate} with the key {key} cannot be used: {error}"
        ) from None
    return {"ssl_certfile": certificate, "ssl_keyfile": key}


def _allow_connections() -> None:
    """Raise the soft limit of descriptors: as many connections as are let in need one each."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def serve(settings: Settings) -> int:
    """Answer requests until SIGTERM or SIGINT; the exit status of the process."""
    try:
        reached = listening(settings)
        options = _tls_options(reached)
        check_tracing(settings)
    except (ListeningProblem, TracingUnusable) as problem:
        log.error("%s", problem)  # noqa: TRY400 - the sentence says it all
        return 2
    try:
        make_private(settings.home)
        database = Database(settings.database)
        with contextlib.closing(database):
            migrate(database)
            if settings.authentication == "required":
                first_operator.ensure(database, settings.home, CLOCK())
        listener = _listen(reached.host, reached.port)
    except StoreError as error:
        log.error("%s", error)  # noqa: TRY400 - the sentence says it all
        return 1
    except OSError as error:
        log.error("cannot start at %s:%d with home %s: %s", reached.host, reached.port, settings.home, error)  # noqa: TRY400
        return 1
    _allow_connections()
    logging.getLogger("uvicorn.access").addFilter(without_query)
    app = create_app(settings)
    # uvicorn calls it with its own arguments, as it would a class.
    protocol: Any = functools.partial(GuardedProtocol, reached=reached)
    config = uvicorn.Config(
        app,
        http=protocol,
        # Of the headers of proxies, only those are believed that the operator names.
        proxy_headers=bool(reached.proxies),
        forwarded_allow_ips=[str(network) for network in reached.proxies],
        **options,
        ws="none",
        log_config=None,
        access_log=settings.access_log,
        timeout_graceful_shutdown=GRACE_S,
        server_header=False,
    )
    address = settings.home / "api.url"
    draft = address.with_suffix(".draft")
    url = settings.public_url.rstrip("/") or _url(listener, reached.scheme)
    draft.write_text(url + "\n")
    draft.replace(address)
    log.info("listening at %s", url)
    # A check in its thread gives way to requests sooner than after Python's 5 ms.
    sys.setswitchinterval(SWITCH_S)
    # What is there now stays: the garbage collector would stop all threads for 0.1 s each time it walked all of it.
    # What is garbage already goes before: it would stay, too.
    gc.collect()
    gc.freeze()
    try:
        Server(config, app).run(sockets=[listener])
    finally:
        listener.close()
        # Another process may have taken over and written its own address.
        with contextlib.suppress(OSError):
            if address.read_text().strip() == url:
                address.unlink()
    return 0


def _arguments(words: list[str]) -> dict[str, Any]:
    parser = argparse.ArgumentParser(
        prog="python -m service.api_process", description="The API process of Remora."
    )
    parser.add_argument("--home", type=Path, help="folder of the embedded service (REMORA_HOME)")
    parser.add_argument("--host", help="address to listen on (REMORA_HOST)")
    parser.add_argument("--port", type=int, help="port to listen on, 0 for a free one (REMORA_PORT)")
    parser.add_argument("--log-format", choices=("text", "json"), help="how it logs (REMORA_LOG_FORMAT)")
    return vars(parser.parse_args(words))


def main(words: list[str]) -> int:
    """Start with settings from the environment and the command line; the exit status of the process."""
    arguments = _arguments(words)
    write_log("api", arguments["log_format"])
    settings = read_settings(arguments)
    return 2 if settings is None else serve(settings)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
