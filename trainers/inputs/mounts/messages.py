"""Messages between a mount's process and the supervisors that use it: lines of JSON on a Unix socket.

The process asks for grants, and says lines for the jobs' logs; a supervisor answers.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Protocol

from trainers.storage_grants import StorageAnswer, StorageGrant, StorageRequest

#: Bytes of one line.
_MOST_BYTES = 4 * 2**20


#: What a supervisor that connects gets first.
WELCOME = {"type": "welcome"}


class Stream(Protocol):
    """A connection that is read by lines."""

    def write(self, data: bytes, /) -> int | None:
        """Send bytes."""

    def flush(self) -> None:
        """Send what waits."""

    def readline(self, limit: int, /) -> bytes:
        """Bytes up to the end of a line."""


class ConnectionEnded(Exception):
    """The other end is gone, or sends what is no message."""


def send(stream: Stream, message: dict[str, Any]) -> None:
    """Send one message.  Raises ConnectionEnded."""
    try:
        stream.write(json.dumps(message).encode() + b"\n")
        stream.flush()
    except (OSError, ValueError) as error:
        raise ConnectionEnded(str(error)) from error


def receive(stream: Stream) -> dict[str, Any]:
    """The next message.  Raises ConnectionEnded."""
    try:
        line = stream.readline(_MOST_BYTES)
        message = json.loads(line) if line.endswith(b"\n") else None
    except (OSError, ValueError, RecursionError) as error:
        raise ConnectionEnded(str(error)) from error
    if not isinstance(message, dict):
        raise ConnectionEnded("it has ended")
    return message


def request_message(request: StorageRequest) -> dict[str, Any]:
    """A request for a grant."""
    return {"type": "ask", "request": dataclasses.asdict(request)}


def request_of(message: dict[str, Any]) -> StorageRequest:
    """The request in a message.  Raises ConnectionEnded for none."""
    try:
        said = message["request"]
        return StorageRequest(**{**said, "names": tuple(said["names"])})
    except (KeyError, TypeError) as error:
        raise ConnectionEnded("it sends what is no request") from error


def answer_message(answer: StorageAnswer) -> dict[str, Any]:
    """The answer to a request for a grant."""
    grant = answer.grant
    said = None
    if grant is not None:
        said = {**{one.name: getattr(grant, one.name) for one in dataclasses.fields(grant)}}
        said |= {"tokens": dict(grant.tokens), "folders": sorted(grant.folders)}
    return {"type": "answer", "grant": said, "refusal": answer.refusal}


def answer_of(message: dict[str, Any]) -> StorageAnswer:
    """The answer in a message.  Raises ConnectionEnded for none."""
    try:
        said = message["grant"]
        grant = None if said is None else StorageGrant(**{**said, "folders": frozenset(said["folders"])})
        return StorageAnswer(grant=grant, refusal=message["refusal"])
    except (KeyError, TypeError) as error:
        raise ConnectionEnded("it sends what is no answer") from error
