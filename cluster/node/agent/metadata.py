"""The machine's own metadata service: what it answers, and how far its clock is from ours."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

import httpx2

from cluster.node.agent.scheduled_events import API_VERSION, Document, MalformedDocument, parse

#: Where every Azure machine finds it.
URL = "http://169.254.169.254/metadata"
#: The first call switches Scheduled Events on for the machine, and may take two minutes to answer.
FIRST_TIMEOUT_S = 135.0
TIMEOUT_S = 5.0
#: Longest pause that a Retry-After may ask for: a notice can be as short as 30 seconds.
LONGEST_PAUSE_S = 5.0
_INSTANCE_VERSION = "2021-02-01"


class MetadataAway(Exception):
    """The metadata service did not answer as it should; the message says how.  Ask again after `pause_s` seconds."""

    def __init__(self, message: str, pause_s: float = 0.0) -> None:
        super().__init__(message)
        self.pause_s = pause_s


@dataclass(frozen=True, kw_only=True)
class Heard:
    """One answer."""

    document: Document
    #: How much the platform's clock is ahead of this machine's, seconds; 0 when it is not known.
    skew_s: float


class MetadataService:
    """Scheduled Events over HTTP; any thread may ask."""

    def __init__(
        self,
        url: str = URL,
        *,
        first_timeout_s: float = FIRST_TIMEOUT_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        # No proxy of the environment: the service is on the machine's own link, and refuses forwarded requests.
        self._http = httpx2.Client(headers={"Metadata": "true"}, trust_env=False)
        self._url = url.rstrip("/")
        self._clock = clock
        self._timeout_s = first_timeout_s

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def name(self) -> str:
        """The machine's name, as events call it.  Raises MetadataAway."""
        answer = self._send(
            "GET", "/instance/compute/name", {"api-version": _INSTANCE_VERSION, "format": "text"}
        )
        return answer.text.strip()

    def tags(self) -> dict[str, str]:
        """The machine's tags as they are now.  Raises MetadataAway."""
        answer = self._send(
            "GET", "/instance/compute/tagsList", {"api-version": _INSTANCE_VERSION, "format": "json"}
        )
        try:
            return {str(tag["name"]): str(tag["value"]) for tag in answer.json()}
        except (ValueError, TypeError, KeyError) as error:
            raise MetadataAway("the metadata service sent tags that cannot be read") from error

    def listen(self) -> Heard:
        """The events of now.  Raises MetadataAway."""
        answer = self._send("GET", "/scheduledevents", {"api-version": API_VERSION})
        try:
            document = parse(answer.json())
        except MalformedDocument as error:
            raise MetadataAway(f"the metadata service sent a malformed document: {error}") from error
        except ValueError as error:
            raise MetadataAway("the metadata service sent a document that is no JSON") from error
        self._timeout_s = TIMEOUT_S
        return Heard(document=document, skew_s=self._skew_s(answer.headers.get("date")))

    def acknowledge(self, event_id: str) -> None:
        """Acknowledge to the cloud that it need not wait any longer.  Raises MetadataAway."""
        body = {"StartRequests": [{"EventId": event_id}]}
        self._send("POST", "/scheduledevents", {"api-version": API_VERSION}, body)

    def _send(
        self, method: str, path: str, params: dict[str, str], body: object | None = None
    ) -> httpx2.Response:
        try:
            answer = self._http.request(
                method, self._url + path, params=params, json=body, timeout=self._timeout_s
            )
        except httpx2.HTTPError as error:
            raise MetadataAway(
                f"the metadata service does not answer: {error or type(error).__name__}"
            ) from error
        if answer.status_code == 429:
            raise MetadataAway("the metadata service is asked too often", _pause_s(answer.headers))
        if not answer.is_success:
            raise MetadataAway(f"the metadata service answered {answer.status_code} to {method} {path}")
        return answer

    def _skew_s(self, date: str | None) -> float:
        try:
            platform = parsedate_to_datetime(date or "").timestamp()
        except (ValueError, TypeError, IndexError, OverflowError):
            return 0.0
        # The header has whole seconds: less than two of difference is none.
        skew_s = platform + 0.5 - self._clock()
        return skew_s if abs(skew_s) >= 2.0 else 0.0


def _pause_s(headers: httpx2.Headers) -> float:
    header = headers.get("retry-after", "")
    return min(LONGEST_PAUSE_S, float(header)) if header.isascii() and header.isdigit() else 1.0
