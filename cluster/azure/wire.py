"""What Azure's client raises, as one kind of error, whatever was asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError

from cluster.azure.errors import CloudFailure


class ArmError(Exception):
    """Azure refused, or did not answer."""

    def __init__(self, failure: CloudFailure) -> None:
        super().__init__(f"{failure.code}: {failure.message}")
        self.failure = failure


class Failures:
    """Between its begin and its end, what Azure's client raises is raised as `ArmError`."""

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (AzureError, TimeoutError)):
            raise ArmError(failure_of(error)) from error


def failure_of(error: BaseException) -> CloudFailure:
    """What an exception of Azure's client tells; its class is of no use, see `cluster.azure.errors`."""
    if isinstance(error, HttpResponseError) and error.response is not None:
        code = error.error.code if error.error is not None and error.error.code else type(error).__name__
        message = error.error.message if error.error is not None else str(error)
        return CloudFailure(
            code=code,
            message=message or "",
            status=error.status_code,
            retry_after_s=_seconds(header(getattr(error.response, "headers", {}), "Retry-After")),
        )
    if isinstance(error, ClientAuthenticationError):
        return CloudFailure(code="AuthenticationFailed", message=str(error), status=401)
    return CloudFailure(code=type(error).__name__, message=str(error))


def header(headers: Mapping[str, str], name: str) -> str | None:
    """The value of a header, in whatever case its name is written."""
    return next((value for key, value in headers.items() if key.lower() == name.lower()), None)


def _seconds(text: str | None) -> float | None:
    """A Retry-After in seconds; one that is a date, which Azure does not send here, counts as none."""
    try:
        return max(0.0, float(text)) if text is not None else None
    except ValueError:
        return None


def told_failure(statuses: Iterable[Any] | None) -> CloudFailure | None:
    """What the statuses of an instance view say that went wrong, None when they do not say."""
    for status in statuses or []:
        if (status.code or "").startswith("ProvisioningState/failed/"):
            code = status.code.rpartition("/")[2]
            return CloudFailure(code=code, message=status.message or "", status=200)
    return None
