"""Turns all exceptions of Azure's client into one error, and reads values and rate limits of its answers."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from azure.core.exceptions import ClientAuthenticationError, HttpResponseError
from azure.core.pipeline import PipelineRequest, PipelineResponse
from azure.core.pipeline.policies import SansIOHTTPPolicy

from cluster.azure.error_codes import CloudFailure


class ArmError(Exception):
    """Azure refused, or did not answer."""

    def __init__(self, failure: CloudFailure) -> None:
        super().__init__(f"{failure.code}: {failure.message}")
        self.failure = failure


class Failures:
    """A context in which every exception is raised as `ArmError`.

    An answer that cannot be read, for which parsers raise many kinds of errors, counts as no answer: the request may
    have been carried out or not.
    """

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, ArmError):
            raise ArmError(failure_of(error)) from error


def failure_of(error: BaseException) -> CloudFailure:
    """What an exception of Azure's client says; its class is of no use, see `cluster.azure.error_codes`."""
    if isinstance(error, HttpResponseError) and error.response is not None:
        value = error.error
        return CloudFailure(
            code=str(value.code) if value is not None and value.code else type(error).__name__,
            message=str(value.message or "") if value is not None else str(error),
            # Of an answer that was no error and cannot be read, nothing is known.
            status=error.status_code if error.status_code is None or error.status_code >= 400 else None,
            retry_after_s=_seconds(header(getattr(error.response, "headers", {}), "Retry-After")),
        )
    if isinstance(error, ClientAuthenticationError):
        return CloudFailure(code="AuthenticationFailed", message=str(error), status=401)
    return CloudFailure(code=type(error).__name__, message=str(error))


def header(headers: Mapping[str, str], name: str) -> str | None:
    """The value of a header; the case of its name does not matter."""
    return next((value for key, value in headers.items() if key.lower() == name.lower()), None)


#: The longest pause that is kept: without any answer for longer than this, a request is better.
LONGEST_PAUSE_S = 3600.0


def _seconds(text: str | None) -> float | None:
    """A Retry-After in seconds; one that is a date, which Azure does not send here, or no time counts as none."""
    value = math.nan
    with contextlib.suppress(ValueError):
        value = float(text or "nan")
    return min(value, LONGEST_PAUSE_S) if math.isfinite(value) and value >= 0.0 else None


def reported_failure(statuses: Iterable[Any] | None) -> CloudFailure | None:
    """What the statuses of an instance view say that went wrong, None when they do not say."""
    for status in statuses or []:
        said = str(status.code or "")
        if said.startswith("ProvisioningState/failed/"):
            code = said.rpartition("/")[2]
            return CloudFailure(code=code, message=str(status.message or ""), status=200)
    return None


def name_of(value: object) -> str:
    """A name or a number as Azure returns it.  Raises ValueError when there is none."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r} is no name of anything")
    return value


def tags_of(tags: Mapping[Any, Any] | None) -> dict[str, str]:
    """Tags as Azure returns them, all values as texts."""
    return {str(name): str(value) for name, value in (tags or {}).items()}


def state_of(properties: Any) -> str:
    """Azure's word for the state of what has these properties; empty while it has none."""
    return str((properties.provisioning_state if properties is not None else None) or "")


def unique_id_of(properties: Any) -> str:
    """Azure's own id of the scale set that has these properties; empty where it has none."""
    return str((properties.unique_id if properties is not None else None) or "")


def vm_id_of(properties: Any) -> str:
    """Azure's own id of the machine that has these properties; empty where it has none."""
    return str((properties.vm_id if properties is not None else None) or "")


#: Below this number the allowance is low: at most 250 reads of a subscription accumulate, and 900 lists of machines.
FEW = 50
#: Seconds for which a word of Azure counts: meanwhile it has given more than a thousand new ones.
GOOD_FOR_S = 60.0

_READS = "x-ms-ratelimit-remaining-subscription-reads"
_RESOURCE = "x-ms-ratelimit-remaining-resource"
#: Lists of machines and of scale sets; other questions are counted by the machine that they are about.
_LISTS = "highcostget"


def left_of(headers: Mapping[str, str]) -> dict[str, int]:
    """How many are left of each kind that looks are made of, as the headers of one answer say (pure)."""
    found: dict[str, str] = {}
    for header, value in headers.items():
        if header.lower() == _READS:
            found[_READS] = value
        elif header.lower() == _RESOURCE:
            # Microsoft.Compute/HighCostGet3Min;159,Microsoft.Compute/HighCostGet30Min;799
            for one in value.split(","):
                name, _, number = one.strip().rpartition(";")
                if name.rpartition("/")[2].lower().startswith(_LISTS):
                    found[name] = number
    return {name: int(number) for name, number in found.items() if number.isascii() and number.isdigit()}


class Allowance(SansIOHTTPPolicy[Any, Any]):
    """Remembers the limits in the last answers; a policy of a client's pipeline, for one event loop."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock
        #: By kind, with the time of the answer.
        self._left: dict[str, tuple[int, float]] = {}

    def on_response(self, request: PipelineRequest[Any], response: PipelineResponse[Any, Any]) -> None:  # noqa: ARG002
        """Read the headers of an answer."""
        now = self._clock()
        self._left |= {name: (left, now) for name, left in left_of(response.http_response.headers).items()}

    def is_low(self) -> bool:
        """Azure reported lately that it allows only few more requests; any thread may call it."""
        now = self._clock()
        return any(left < FEW and 0.0 <= now - at < GOOD_FOR_S for left, at in dict(self._left).values())
