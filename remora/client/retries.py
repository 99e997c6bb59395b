"""When to send again and when to give up; where a broken stream goes on.  Pure: time and chance are arguments."""

from __future__ import annotations

import email.utils
from collections.abc import Mapping
from typing import Generic, TypeVar

from remora.client.requests import Request, Stream

T = TypeVar("T")

#: Answers that say "not now".
RETRIED_STATUSES = frozenset({429, 502, 503, 504})
_FIRST_S = 0.1
_LONGEST_S = 5.0


class Patience:
    """How long to go on trying: full jitter over doubling pauses, within a budget of seconds."""

    def __init__(self, budget_s: float) -> None:
        """Give up when the next try would begin more than `budget_s` after the first failure."""
        self.budget_s = budget_s
        self._first_failure_at: float | None = None
        self._failures = 0

    def reset(self) -> None:
        """Something worked: count from 0 again."""
        self._first_failure_at = None
        self._failures = 0

    def pause_s(self, now: float, chance: float, retry_after_s: float | None = None) -> float | None:
        """Seconds to wait before the next try; None when the budget is spent.

        `now` is any clock in seconds, `chance` a number from 0 to 1; `retry_after_s`, if given, is the pause.
        """
        if self._first_failure_at is None:
            self._first_failure_at = now
        pause = chance * min(_LONGEST_S, _FIRST_S * 2.0 ** min(self._failures, 16))
        if retry_after_s is not None:
            pause = retry_after_s
        self._failures += 1
        return pause if now + pause - self._first_failure_at <= self.budget_s else None


def may_retry_error(request: Request[T], *, was_sent: bool) -> bool:
    """Whether a request whose connection failed may be sent again."""
    return request.is_safe_to_retry or not was_sent


def may_retry_status(request: Request[T], status: int) -> bool:
    """Whether a request that got this status may be sent again."""
    return status in RETRIED_STATUSES and request.is_safe_to_retry


def retry_after_s(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds that `Retry-After` asks for, in either of its two forms; `now` is seconds since 1970."""
    value = headers.get("retry-after", "").strip()
    if value.isascii() and value.isdigit():
        return float(value[:9])
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - now)
    except (ValueError, OverflowError):
        return None


class Following(Generic[T]):
    """Position in a stream: which items were received, and how to ask for the rest after a break."""

    def __init__(self, stream: Stream[T]) -> None:
        self._stream = stream
        self._last = stream.after
        self._has_items = False
        #: True once the service said that nothing more will come.
        self.has_ended = False

    def params(self) -> dict[str, str]:
        """Query of the next connection."""
        first = {} if self._has_items else self._stream.first_params
        return {**self._stream.params, **first, **({"after": str(self._last)} if self._last else {})}

    def headers(self) -> dict[str, str]:
        """Headers of the next connection."""
        resume = {"Last-Event-ID": str(self._last)} if self._last else {}
        return {"Accept": "text/event-stream", "Cache-Control": "no-store", **resume}

    def take(self, event: str, data: str) -> T | None:
        """The item that one server-sent event carries; None when it carries none, or one taken before.

        Raises ValueError when it is not what the API promises.
        """
        if event == "end":
            self.has_ended = True
            return None
        if event != self._stream.event:
            return None
        item = self._stream.parse(data)
        seq = self._stream.seq(item)
        if seq <= self._last:
            return None
        self._last = seq
        self._has_items = True
        return item
