"""Pages of lists as JSON, written where their rows are read, and not on the event loop."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import TypeVar

from starlette.responses import Response

from remora.views import View
from service.api.parameters import make_cursor

RowT = TypeVar("RowT")

#: Bytes after which a page ends, whatever its `limit`.
PAGE_BYTES = 2**20


def write_page(
    rows: Iterable[RowT], view: Callable[[RowT], View], position: Callable[[RowT], str | int], limit: int
) -> bytes:
    """The next rows, at most `limit` and those that begin within `PAGE_BYTES`, as a `Page` in JSON.

    Its cursor is the `position` of its last row, unless it has all rows and fewer than `limit`.  One item is written
    after the other, as pydantic holds Python's lock while it writes; rows are not asked for before they are needed.
    """
    items: list[bytes] = []
    size, cursor = 0, None
    for row in rows:
        if size >= PAGE_BYTES or len(items) == limit:
            break
        items.append(view(row).model_dump_json().encode())
        size += len(items[-1])
        cursor = make_cursor(position(row))
    else:
        cursor = cursor if len(items) == limit else None
    return b'{"items":[%s],"next_cursor":%s}' % (b",".join(items), json.dumps(cursor).encode())


def as_json(body: bytes | str) -> Response:
    """An answer that is JSON already."""
    return Response(body, media_type="application/json")
