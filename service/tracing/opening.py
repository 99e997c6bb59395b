"""Opens the collector that operators name, where what sends traces is installed."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from service.settings import Settings

if TYPE_CHECKING:
    from service.tracing.collector import Collector
    from service.tracing.request_spans import RequestSpans

#: Bytes of the file with headers.
_MOST_BYTES = 64 * 1024
_NEEDED = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http")


class TracingUnusable(Exception):
    """No traces can be sent; the message is one sentence for operators, without any header."""


def open_collector(settings: Settings, monotonic: Callable[[], float]) -> Collector | None:
    """The collector of the settings; None where they name none.  Raises TracingUnusable."""
    if not settings.otlp_endpoint:
        return None
    check_tracing(settings)
    # Here: without a collector, no process needs what this imports.
    from service.tracing.collector import Collector

    return Collector(settings.otlp_endpoint, _headers(settings.otlp_headers_file), monotonic)


def request_spans(settings: Settings) -> RequestSpans | None:
    """What makes spans of the requests of an API; None where they are sent nowhere.  Raises TracingUnusable."""
    collector = open_collector(settings, time.monotonic)
    if collector is None:
        return None
    from service.tracing.request_spans import RequestSpans

    return RequestSpans(collector)


def check_tracing(settings: Settings) -> None:
    """Raise TracingUnusable for settings with a collector to which no traces could be sent."""
    if not settings.otlp_endpoint:
        return
    if not all(map(_is_installed, _NEEDED)):
        raise TracingUnusable(
            "REMORA_OTLP_ENDPOINT is set, and what sends traces is not installed:"
            " install Remora with its extra `tracing`"
        )
    _headers(settings.otlp_headers_file)


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _headers(path: Path | None) -> dict[str, str]:
    """Raises TracingUnusable."""
    if path is None:
        return {}
    try:
        with path.expanduser().open("rb") as file:
            text = file.read(_MOST_BYTES + 1).decode("ascii")
    except (OSError, UnicodeDecodeError):
        raise TracingUnusable(f"the file {path} of REMORA_OTLP_HEADERS_FILE cannot be read") from None
    if len(text) > _MOST_BYTES:
        raise TracingUnusable(
            f"the file {path} of REMORA_OTLP_HEADERS_FILE has more than {_MOST_BYTES} bytes"
        )
    headers = {}
    for number, line in enumerate(text.splitlines(), start=1):
        name, colon, value = line.partition(":")
        if not line.strip() or line.startswith("#"):
            continue
        if not colon or not _is_token(name.strip()) or not value.strip().isprintable():
            # What the line says may be a secret.
            raise TracingUnusable(
                f"line {number} of {path} (REMORA_OTLP_HEADERS_FILE) is no header; write it as Name: value"
            )
        headers[name.strip().lower()] = value.strip()
    return headers


def _is_token(name: str) -> bool:
    """As names of headers are: https://www.rfc-editor.org/rfc/rfc9110#section-5.6.2."""
    return bool(name) and all(one.isalnum() or one in "!#$%&'*+-.^_`|~" for one in name)
