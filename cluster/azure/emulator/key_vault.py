"""A key vault as machines use it: its secrets can be read with a token of a managed identity."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cluster.azure.body import authority_name, secret_name
from cluster.azure.emulator.faults import EmulatorFaults, FaultPoint
from cluster.azure.emulator.tokens import Tokens
from cluster.local.folders import ClusterFolders

#: The secret of a name, None when there is none.
Secrets = Callable[[str], str | None]

RESOURCE = "https://vault.azure.net"
_CHALLENGE = f'Bearer authorization="https://login.microsoftonline.com/emulated", resource="{RESOURCE}"'
_VERSION = "0123456789abcdef0123456789abcdef"


def no_secrets(_name: str) -> str | None:
    """An empty vault."""
    return None


def secrets_of(home: Path, cluster: str) -> Secrets:
    """The vault of a local cluster: what processes need to connect to the head of this folder."""
    folders = ClusterFolders(home.resolve())
    files = {secret_name(cluster): folders.token, authority_name(cluster): folders.authority}

    def secret(name: str) -> str | None:
        file = files.get(name)
        return file.read_text() if file is not None and file.exists() else None

    return secret


class KeyVault:
    """The vault; its owners put nothing in by HTTP."""

    def __init__(self, secrets: Secrets, faults: EmulatorFaults, tokens: Tokens) -> None:
        self._secrets = secrets
        self._faults = faults
        self._tokens = tokens

    def routes(self) -> list[Route]:
        """GET of a secret, in any of the ways that clients write its newest version."""
        return [Route("/secrets/{name}", self._get), Route("/secrets/{name}/{version:path}", self._get)]

    async def _get(self, request: Request) -> Response:
        if not self._tokens.allows(request.headers.get("Authorization", ""), RESOURCE):
            answer = _error(401, "Unauthorized", "AKV10000: Request is missing a Bearer or PoP token.")
            # The client learns from it what kind of token to ask for.
            answer.headers["WWW-Authenticate"] = _CHALLENGE
            return answer
        fault = self._faults.take(FaultPoint.SECRET)
        if fault is not None:
            answer = _error(fault.status, fault.code, fault.message)
            if fault.retry_after is not None:
                answer.headers["Retry-After"] = f"{fault.retry_after:g}"
            return answer
        name = request.path_params["name"]
        value = self._secrets(name)
        if value is None:
            said = (
                f"A secret with (name/id) {name} was not found in this key vault. If you recently deleted this secret"
                " you may be able to recover it using the correct recovery command."
            )
            return _error(404, "SecretNotFound", said)
        attributes = {"enabled": True, "created": 0, "updated": 0, "recoveryLevel": "Recoverable+Purgeable"}
        identity = f"https://emulated.vault.azure.net/secrets/{name}/{_VERSION}"
        return JSONResponse({"value": value, "id": identity, "attributes": attributes})


def _error(status: int, code: str, message: str) -> Response:
    return JSONResponse({"error": {"code": code, "message": message}}, status_code=status)
