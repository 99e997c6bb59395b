"""What a mount fetches: what is read, more ahead of who reads on, and nothing twice that is still there."""

from __future__ import annotations

import random
import threading

import pytest

from trainers.input_source import InputFile
from trainers.inputs.mounts.blocks import BLOCK_BYTES, BlockReader, ShortRead
from trainers.inputs.mounts.tree import found, tree_of
from trainers.storage import StorageError

BLOCKS = 24
FILE = InputFile("big", "stored/big", BLOCKS * BLOCK_BYTES - 17, "tag")
CONTENT = random.Random(1).randbytes(FILE.size_bytes)


class Stored:
    """A storage that notes what is fetched of the file."""

    def __init__(self, cache_blocks: int = 64) -> None:
        self.fetched: list[tuple[int, int]] = []
        self.failing = False
        self.is_short = False
        self._lock = threading.Lock()
        self.reader = BlockReader(self._fetch, cache_blocks * BLOCK_BYTES)

    def _fetch(self, file: InputFile, begin: int, end: int) -> bytes:
        assert file is FILE
        with self._lock:
            self.fetched.append((begin, end))
        if self.failing:
            raise StorageError("it does not answer")
        return CONTENT[begin : end - 1 if self.is_short else end]

    def read(self, offset: int, size: int) -> bytes:
        return self.reader.read(FILE, offset, size)

    @property
    def bytes_fetched(self) -> int:
        with self._lock:
            return sum(end - begin for begin, end in self.fetched)


@pytest.fixture
def stored() -> Stored:
    return Stored()


@pytest.mark.parametrize("cache_blocks", [1, 3, 64])
def test_any_part_is_what_the_file_has_there(cache_blocks: int) -> None:
    stored, draw = Stored(cache_blocks), random.Random(2)
    for _ in range(200):
        offset, size = draw.randrange(FILE.size_bytes + 10), draw.randrange(1, 3 * BLOCK_BYTES)
        assert stored.read(offset, size) == CONTENT[offset : offset + size]
    assert stored.read(FILE.size_bytes, 10) == b""


def test_who_jumps_gets_the_blocks_that_are_read_and_no_other(stored: Stored) -> None:
    for number in (9, 3, 17):
        stored.read(number * BLOCK_BYTES + 5, 10)
    assert stored.fetched == [(number * BLOCK_BYTES, (number + 1) * BLOCK_BYTES) for number in (9, 3, 17)]


def test_who_reads_on_has_more_and_more_fetched_ahead_and_nothing_twice(stored: Stored) -> None:
    ahead = []
    for offset in range(0, FILE.size_bytes, BLOCK_BYTES // 4):
        assert stored.read(offset, BLOCK_BYTES // 4) == CONTENT[offset : offset + BLOCK_BYTES // 4]
        ahead.append(max((end for _, end in stored.fetched), default=0) - offset)
    assert ahead[0] < ahead[8] < ahead[16]
    stored.reader.close()
    assert stored.bytes_fetched == FILE.size_bytes
    assert len(stored.fetched) < BLOCKS, "blocks are fetched together"


def test_the_blocks_that_were_used_longest_ago_go_first() -> None:
    stored = Stored(cache_blocks=2)
    for number in (2, 8, 2, 14):
        stored.read(number * BLOCK_BYTES, 1)
    before = len(stored.fetched)
    stored.read(2 * BLOCK_BYTES, 1)
    assert len(stored.fetched) == before, "it was used after the other one"
    stored.read(8 * BLOCK_BYTES, 1)
    assert len(stored.fetched) == before + 1


def test_a_read_that_failed_is_tried_again_by_the_next(stored: Stored) -> None:
    stored.failing = True
    with pytest.raises(StorageError, match="does not answer"):
        stored.read(5 * BLOCK_BYTES, 1)
    stored.failing, stored.is_short = False, True
    with pytest.raises(ShortRead, match="of 1048576 bytes of 'big'"):
        stored.read(5 * BLOCK_BYTES, 1)
    stored.is_short = False
    assert stored.read(5 * BLOCK_BYTES, 1) == CONTENT[5 * BLOCK_BYTES : 5 * BLOCK_BYTES + 1]


def test_many_who_read_one_block_fetch_it_once(stored: Stored) -> None:
    together, right = threading.Barrier(8), list[bool]()

    def read() -> None:
        together.wait()
        right.append(stored.read(7 * BLOCK_BYTES, 100) == CONTENT[7 * BLOCK_BYTES :][:100])

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == [True] * 8
    assert [begin for begin, _ in stored.fetched].count(7 * BLOCK_BYTES) == 1


def test_names_make_a_tree_and_those_that_no_disk_has_are_left_out() -> None:
    names = ("a/b/c", "a/d", "e", "a/../x", "/f", "", "g", "g/h", "a")
    root = tree_of(InputFile(name, name, 1, "") for name in names)
    assert root.names == ["a", "g", "e"]
    deep, file = found(root, "/a/b/c"), found(root, "/e")
    assert isinstance(deep, InputFile)
    assert isinstance(file, InputFile)
    assert (deep.stored, file.stored) == ("a/b/c", "e")
    assert found(root, "/") is root
    for absent in ("/x", "/e/x", "/a/b/c/d", "/f"):
        assert found(root, absent) is None
