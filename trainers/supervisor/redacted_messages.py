"""Takes the values of secrets out of a supervisor's messages and lines before they go to the driver."""

from __future__ import annotations

from typing import Any, Protocol

from trainers.supervisor.redaction import Redactor

#: Messages with names and digests of files, which have to stay as they are.
_OF_FILES = frozenset({"shard", "outputs", "profile"})


class Messages(Protocol):
    """Where a supervisor's messages and lines go: an `Outbox`, unless there is no driver."""

    generation: int

    def put(self, message: dict[str, Any]) -> None:
        """Send a message."""

    def put_lines(self, stream: str, text: str) -> None:
        """Send lines; may block."""

    def flush(self) -> None:
        """Send what waits now."""

    def close(self) -> None:
        """Send what is left, and nothing more."""


class RedactedMessages:
    """The same `Messages`, with `[secret NAME]` in place of each value."""

    def __init__(self, messages: Messages, redactor: Redactor) -> None:
        self._messages = messages
        self._redactor = redactor

    @property
    def generation(self) -> int:
        """Number of the worker group that the messages to come belong to."""
        return self._messages.generation

    @generation.setter
    def generation(self, generation: int) -> None:
        self._messages.generation = generation

    def put(self, message: dict[str, Any]) -> None:
        """Send a message."""
        kept = message["type"] in _OF_FILES
        self._messages.put(message if kept else self._redactor.redact_all(message))

    def put_lines(self, stream: str, text: str) -> None:
        """Send lines; may block."""
        self._messages.put_lines(stream, self._redactor.redact(text))

    def flush(self) -> None:
        """Send what waits now."""
        self._messages.flush()

    def close(self) -> None:
        """Send what is left, and nothing more."""
        self._messages.close()
