"""The key vault, asked with the machine's own identity until it gives the secret.

After a vault gave none: how long to wait before the next try, and what the log says.
"""

from __future__ import annotations

import logging
import threading

from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
    ServiceRequestError,
    ServiceResponseError,
)
from azure.core.pipeline.transport import RequestsTransport
from azure.core.rest import HttpRequest
from azure.identity import DefaultAzureCredential, ManagedIdentityCredential
from azure.keyvault.secrets import SecretClient

log = logging.getLogger(__name__)

#: Seconds for one connection, and for one answer.
_CONNECT_S, _ANSWER_S = 5.0, 10.0
_LOOPBACK = "http://127."


class VaultUnusable(Exception):
    """This vault can never be asked; the message is one sentence."""


class Vault:
    """One vault; to be closed."""

    def __init__(self, url: str, client_id: str | None, *, is_developer: bool = False) -> None:
        """`client_id` names the machine's identity where it has several.

        `is_developer`: it is asked with the login on this machine, such as that of `az login`, in place of it.

        Raises VaultUnusable for an address to which no secret may travel.
        """
        patience = {"connection_timeout": _CONNECT_S, "read_timeout": _ANSWER_S}
        # No retries inside a call, which nothing could end: `fetch` asks again.
        self._credential: DefaultAzureCredential | ManagedIdentityCredential = (
            DefaultAzureCredential(retry_total=0)
            if is_developer
            else ManagedIdentityCredential(client_id=client_id or None, retry_total=0)
        )
        self._url = url
        if url.startswith(_LOOPBACK):
            # The emulator's.  The client speaks HTTPS alone, so it gets an HTTPS address that its transport maps.
            self._client = SecretClient(
                url.replace("http://", "https://", 1),
                self._credential,
                transport=_WithoutTls(**patience),
                verify_challenge_resource=False,
                retry_total=0,
            )
        elif url.startswith("https://"):
            self._client = SecretClient(url, self._credential, retry_total=0, **patience)
        else:
            raise VaultUnusable(f"the vault {url} is no https:// address")

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
        self._credential.close()

    def ask(self, name: str, version: str | None = None) -> str:
        """The secret as it is now, the newest version when none is named; asked for once.

        Raises AzureError, and ValueError when what answers is no vault.
        """
        return self._client.get_secret(name, version).value or ""

    def fetch(self, name: str, stopping: threading.Event) -> str:
        """The secret of this name, however long that takes; empty when stopped before.

        Raises VaultUnusable when the address is not a vault's.
        """
        tries, said = 0, ""
        while not stopping.is_set():
            pause_s = 0.0
            try:
                value = (self._client.get_secret(name).value or "").strip()
                if value:
                    return value
                now = f"the secret {name} of the vault {self._url} is empty"
            except AzureError as error:
                now, pause_s = complaint(error, self._url, name), asked_s(error)
            except ValueError as error:
                # The client refuses a challenge that would send the token elsewhere.
                raise VaultUnusable(
                    f"the vault {self._url} does not answer as a vault does: {error}"
                ) from error
            tries += 1
            if now != said:
                log.warning("%s; asking again", now)
            said = now
            stopping.wait(wait_s(tries, pause_s))
        return ""


class _WithoutTls(RequestsTransport):  # type: ignore[misc]  # it comes untyped
    """Sends requests that are meant for HTTPS on the loopback without it."""

    def send(self, request: HttpRequest, **options: object) -> object:
        """Send one request."""
        request.url = request.url.replace("https://127.", _LOOPBACK, 1)
        try:
            return super().send(request, **options)
        finally:
            # Whatever looks at it afterwards shall find the address that it knows.
            request.url = request.url.replace(_LOOPBACK, "https://127.", 1)


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
