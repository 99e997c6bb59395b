"""After a key vault gave no secret: how long to wait before the next try, and what the log says (pure)."""

from __future__ import annotations

from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
    ServiceRequestError,
    ServiceResponseError,
)

_FIRST_WAIT_S = 1.0
#: A role that is given takes minutes to reach the vault.  Asking more often would hit its limits when many boot.
_LONGEST_WAIT_S = 30.0
#: A vault may ask for a longer pause, which is kept up to this.
_LONGEST_PAUSE_S = 120.0


def wait_s(tries: int, asked_s: float = 0.0) -> float:
    """Seconds until the next try after `tries` that failed; `asked_s` is the pause that the vault asked for."""
    own = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2.0 ** min(tries - 1, 10))
    return max(own, min(asked_s, _LONGEST_PAUSE_S))


def asked_s(error: AzureError) -> float:
    """The pause that an answer asks for, seconds; 0.0 where it asks for none."""
    headers = getattr(getattr(error, "response", None), "headers", {})
    header = str(headers.get("Retry-After", ""))
    return float(header) if header.isascii() and header.isdigit() else 0.0


def complaint(error: AzureError, vault: str, name: str) -> str:
    """Why the secret did not come, as a sentence that says what to look at; nothing of any answer's body is in it."""
    where = f"the vault {vault}"
    if isinstance(error, ClientAuthenticationError) and error.status_code is None:
        return f"this machine's identity gets no token: {_first_line(error)}"
    if isinstance(error, ServiceRequestError | ServiceResponseError):
        return f"{where} does not answer: {_first_line(error)}"
    status = error.status_code if isinstance(error, HttpResponseError) else None
    if status == 404:
        return f"{where} has no secret {name}: put it there as docs/azure-first-run.md says"
    if status == 403:
        return (
            f"{where} refuses this machine's identity: give it the role Key Vault Secrets User, and let the vault's"
            " firewall admit the subnet"
        )
    if status == 401:
        return f"{where} does not accept the token of this machine's identity"
    if status == 429:
        return f"{where} is asked too often"
    if status is not None:
        return f"{where} answered {status}"
    return f"the secret cannot be had: {_first_line(error)}"


def _first_line(error: AzureError) -> str:
    return str(error.message or type(error).__name__).strip().split("\n", 1)[0][:300]
