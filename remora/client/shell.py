"""What the blocking and the asynchronous client share: the service's address, the retries, and the messages of errors.

No configuration is needed: the address is found in an option, the environment, or the home of a running `remora up`.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx2
import platformdirs

import remora
from remora.client import requests
from remora.client.credentials import BearerToken, TokenSource, checked, find_token
from remora.client.proxies import options_for
from remora.client.requests import Answer, Request
from remora.client.retries import Following, Patience, may_retry_error, may_retry_status, retry_after_s
from remora.errors import ConfigurationError, ConnectionFailed, WaitTimeout
from remora.loopback import is_loopback_url

DEFAULT_SERVER = "http://127.0.0.1:7265"
#: Name of the file in which a running `remora up` writes its address.
ADDRESS_FILE = "api.url"


@dataclass(frozen=True)
class Server:
    """The address of a service and where it was found."""

    url: str
    #: For people, e.g. `REMORA_SERVER`.
    source: str

    @property
    def is_local(self) -> bool:
        """True when it is on this machine, so that no proxy may come between."""
        return is_loopback_url(self.url)


def home_folder(environ: Mapping[str, str], option: Path | None = None) -> Path:
    """Folder of the embedded service: the option, `REMORA_HOME`, or the user's data folder."""
    if option is not None:
        return option
    return Path(environ.get("REMORA_HOME") or platformdirs.user_data_dir("remora"))


def find_server(environ: Mapping[str, str], option: str | None = None) -> Server:
    """The service to talk to: the option, `REMORA_SERVER`, a running `remora up`, or the default address.

    Raises ConfigurationError when what is written there is no address.
    """
    if option:
        return Server(_checked(option, "the server option"), "the server option")
    if environ.get("REMORA_SERVER"):
        return Server(_checked(environ["REMORA_SERVER"], "REMORA_SERVER"), "REMORA_SERVER")
    file = home_folder(environ) / ADDRESS_FILE
    try:
        written = file.read_text(encoding="utf-8").strip()
    except (FileNotFoundError, NotADirectoryError):
        written = ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot read {file}: {error}") from error
    if written:
        return Server(_checked(written, str(file)), str(file))
    return Server(DEFAULT_SERVER, "the default")


def _checked(url: str, source: str) -> str:
    try:
        parts = urlsplit(url.strip())
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        valid = (
            valid
            and not (parts.query or parts.fragment)
            and url.strip().isprintable()
            and " " not in url.strip()
        )
    except ValueError:
        valid = False
    if not valid:
        raise ConfigurationError(
            f"{url[:200]!r} ({source}) is no address of a service; write it like {DEFAULT_SERVER}"
        )
    return url.strip().rstrip("/")


T = TypeVar("T")

#: Bytes read at once.
CHUNK = 1 << 20
_CONNECT_S = 5.0
#: The service says something at least every 15 seconds.
_QUIET_S = 45.0
#: While a deadline runs, a quiet stream is left this often to look at the clock.
_GLANCE_S = 5.0
#: Pause between two looks when a job cannot be followed.
POLL_S = 1.0
_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
_CHANCE = random.SystemRandom()


class Shell:
    """What both clients share: the address, how long they retry, and the messages of errors."""

    def __init__(
        self,
        server: str | None,
        token: TokenSource | None,
        timeout_s: float,
        retry_s: float,
        resume_s: float,
    ) -> None:
        self.server: Server = find_server(os.environ, server)
        self._auth = self._proof(token)
        self._timeout_s = timeout_s
        self._retry_s = retry_s
        self._resume_s = resume_s

    def _proof(self, given: TokenSource | None) -> BearerToken | None:
        """What proves who the client is, if anything does.  Raises ConfigurationError."""
        url = self.server.url
        source = find_token(os.environ, url, home_folder(os.environ)) if given is None else given
        if not source:
            return None
        if isinstance(source, str):
            source = checked(source, "the token")
        if not self.server.is_local and not url.startswith("https://"):
            raise ConfigurationError(
                f"a token is not sent to {url}, which is another machine without TLS; use its https:// address"
            )
        return BearerToken(source)

    def _http_options(self) -> dict[str, Any]:
        return {
            "base_url": self.server.url,
            "timeout": httpx2.Timeout(self._timeout_s, connect=min(_CONNECT_S, self._timeout_s)),
            "headers": {"User-Agent": f"remora/{remora.__version__}"},
            **options_for(self.server.url),
            "auth": self._auth,
        }

    def _after_error(self, request: Request[T], error: httpx2.TransportError, patience: Patience) -> float:
        """Seconds until the next try; raises ConnectionFailed when there is none."""
        pause = None
        if may_retry_error(request, was_sent=not isinstance(error, _NOT_SENT)):
            pause = patience.pause_s(time.monotonic(), _CHANCE.random())
        if pause is None:
            raise self._failed(error) from error
        return pause

    def _after_answer(self, request: Request[T], answer: Answer, patience: Patience) -> float | None:
        """Seconds until the next try, or None when this answer counts."""
        if not may_retry_status(request, answer.status):
            return None
        asked = retry_after_s(answer.headers, time.time())
        return patience.pause_s(time.monotonic(), _CHANCE.random(), asked)

    def _after_break(self, error: Exception | None, patience: Patience) -> float:
        """Seconds until a broken stream is opened again; raises ConnectionFailed when it is not."""
        pause = patience.pause_s(time.monotonic(), _CHANCE.random())
        if pause is None:
            raise self._failed(error) from error
        return pause

    def _after_refusal(self, answer: Answer, patience: Patience) -> float:
        """Seconds until a stream that was answered with an error is tried again; raises ApiError when not."""
        pause = None
        if may_retry_status(_ANY_GET, answer.status):
            asked = retry_after_s(answer.headers, time.time())
            pause = patience.pause_s(time.monotonic(), _CHANCE.random(), asked)
        if pause is None:
            raise requests.error_of(answer)
        return pause

    def _failed(self, error: Exception | None) -> ConnectionFailed:
        reason = str(error) or type(error).__name__ if error is not None else "its streams end at once"
        start = "; start it with: remora up" if self.server.is_local else ""
        return ConnectionFailed(
            f"no service answers at {self.server.url} ({self.server.source}): {' '.join(reason.split())}{start}"
        )

    def _stream_timeout(self, deadline: float | None) -> httpx2.Timeout:
        quiet = _QUIET_S if deadline is None else max(0.01, min(_GLANCE_S, deadline - time.monotonic()))
        return httpx2.Timeout(self._timeout_s, connect=_CONNECT_S, read=quiet)

    def _patience(self, deadline: float | None, budget_s: float) -> Patience:
        remaining = budget_s if deadline is None else max(0.0, deadline - time.monotonic())
        return Patience(min(budget_s, remaining))


_ANY_GET: Request[None] = Request(method="GET", path="/", parse=lambda _answer: None)


def check_deadline(deadline: float | None, job_id: str) -> None:
    """Raise WaitTimeout once the deadline has passed."""
    if deadline is not None and time.monotonic() >= deadline:
        raise WaitTimeout(f"the job {job_id} has not ended in the time given; it goes on")


def deadline_after(timeout_s: float | None) -> float | None:
    """The time of `time.monotonic()` in `timeout_s` seconds; None stands for never."""
    return None if timeout_s is None else time.monotonic() + timeout_s


def within(deadline: float | None, pause_s: float) -> float:
    """The pause, cut at the deadline."""
    return pause_s if deadline is None else max(0.0, min(pause_s, deadline - time.monotonic()))


def answer_of(response: httpx2.Response) -> Answer:
    """A response that has been read, as `requests` knows it."""
    return Answer(status=response.status_code, headers=response.headers, content=response.content)


def item_of(following: Following[T], sent: httpx2.ServerSentEvent) -> T | None:
    """The item that a server-sent event carries.  Raises ApiError when it is none of Remora's."""
    try:
        return following.take(sent.event, sent.data)
    except ValueError as error:
        raise requests.unexpected(200) from error
