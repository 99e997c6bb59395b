"""What an attempt prints and measures until it is fetched: bounded in bytes, however long that takes (pure)."""

from __future__ import annotations

import marshal
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

#: Bytes that a text, or the values of a step, take besides their characters.
OVERHEAD_BYTES = 64
#: Bytes of lines in one chunk.
_CHUNK_BYTES = 64 << 10
#: Bytes of lines above which the oldest are left out.
MOST_LINE_BYTES = 16 << 20
#: Bytes of metrics above which every second of them is left out.
MOST_METRIC_BYTES = 4 << 20
#: Points of an attempt's metrics, each of up to a KiB, after which half as many are kept of those that follow.
POINTS, _POINT_BYTES = 100_000, 1024

#: Time, rank, stream, and one or more lines with newlines between them.
Text = tuple[float, int, str, str]


@dataclass(frozen=True)
class _Chunk:
    data: bytes
    counted_bytes: int
    lines: int


class PendingLines:
    """Lines in the order in which they came, in chunks that are encoded once."""

    def __init__(self) -> None:
        self._chunks: deque[_Chunk] = deque()
        self._open: list[Text] = []
        self._open_bytes = self._open_lines = 0
        self._closed_bytes = 0
        self._left_out = 0

    @property
    def counted_bytes(self) -> int:
        """Bytes of all that waits: UTF-8, and what Python needs for it."""
        return self._closed_bytes + self._open_bytes

    def add(self, at: float, rank: int, stream: str, text: str, size_bytes: int) -> None:
        """Take one or more lines with their size in bytes; above the bound the oldest chunk is left out and counted."""
        self._open.append((at, rank, stream, text))
        self._open_bytes += size_bytes + OVERHEAD_BYTES
        self._open_lines += text.count("\n") + 1
        if self._open_bytes >= _CHUNK_BYTES:
            self._close_chunk()
            while self._closed_bytes > MOST_LINE_BYTES:
                self._left_out += self._pop_chunk().lines

    def take(self) -> list[Text]:
        """The oldest chunk, which is forgotten here; [] when nothing waits."""
        if self._left_out:
            # It comes before the first line that is left: that one is as old as whatever was left out last.
            text = f"{self._left_out} lines were left out here: they were not fetched in time"
            self._left_out = 0
            return [(self._oldest_at, 0, "remora", text)]
        if not self._chunks:
            self._close_chunk()
        found: list[Text] = marshal.loads(self._pop_chunk().data) if self._chunks else []  # noqa: S302 - our own
        return found

    @property
    def _oldest_at(self) -> float:
        if self._chunks:
            return float(marshal.loads(self._chunks[0].data)[0][0])  # noqa: S302 - our own
        return self._open[0][0]

    def _close_chunk(self) -> None:
        if self._open:
            self._chunks.append(_Chunk(marshal.dumps(self._open), self._open_bytes, self._open_lines))
            self._closed_bytes += self._open_bytes
            self._open, self._open_bytes, self._open_lines = [], 0, 0

    def _pop_chunk(self) -> _Chunk:
        chunk = self._chunks.popleft()
        self._closed_bytes -= chunk.counted_bytes
        return chunk


@dataclass(frozen=True)
class _Point:
    at: float
    body: dict[str, Any]
    counted_bytes: int


class PendingMetrics:
    """Values of steps: all of the first 100,000, then ever fewer, and the newest one at the end."""

    def __init__(self) -> None:
        self._points: deque[_Point] = deque()
        self._bytes = 0
        self._reports = 0
        #: One of this number of reports is kept, and how much was kept since that was doubled.
        self._every, self._kept = 1, 0.0
        #: The newest report when it was not kept.
        self._newest: _Point | None = None

    def add(self, at: float, body: dict[str, Any]) -> None:
        """Take `{"step", "world_size", "values"}`."""
        point = _Point(at, body, _bytes_of(body["values"]))
        is_due = self._reports % self._every == 0
        self._reports += 1
        self._newest = None if is_due else point
        if is_due:
            self._keep(point)

    def _keep(self, point: _Point) -> None:
        self._points.append(point)
        self._bytes += point.counted_bytes
        self._kept += max(1.0, point.counted_bytes / _POINT_BYTES)
        if self._kept >= POINTS:
            self._every, self._kept = 2 * self._every, 0.0
        if self._bytes > MOST_METRIC_BYTES and len(self._points) > 1:
            # The newest of each two, so that the newest of all stays.
            self._points = deque(islice(self._points, (len(self._points) + 1) % 2, None, 2))
            self._bytes = sum(one.counted_bytes for one in self._points)

    def finish(self) -> None:
        """No more come: the newest one shall be there."""
        if self._newest is not None:
            self._keep(self._newest)
            self._newest = None

    def take(self) -> Iterator[tuple[float, dict[str, Any]]]:
        """The oldest ones, each of which is forgotten here when the next is asked for."""
        while self._points:
            point = self._points.popleft()
            self._bytes -= point.counted_bytes
            yield point.at, point.body


def _bytes_of(values: dict[str, Any]) -> int:
    return 4 * OVERHEAD_BYTES + sum(2 * OVERHEAD_BYTES + len(name) for name in values)
