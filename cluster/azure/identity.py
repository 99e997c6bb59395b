"""Who the controller is for Azure: its machine's managed identity, and nothing that has to be kept secret."""

from __future__ import annotations

from typing import Any

from azure.core.credentials_async import AsyncTokenCredential
from azure.core.pipeline import PipelineRequest
from azure.core.pipeline.policies import AsyncBearerTokenCredentialPolicy
from azure.identity.aio import DefaultAzureCredential, ManagedIdentityCredential

from remora.loopback import is_loopback_url


def credential(client_id: str | None, developer: bool = False) -> AsyncTokenCredential:
    """The credential of the controller.

    `client_id` names the user-assigned identity of its machine: no chain of guesses, one hop.  With `developer` it is
    the user who is logged in on this machine, such as by `az login`.
    """
    if developer:
        return DefaultAzureCredential(exclude_managed_identity_credential=True)
    return ManagedIdentityCredential(client_id=client_id) if client_id else ManagedIdentityCredential()


class Bearer(AsyncBearerTokenCredentialPolicy[Any, Any]):
    """Shows the token of a credential; over plain HTTP only to an endpoint that is on this host's loopback."""

    def __init__(self, credential: AsyncTokenCredential, scope: str, endpoint: str) -> None:
        super().__init__(credential, scope)
        self._is_loopback = endpoint.startswith("http://") and is_loopback_url(endpoint)

    async def on_request(self, request: PipelineRequest[Any]) -> None:
        """Put the token into the request."""
        if self._is_loopback:
            request.context.options["enforce_https"] = False
        await super().on_request(request)
