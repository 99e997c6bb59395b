"""The requests to Azure Resource Manager by which a template is deployed and taken away, with Azure's own client core.

They are few and of seven services, each of which has a library of its own; the core that all of these share sends them
as well, and is installed with the libraries that the service uses.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar
from urllib.parse import quote

from azure.core.credentials import TokenCredential
from azure.core.exceptions import AzureError
from azure.core.pipeline import PipelineRequest
from azure.core.pipeline.policies import (
    BearerTokenCredentialPolicy,
    RequestIdPolicy,
    RetryPolicy,
    UserAgentPolicy,
)
from azure.core.rest import HttpRequest, HttpResponse
from azure.mgmt.core import ARMPipelineClient

from remora.loopback import is_loopback_url

ENDPOINT = "https://management.azure.com"
_STORAGE_SCOPE = "https://storage.azure.com/.default"
_VAULT_SCOPE = "https://vault.azure.net/.default"
_VAULT_VERSION = "7.4"
_STORAGE_VERSION = "2024-11-04"
#: Seconds for a connection, and for an answer.
_CONNECT_S, _ANSWER_S = 10, 120
#: Seconds after which an operation that has no end is given up: the longest, a deployment, takes a quarter of an hour.
_PATIENCE_S = 3600.0
#: Seconds for which a new role is waited for before a request is given up.
_ROLE_S = 600.0
#: Pages of one list; a longer one is not one that we know.
_MOST_PAGES = 1000

Json = dict[str, Any]
Answer = TypeVar("Answer")

#: Versions of the services' words.
VERSIONS = {
    "deployments": "2024-03-01",
    "groups": "2024-11-01",
    "subscriptions": "2022-12-01",
    "roleAssignments": "2022-04-01",
    "roleDefinitions": "2022-04-01",
    "budgets": "2023-11-01",
    "vaults": "2023-07-01",
    "providers": "2021-04-01",
    "imageTemplates": "2024-02-01",
    "galleries": "2023-07-03",
    "networks": "2024-05-01",
    "zones": "2024-06-01",
}


class Refused(Exception):
    """Azure refused, or did not answer; the message is one sentence for an operator."""

    def __init__(self, message: str, code: str = "", status: int = 0) -> None:
        super().__init__(message)
        self.code = code
        self.status = status


class _Bearer(BearerTokenCredentialPolicy[Any, Any]):
    """Shows a token; over plain HTTP only on this host's loopback."""

    def __init__(self, credential: TokenCredential, scope: str) -> None:
        super().__init__(credential, scope)

    def on_request(self, request: PipelineRequest[Any]) -> None:
        """Put the token into the request."""
        url = request.http_request.url
        if url.startswith("http://") and is_loopback_url(url):
            request.context.options["enforce_https"] = False
        super().on_request(request)


class ResourceManager:
    """Azure Resource Manager, with the paths of one subscription at `root`; close it after use."""

    def __init__(self, credential: TokenCredential, subscription: str, endpoint: str = ENDPOINT) -> None:
        self._credential = credential
        self._endpoint = endpoint.rstrip("/")
        self.root = f"/subscriptions/{subscription}"
        self.subscription = subscription.lower()
        self._arm = self._client(f"{self._endpoint}/.default")
        self._blobs = self._client(_STORAGE_SCOPE)
        self._secrets = self._client(_VAULT_SCOPE)

    def _client(self, scope: str) -> ARMPipelineClient[Any, Any]:
        # All requests here can be repeated.
        policies = [
            RequestIdPolicy(),
            UserAgentPolicy("remora"),
            RetryPolicy(retry_total=4),
            _Bearer(self._credential, scope),
        ]
        return ARMPipelineClient(
            self._endpoint, policies=policies, connection_timeout=_CONNECT_S, read_timeout=_ANSWER_S
        )

    def close(self) -> None:
        """Close all connections."""
        self._arm.close()
        self._blobs.close()
        self._secrets.close()

    def principal(self) -> str:
        """Object id of whose token this is; empty when the token does not say."""
        try:
            token = self._credential.get_token(f"{self._endpoint}/.default").token
            claims = token.split(".")[1]
            return str(json.loads(base64.urlsafe_b64decode(claims + "==")).get("oid", ""))
        except AzureError as error:
            raise Refused(
                f"no login to Azure was found; log in by: az login ({_first_line(error)})"
            ) from error
        except (ValueError, IndexError):
            return ""

    def get(self, path: str, version: str) -> Json | None:
        """A document, None when there is none.  Raises Refused."""
        response = self._sent("GET", path, version)
        return None if response.status_code == 404 else _document(response)

    def all(self, path: str, version: str) -> Iterator[Json]:
        """All items of a list, of all its pages; of a list that does not exist, none.  Raises Refused."""
        url = f"{path}?api-version={version}"
        for _ in range(_MOST_PAGES):
            response = self._request("GET", url)
            if response.status_code == 404:
                return
            page = _document(response)
            yield from page.get("value", [])
            url = page.get("nextLink") or ""
            if not url:
                return
        raise Refused(f"the list {path} has more than {_MOST_PAGES} pages")

    def put(self, path: str, version: str, body: Json) -> Json:
        """Make or change something.  Raises Refused."""
        return _document(self._sent("PUT", path, version, body))

    def patch(self, path: str, version: str, body: Json) -> Json:
        """Change a part of something.  Raises Refused."""
        return _document(self._sent("PATCH", path, version, body))

    def post(self, path: str, version: str, body: Json | None = None) -> Json:
        """Ask for something to be done, and wait for its answer.  Raises Refused."""
        response = self._sent("POST", path, version, body)
        given_up_at = time.monotonic() + _PATIENCE_S
        while response.status_code == 202:
            if time.monotonic() > given_up_at:
                raise Refused(f"Azure has not answered {path} within an hour")
            url = response.headers.get("Location") or ""
            time.sleep(_seconds(response.headers.get("Retry-After")))
            response = self._request("GET", url)
        if response.status_code == 404:
            raise _refused(response)
        return _document(response)

    def begin(self, path: str, version: str) -> None:
        """Ask for something that takes long, and do not wait for it.  Raises Refused."""
        response = self._sent("POST", path, version)
        if response.status_code >= 400:
            raise _refused(response)

    def delete(self, path: str, version: str) -> None:
        """Begin to delete something; fine when there is none.  Raises Refused."""
        response = self._sent("DELETE", path, version)
        if response.status_code >= 400 and response.status_code != 404:
            raise _refused(response)

    def secret(self, vault_uri: str, name: str) -> str | None:
        """The newest value of a secret of a vault, None when there is none.  Raises Refused."""
        url = f"{vault_uri}secrets/{name}?api-version={_VAULT_VERSION}"
        response = self._ask(self._secrets, HttpRequest("GET", url))
        if response.status_code == 404:
            return None
        if response.status_code in (401, 403):
            raise Refused(
                f"the vault refused to show the secret {name} with status {response.status_code}; a new role needs some"
                " minutes, and the vault admits the addresses of --allow alone",
                status=403,
            )
        return str(_document(response)["value"])

    def upload(self, url: str, content: bytes) -> None:
        """Write a blob, whole.  Raises Refused."""
        headers = {"x-ms-blob-type": "BlockBlob", "x-ms-version": _STORAGE_VERSION}
        headers["Content-Type"] = "application/octet-stream"
        response = self._ask(self._blobs, HttpRequest("PUT", url, headers=headers, content=content))
        if response.status_code != 201:
            raise Refused(
                f"the storage refused {url} with status {response.status_code}; a new role needs some minutes, and the"
                " storage admits the addresses of --allow alone",
                status=response.status_code,
            )

    def _sent(self, method: str, path: str, version: str, body: Json | None = None) -> HttpResponse:
        return self._request(method, f"{quote(path, safe='/')}?api-version={version}", body)

    def _request(self, method: str, url: str, body: Json | None = None) -> HttpResponse:
        whole = url if url.startswith("http") else self._endpoint + url
        if not whole.startswith(self._endpoint + "/"):
            # The token is for this endpoint alone.
            raise Refused(f"Azure named an address of another host: {whole[:200]!r}")
        return self._ask(self._arm, HttpRequest(method, whole, json=body))

    def _ask(self, client: ARMPipelineClient[Any, Any], request: HttpRequest) -> HttpResponse:
        try:
            response: HttpResponse = client.send_request(request)
        except AzureError as error:
            raise Refused(f"{request.url.partition('?')[0]} cannot be asked: {_first_line(error)}") from error
        return response


def with_new_role(ask: Callable[[], Answer], poll_s: float) -> Answer:
    """What `ask` returns, which is asked again while it is refused: a new role is known everywhere only after minutes.

    Raises Refused.
    """
    given_up_at = time.monotonic() + _ROLE_S
    while True:
        try:
            return ask()
        except Refused as refused:
            if refused.status != 403 or time.monotonic() > given_up_at:
                raise
            time.sleep(poll_s)


def _document(response: HttpResponse) -> Json:
    if response.status_code >= 400:
        raise _refused(response)
    if response.status_code == 204 or not response.content:
        return {}
    try:
        document = response.json()
    except ValueError as error:
        raise Refused("Azure answered with what is no JSON; a proxy may stand between") from error
    if not isinstance(document, dict):
        raise Refused("Azure answered with a document of another form")
    return document


def _refused(response: HttpResponse) -> Refused:
    try:
        error = response.json()["error"]
        return Refused(explained(error), str(error["code"]), response.status_code)
    except (ValueError, KeyError, TypeError):
        return Refused(f"Azure answered with status {response.status_code}", status=response.status_code)


def explained(error: Json) -> str:
    """An error of Azure with the innermost reasons that it names, one after another."""
    details = [one for one in error.get("details") or [] if isinstance(one, dict)]
    if details:
        return "; ".join(explained(one) for one in details)
    return f"{error.get('code', 'an error')}: {error.get('message', '')}"


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _seconds(text: str | None) -> float:
    return min(float(text), 60.0) if text and text.isascii() and text.isdigit() else 5.0
