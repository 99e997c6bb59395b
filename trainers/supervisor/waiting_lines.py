"""The queue of one rank's lines that are not sent to the driver yet (pure)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import groupby

from remora.script import channel


class WaitingLines:
    """Texts of one or more lines each, in the order in which they were printed."""

    def __init__(self) -> None:
        self._texts: deque[tuple[str, str]] = deque()
        #: Bytes of all of them as UTF-8, with their newlines.
        self.size_bytes = 0

    def add(self, stream: str, text: str) -> None:
        """One or more lines, with newlines between them."""
        self._texts.append((stream, text))
        self.size_bytes += _size_of(text)

    def take(self, limit_bytes: int) -> list[channel.Message]:
        """Remove the oldest lines of about `limit_bytes`, at least one, and return them as messages."""
        taken: list[tuple[str, str]] = []
        while self._texts and limit_bytes > 0:
            stream, text = self._texts.popleft()
            # Characters are bytes, or fewer: the text ends with the line in which the limit is reached.
            cut = text.find("\n", limit_bytes)
            if cut >= 0:
                self._texts.appendleft((stream, text[cut + 1 :]))
                text = text[:cut]
            taken.append((stream, text))
            size = _size_of(text)
            limit_bytes -= size
            self.size_bytes -= size
        return [
            {"type": "log", "stream": stream, "text": "\n".join(text for _, text in texts)}
            for stream, texts in groupby(taken, lambda one: one[0])
        ]

    def put_back(self, messages: Iterable[channel.Message]) -> None:
        """Put lines that the driver did not take back to the front."""
        texts = [(message["stream"], message["text"]) for message in messages]
        self._texts.extendleft(reversed(texts))
        self.size_bytes += sum(_size_of(text) for _, text in texts)

    def clear(self) -> None:
        """Drop all lines."""
        self._texts.clear()
        self.size_bytes = 0


def _size_of(text: str) -> int:
    return len(text.encode(errors="replace")) + 1
