"""What a script prints, cut into lines that are fit to be stored (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol


class StreamFilter(Protocol):
    """Changes a stream of bytes, which may come in any chunks, before it is cut."""

    def feed(self, received: bytes) -> bytes:
        """What can be passed on of these bytes and those before."""

    def finish(self) -> bytes:
        """What was held back."""


class LineCutter:
    """Splits a stream of bytes into lines of text.

    Lines end at a newline.  Text that a carriage return takes back (a progress bar) is dropped in favour of what
    replaced it.  A line longer than `limit_bytes` is cut there and says so.  Bytes that are not UTF-8 become U+FFFD,
    and so does NUL, which databases refuse.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._rest = bytearray()
        self._dropped = 0
        #: A carriage return came last: whatever follows it replaces the line so far.
        self._returned = False

    def feed(self, received: bytes) -> Iterator[str]:
        """Lines completed by these bytes, without their ends."""
        start = 0
        while (end := received.find(b"\n", start)) >= 0:
            self._keep(received[start:end])
            yield self._take()
            start = end + 1
        self._keep(received[start:])

    def finish(self) -> Iterator[str]:
        """The last line, when the stream did not end with a newline."""
        if self._rest or self._dropped:
            yield self._take()

    def _keep(self, chunk: bytes) -> None:
        text = chunk.rstrip(b"\r")
        if text:
            start = text.rfind(b"\r") + 1
            if self._returned or start:
                self._forget()
            free = self._limit - len(self._rest)
            self._rest += text[start : start + free]
            self._dropped += max(0, len(text) - start - free)
        self._returned = self._returned or len(text) < len(chunk)

    def _take(self) -> str:
        text = self._rest.decode(errors="replace").replace("\x00", "\ufffd")
        if self._dropped:
            text += f" [{self._dropped} more bytes of this line were cut]"
        self._forget()
        return text

    def _forget(self) -> None:
        self._rest.clear()
        self._dropped = 0
        self._returned = False
