"""Logging of the service's processes to standard error, as text or as one JSON object per line.

`REMORA_LOG_FORMAT` chooses between the two.  The text of a message is the same in both; JSON has besides it what the
message is about (`about`), each in a field of its own.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Literal

Form = Literal["text", "json"]

#: The variable that says how processes log.
FORMAT_VARIABLE = "REMORA_LOG_FORMAT"
#: What a message may be about: ids, in fields of these names; those of traces have the names that OpenTelemetry gives
#: them (https://opentelemetry.io/docs/specs/otel/compatibility/logging_trace_context/).
ABOUT = ("job", "attempt", "node", "project", "trace_id", "span_id")
#: Further fields of lines about requests.
_OF_REQUESTS = ("method", "path", "status")
#: Characters of a message and of an exception: lines of 16 KiB are cut by what collects the output of containers.
MOST_MESSAGE, MOST_EXCEPTION = 4096, 8192
#: What nodes log as text.
NODE_LINES = "%(asctime)s %(levelname)s %(message)s"

#: Id of the request that is being answered, so that its log lines can be found, and what its path is about.
request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
request_about: ContextVar[Mapping[str, str] | None] = ContextVar("request_about", default=None)


def about(
    *,
    job: str | None = None,
    attempt: str | None = None,
    node: str | None = None,
    project: str | None = None,
    traceparent: str | None = None,
) -> dict[str, str]:
    """What a message is about, by ids: the `extra` of a logger's call.

    `traceparent` is the W3C trace context of its span, in the form that the service writes.
    """
    parts = [] if traceparent is None else traceparent.split("-")
    _, trace_id, span_id, _ = parts if len(parts) == 4 else (None, None, None, None)
    given = {
        "job": job,
        "attempt": attempt,
        "node": node,
        "project": project,
        "trace_id": trace_id,
        "span_id": span_id,
    }
    return {name: value for name, value in given.items() if value is not None}


def form_of(environment: Mapping[str, str]) -> Form:
    """How a process with this environment logs (pure); what is no form is text."""
    return "json" if environment.get(FORMAT_VARIABLE) == "json" else "text"


class JsonLines(logging.Formatter):
    """One JSON object per line, in ASCII: control characters and what reorders text are escaped."""

    def __init__(
        self,
        role: str,
        of_process: Mapping[str, str] | None = None,
        redact: Callable[[str], str] | None = None,
    ) -> None:
        """`role` is what the process is; `of_process` is what all of its lines are about.

        `redact` takes secrets out of a text.
        """
        super().__init__()
        self._role = role
        self._of_process = dict(of_process or {})
        self._redact = redact or str

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        line: dict[str, object] = {
            "time": _time_of(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": self._role,
            "message": self._redact(record.getMessage())[:MOST_MESSAGE],
            **self._of_process,
            **(request_about.get() or {}),
        }
        for name in (*ABOUT, *_OF_REQUESTS):
            if isinstance(value := vars(record).get(name), str | int):
                line[name] = value
        if (request := request_id.get()) is not None:
            line["request"] = request
        if record.exc_info:
            # Its end says what was raised.
            line["exception"] = self._redact(self.formatException(record.exc_info))[-MOST_EXCEPTION:]
        # json leaves DEL as it is.
        return json.dumps(line).replace("\x7f", "\\u007f")


class TextLines(logging.Formatter):
    """One line of text per message; an exception follows in lines of its own."""

    def __init__(self) -> None:
        super().__init__(
            "%(asctime)s.%(msecs)03dZ %(levelname)-7s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S"
        )
        self.converter = time.gmtime


def write_log(
    role: str,
    form: Form | None = None,
    *,
    level: int = logging.INFO,
    text: logging.Formatter | None = None,
    of_process: Mapping[str, str] | None = None,
) -> None:
    """Send all log records of this process, which is a `role`, to standard error.

    In the given form, or in that of `REMORA_LOG_FORMAT`; text has the lines of `TextLines` unless others are given.
    For `of_process` see `JsonLines`.  Where others are given, handlers that are there already stay.
    """
    is_json = (form or form_of(os.environ)) == "json"
    formatter = JsonLines(role, of_process) if is_json else text or TextLines()
    _send(formatter, level, replaces=text is None)
    # Alembic logs at every start that there is nothing to do.
    logging.getLogger("alembic").setLevel(logging.WARNING)
    # Azure's clients also log what they raise.
    logging.getLogger("azure").setLevel(logging.ERROR)
    # One line for every request would bury the rest.
    logging.getLogger("httpx2").setLevel(logging.WARNING)


def write_worker_log(
    role: str, of_process: Mapping[str, str], redact: Callable[[str], str] | None = None
) -> None:
    """Send warnings of a process that Ray has started to standard error, if they are to be JSON.

    As text, Python sends them there by itself.
    """
    if form_of(os.environ) == "json":
        _send(JsonLines(role, of_process, redact), logging.WARNING, replaces=True)


def _send(formatter: logging.Formatter, level: int, *, replaces: bool) -> None:
    to_stderr = logging.StreamHandler(sys.stderr)
    to_stderr.setFormatter(formatter)
    logging.basicConfig(level=level, handlers=[to_stderr], force=replaces)


def _time_of(record: logging.LogRecord) -> str:
    """RFC 3339, UTC, with microseconds."""
    at = datetime.fromtimestamp(record.created, UTC)
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")
