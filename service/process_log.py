"""Logging of the service's own processes to standard error, as plain text or as JSON lines."""

from __future__ import annotations

import json
import logging
import sys
import time
from contextvars import ContextVar
from typing import Literal

Form = Literal["plain", "json"]

#: Id of the request that is being answered, so that its log lines can be found.
request_id: ContextVar[str | None] = ContextVar("request_id", default=None)


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        remark = {
            "at": round(record.created, 6),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (request := request_id.get()) is not None:
            remark["request_id"] = request
        if record.exc_info:
            remark["exception"] = self.formatException(record.exc_info)
        return json.dumps(remark, ensure_ascii=False)


class _Plain(logging.Formatter):
    def __init__(self) -> None:
        super().__init__(
            "%(asctime)s.%(msecs)03dZ %(levelname)-7s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S"
        )
        self.converter = time.gmtime


def write_log(form: Form = "plain", level: int = logging.INFO) -> None:
    """Send all log records of this process to standard error in the given form."""
    to_stderr = logging.StreamHandler(sys.stderr)
    to_stderr.setFormatter(_Json() if form == "json" else _Plain())
    logging.basicConfig(level=level, handlers=[to_stderr], force=True)
    # Alembic logs at every start that there is nothing to do.
    logging.getLogger("alembic").setLevel(logging.WARNING)
    # Azure's clients also log what they raise.
    logging.getLogger("azure").setLevel(logging.ERROR)
    # One line for every request would bury the rest.
    logging.getLogger("httpx2").setLevel(logging.WARNING)
