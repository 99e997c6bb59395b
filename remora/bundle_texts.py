"""Reads small text files of a code bundle, for the checks of a job before it runs."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO

#: Bytes of a text; what is larger is none.
_MOST = 2**20


@contextmanager
def texts_of(bundle: IO[bytes]) -> Iterator[Callable[[str], str | None]]:
    """What gives the text of a file by its normalized name: None where there is none, "" for a large one."""
    with zipfile.ZipFile(bundle) as archive:

        def read(name: str) -> str | None:
            try:
                entry = archive.getinfo(name)
            except KeyError:
                return None
            return archive.read(entry).decode(errors="replace") if entry.file_size <= _MOST else ""

        yield read
