"""The lines that uvicorn logs for requests (`REMORA_ACCESS_LOG`)."""

from __future__ import annotations

import logging


def without_query(record: logging.LogRecord) -> bool:
    """Take the parameters out of a line, which may be secrets, and give it method, path and status as fields.

    A filter of the logger `uvicorn.access`, whose arguments are the client, the method, the path, the version of HTTP
    and the status.
    """
    if isinstance(record.args, tuple) and len(record.args) == 5:
        client, method, path, version, status = record.args
        path = str(path).partition("?")[0]
        record.args = (client, method, path, version, status)
        vars(record).update(method=method, path=path, status=status)
    return True
