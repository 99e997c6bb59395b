"""How commands talk to the service."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from remora.cli.exits import ExitCode
from remora.cli.output import say

if TYPE_CHECKING:
    from remora.client.blocking import Client

#: A command soon says that no service answers; one that follows a job outlasts a restart of the service.
SHORT_S = 3.0
LONG_S = 120.0


def connect(server: str | None, *, patient: bool = False) -> Client:
    """A client for one command."""
    from remora.client.blocking import Client

    return Client(server, retry_s=LONG_S if patient else SHORT_S)


@contextlib.contextmanager
def detaching(job_id: str, again: str) -> Iterator[None]:
    """Ctrl-C inside only stops watching; it says how to come back (`again`, a command) and how to end the job."""
    try:
        yield
    except KeyboardInterrupt:
        say(
            f"\nDetached; the job {job_id} goes on. Come back: remora {again} {job_id}  End it: remora cancel {job_id}"
        )
        raise typer.Exit(ExitCode.DETACHED) from None
