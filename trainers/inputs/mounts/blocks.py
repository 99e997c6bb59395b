"""Reads parts of files in blocks: a bounded cache, and more blocks ahead the longer a reader reads on."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from trainers.input_source import InputFile

#: Bytes of a block.
BLOCK_BYTES = 2**20
#: Blocks of one request to the storage, and how far a reader's blocks are fetched ahead, at most.
_MOST_TOGETHER, _MOST_AHEAD = 8, 32
#: Requests to the storage at the same time.
_AT_ONCE = 8

#: The bytes of a file from one position to another one.
Fetch = Callable[[InputFile, int, int], bytes]


@dataclass
class _Place:
    """Where a file is read: the block that would be next, and how far ahead blocks are fetched."""

    next_block: int = 0
    ahead: int = 0


class BlockReader:
    """Used by any number of threads."""

    def __init__(self, fetch: Fetch, cache_bytes: int) -> None:
        """`fetch` raises StorageError and FileNotFoundError; at most `cache_bytes` are kept, besides those in use."""
        self._fetch = fetch
        self._most_blocks = max(cache_bytes // BLOCK_BYTES, 1)
        self._lock = threading.Lock()
        #: The newest used last.  A block of a request under way is there, too.
        self._blocks: OrderedDict[tuple[str, int], Future[bytes]] = OrderedDict()
        self._places: dict[str, _Place] = {}
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="blocks")

    def read(self, file: InputFile, offset: int, size: int) -> bytes:
        """Bytes of a file from `offset` on, fewer than `size` at its end.

        Raises StorageError, and FileNotFoundError when the storage does not have it any more.
        """
        end = min(offset + size, file.size_bytes)
        if offset >= end:
            return b""
        first, last = offset // BLOCK_BYTES, (end - 1) // BLOCK_BYTES
        with self._lock:
            ahead = self._look_ahead(file, first, last)
            wanted = self._ask(file, first, min(last + ahead, (file.size_bytes - 1) // BLOCK_BYTES))
        parts = []
        for number in range(first, last + 1):
            block = self._result(file, number, wanted[number - first])
            begin = number * BLOCK_BYTES
            parts.append(block[max(offset - begin, 0) : end - begin])
        return b"".join(parts)

    def close(self) -> None:
        """Fetch nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _look_ahead(self, file: InputFile, first: int, last: int) -> int:
        """Blocks to fetch beyond the last one: none for who jumps, and twice as many with each that follows."""
        place = self._places.setdefault(file.name, _Place())
        if first in (place.next_block, place.next_block - 1):
            if last >= place.next_block:
                place.ahead = min(max(2 * place.ahead, 1), _MOST_AHEAD, max(self._most_blocks - 1, 0))
        else:
            place.ahead = 0
        place.next_block = last + 1
        return place.ahead

    def _ask(self, file: InputFile, first: int, last: int) -> list[Future[bytes]]:
        """The blocks from the first to the last; those that are missing are asked for together."""
        wanted, missing = [], list[int]()
        for number in range(first, last + 1):
            key = (file.name, number)
            if key in self._blocks:
                self._blocks.move_to_end(key)
            else:
                self._blocks[key] = Future()
                missing.append(number)
            wanted.append(self._blocks[key])
        for run in _runs(missing):
            futures = [self._blocks[file.name, number] for number in run]
            self._pool.submit(self._fill, file, run, futures)
        while len(self._blocks) > self._most_blocks and next(iter(self._blocks.values())).done():
            self._blocks.popitem(last=False)
        return wanted

    def _fill(self, file: InputFile, numbers: range, futures: list[Future[bytes]]) -> None:
        begin, end = numbers.start * BLOCK_BYTES, min(numbers.stop * BLOCK_BYTES, file.size_bytes)
        try:
            content = self._fetch(file, begin, end)
            _check_length(file, content, end - begin)
        except BaseException as error:
            for future in futures:
                future.set_exception(error)
            return
        for index, future in enumerate(futures):
            future.set_result(content[index * BLOCK_BYTES : (index + 1) * BLOCK_BYTES])

    def _result(self, file: InputFile, number: int, block: Future[bytes]) -> bytes:
        try:
            return block.result()
        except BaseException:
            # The next reader asks the storage again.
            with self._lock:
                if self._blocks.get((file.name, number)) is block:
                    del self._blocks[file.name, number]
            raise


class ShortRead(Exception):
    """A file in the storage is not the one that was listed."""


def _check_length(file: InputFile, content: bytes, expected: int) -> None:
    if len(content) != expected:
        raise ShortRead(f"the storage has {len(content)} of {expected} bytes of {file.name[:200]!r}")


def _runs(numbers: list[int]) -> list[range]:
    """Consecutive numbers, in ranges that are fetched with one request each."""
    runs: list[range] = []
    for number in numbers:
        if runs and runs[-1].stop == number and len(runs[-1]) < _MOST_TOGETHER:
            runs[-1] = range(runs[-1].start, number + 1)
        else:
            runs.append(range(number, number + 1))
    return runs
