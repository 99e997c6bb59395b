"""The three requests to Kubernetes that a provider needs, over HTTP; each raises one of the provider's own errors."""

from __future__ import annotations

import json
import math
import ssl
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2

from cluster.kuberay.documents import CLUSTER_LABEL, KIND_LABEL, shown
from cluster.kuberay.settings import KubeRaySettings
from cluster.provider import InvalidRequest, ProviderError, QuotaExceeded, Throttled, Unanswered, Unauthorized

#: Seconds for one request.
TIMEOUT_S = 15.0
#: Seconds after which a request is sent again where Kubernetes names none, and at most.
AGAIN_S, LONGEST_S = 2.0, 120.0
#: Pods of one page of a list, bytes of one answer, and pages of one list.
PAGE, MOST_BYTES, MOST_PAGES = 250, 32 * 2**20, 200
#: How often a list begins again because Kubernetes has forgotten where it was.
_LISTS = 3
_TOKEN_BYTES = 64 * 1024


class Changed(ProviderError):
    """The RayCluster was changed by another process since it was read; read it again."""


class Unprocessable(InvalidRequest):
    """A patch cannot be applied: a test in it failed, or what it would make is wrong; Kubernetes does not say which."""


class Expired(ProviderError):
    """Kubernetes does not know any more where a list was; begin it again."""


class KubernetesApi:
    """One RayCluster and its pods; any thread may call it."""

    def __init__(self, settings: KubeRaySettings, timeout_s: float = TIMEOUT_S) -> None:
        """Raises Unauthorized when the file with the authority cannot be used; sends no request."""
        self._settings = settings
        self._http = httpx2.Client(
            base_url=settings.endpoint,
            timeout=timeout_s,
            verify=_context(settings),
            trust_env=False,
            follow_redirects=False,
        )
        space = settings.namespace
        self._cluster = f"/apis/ray.io/v1/namespaces/{space}/rayclusters/{settings.cluster}"
        self._pods = f"/api/v1/namespaces/{space}/pods"

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def cluster(self) -> dict[str, Any]:
        """The document of the RayCluster."""
        return self._send("GET", self._cluster)

    def change(self, patch: list[dict[str, Any]]) -> None:
        """Change the RayCluster by a JSON patch.  Raises Changed, or Unprocessable, which may mean the same."""
        self._send("PATCH", self._cluster, content=patch)

    def pods(self) -> list[dict[str, Any]]:
        """The documents of all worker pods; a list of which any page fails is none."""
        for _ in range(_LISTS - 1):
            with suppress(Expired):
                return self._listed()
        try:
            return self._listed()
        except Expired as error:
            raise Unanswered(str(error), retry_after_s=AGAIN_S) from error

    def _listed(self) -> list[dict[str, Any]]:
        wanted = f"{CLUSTER_LABEL}={self._settings.cluster},{KIND_LABEL}=worker"
        query = {"labelSelector": wanted, "limit": str(PAGE)}
        found: list[dict[str, Any]] = []
        for _ in range(MOST_PAGES):
            page = self._send("GET", self._pods, query=query)
            items, metadata = page.get("items"), page.get("metadata")
            # A list without any is `null` for some servers.
            if not isinstance(items, list | None) or not isinstance(metadata, dict):
                raise Unanswered(
                    "Kubernetes answered something that is no list of pods", retry_after_s=AGAIN_S
                )
            found += [item for item in items or [] if isinstance(item, dict)]
            token = metadata.get("continue")
            if not token:
                return found
            query = {**query, "continue": str(token)}
        raise ProviderError(f"the list of pods has more than {MOST_PAGES} pages")

    def _send(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, content: object = None
    ) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {self._token()}", "Accept": "application/json"}
        body = None
        if content is not None:
            headers["Content-Type"] = "application/json-patch+json"
            body = json.dumps(content).encode()
        try:
            with self._http.stream(method, path, params=query, headers=headers, content=body) as answer:
                status, pause, text = answer.status_code, answer.headers.get("Retry-After"), _body(answer)
        except httpx2.HTTPError as error:
            said = str(error) or type(error).__name__
            raise Unanswered(
                f"the API server of Kubernetes did not answer: {shown(said)}", retry_after_s=AGAIN_S
            ) from error
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):
            document = None
        if status >= 300:
            raise _failure(status, document if isinstance(document, dict) else {}, _seconds(pause), method)
        if not isinstance(document, dict):
            raise Unanswered("the answer of Kubernetes is no whole JSON object", retry_after_s=AGAIN_S)
        return document

    def _token(self) -> str:
        path = Path(self._settings.token_file)
        try:
            with path.open("rb") as file:
                token = file.read(_TOKEN_BYTES).decode("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise Unauthorized(
                f"the token of the service account cannot be read from {path}; run the controller in a pod that has"
                " one, or name the file as `token_file`"
            ) from error
        if not token or not token.isprintable() or " " in token:
            raise Unauthorized(f"the file {path} has no token of a service account")
        return token


def _context(settings: KubeRaySettings) -> ssl.SSLContext | bool:
    if settings.endpoint.startswith("http:"):
        return True
    try:
        return ssl.create_default_context(cafile=settings.authority_file)
    except (OSError, ssl.SSLError) as error:
        raise Unauthorized(
            f"the authority of the API server cannot be read from {settings.authority_file}; run the controller in a"
            " pod, or name the file as `authority_file`"
        ) from error


def _body(answer: httpx2.Response) -> bytes:
    parts: list[bytes] = []
    size = 0
    for part in answer.iter_bytes():
        size += len(part)
        if size > MOST_BYTES:
            raise Unanswered(
                f"an answer of Kubernetes is longer than {MOST_BYTES} bytes", retry_after_s=LONGEST_S
            )
        parts.append(part)
    return b"".join(parts)


def _failure(status: int, document: Mapping[str, Any], pause_s: float | None, method: str) -> ProviderError:
    """What an answer that is an error means (pure); `document` is its Status."""
    said = shown(document.get("message")) or f"status {status}"
    if status == 401:
        return Unauthorized(f"Kubernetes does not accept the token of the service account: {said}")
    if status == 403:
        if "exceeded quota" in said:
            return QuotaExceeded(f"Kubernetes refuses it: {said}")
        return Unauthorized(f"Kubernetes does not allow it to the service account: {said}")
    if status == 404:
        return InvalidRequest(f"Kubernetes does not know it, look at `namespace` and `cluster`: {said}")
    if status == 410:
        return Expired(f"Kubernetes lists no further: {said}")
    if method == "PATCH" and status == 409:
        return Changed(f"the RayCluster was changed meanwhile: {said}")
    if method == "PATCH" and status == 422:
        return Unprocessable(f"Kubernetes refuses the change: {said}")
    if status == 429:
        return Throttled(f"Kubernetes asks for a pause: {said}", retry_after_s=pause_s or AGAIN_S)
    if status >= 500:
        return Unanswered(f"Kubernetes answered {status}: {said}", retry_after_s=pause_s or AGAIN_S)
    return InvalidRequest(f"Kubernetes refuses it with {status}: {said}")


def _seconds(text: str | None) -> float | None:
    """Seconds of a Retry-After, bounded; None where it has no number."""
    try:
        seconds = float(text or "")
    except ValueError:
        return None
    return min(max(seconds, 0.1), LONGEST_S) if math.isfinite(seconds) else None
