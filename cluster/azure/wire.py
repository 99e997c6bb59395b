"""What Azure's client raises, as one kind of error, whatever was asked."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping
from typing import Any

from azure.core.exceptions import ClientAuthenticationError, HttpResponseError

from cluster.azure.errors import CloudFailure


class ArmError(Exception):
    """Azure refused, or did not answer."""

    def __init__(self, failure: CloudFailure) -> None:
        super().__init__(f"{failure.code}: {failure.message}")
        self.failure = failure


class Failures:
    """Between its begin and its end, whatever goes wrong is raised as `ArmError`.

    An answer that cannot be read, which parsers raise all kinds of things for, is no answer: what was asked for may be
    done or not.
    """

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, ArmError):
            raise ArmError(failure_of(error)) from error


def failure_of(error: BaseException) -> CloudFailure:
    """What an exception of Azure's client tells; its class is of no use, see `cluster.azure.errors`."""
    if isinstance(error, HttpResponseError) and error.response is not None:
        told = error.error
        return CloudFailure(
            code=str(told.code) if told is not None and told.code else type(error).__name__,
            message=str(told.message or "") if told is not None else str(error),
            # Of an answer that was no error and cannot be read, nothing is known.
            status=error.status_code if error.status_code is None or error.status_code >= 400 else None,
            retry_after_s=_seconds(header(getattr(error.response, "headers", {}), "Retry-After")),
        )
    if isinstance(error, ClientAuthenticationError):
        return CloudFailure(code="AuthenticationFailed", message=str(error), status=401)
    return CloudFailure(code=type(error).__name__, message=str(error))


def header(headers: Mapping[str, str], name: str) -> str | None:
    """The value of a header, in whatever case its name is written."""
    return next((value for key, value in headers.items() if key.lower() == name.lower()), None)


#: The longest pause that is kept: whoever sees nothing for longer than this had better ask.
LONGEST_PAUSE_S = 3600.0


def _seconds(text: str | None) -> float | None:
    """A Retry-After in seconds; one that is a date, which Azure does not send here, or no time counts as none."""
    told = math.nan
    with contextlib.suppress(ValueError):
        told = float(text or "nan")
    return min(told, LONGEST_PAUSE_S) if math.isfinite(told) and told >= 0.0 else None


def told_failure(statuses: Iterable[Any] | None) -> CloudFailure | None:
    """What the statuses of an instance view say that went wrong, None when they do not say."""
    for status in statuses or []:
        said = str(status.code or "")
        if said.startswith("ProvisioningState/failed/"):
            code = said.rpartition("/")[2]
            return CloudFailure(code=code, message=str(status.message or ""), status=200)
    return None


def name_of(told: object) -> str:
    """A name or a number as Azure tells it.  Raises ValueError when it tells none."""
    if not isinstance(told, str) or not told:
        raise ValueError(f"{told!r} is no name of anything")
    return told


def tags_of(told: Mapping[Any, Any] | None) -> dict[str, str]:
    """Tags as Azure tells them; values are texts, whatever was written there."""
    return {str(name): str(value) for name, value in (told or {}).items()}


def state_of(properties: Any) -> str:
    """Azure's word for the state of what has these properties; empty while it has none."""
    return str((properties.provisioning_state if properties is not None else None) or "")


def unique_id_of(properties: Any) -> str:
    """Azure's own id of the scale set that has these properties; empty where it tells none."""
    return str((properties.unique_id if properties is not None else None) or "")


def vm_id_of(properties: Any) -> str:
    """Azure's own id of the machine that has these properties; empty where it tells none."""
    return str((properties.vm_id if properties is not None else None) or "")
