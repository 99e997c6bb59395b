"""The emulated API server on the loopback: RayClusters and pods in Kubernetes' wire format, its errors, and faults."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit

from cluster.kuberay.emulator.json_patch import PatchFails, PatchUnusable, merged, patched
from cluster.kuberay.emulator.world import World

#: The token that the service account has.
TOKEN = "emulated-token"  # noqa: S105  # of no real cluster
#: What a role of Kubernetes allows: verb, API group, resource, name of one thing (empty: any).
Right = tuple[str, str, str, str]
_JSON_PATCH, _MERGE_PATCH = "application/json-patch+json", "application/merge-patch+json"
#: What Kubernetes says when a patch cannot be applied; it does not say why.
_REJECTED = "the server rejected our request due to an error in our request"
_MOST_BYTES = 2**20


class KubernetesEffect(StrEnum):
    """What a fault does."""

    #: An error is answered, and nothing is done.
    REFUSE = "refuse"
    #: It is done, and the connection ends without an answer.
    LOSE_ANSWER = "lose-answer"
    #: The answer ends in its middle, although its head said more.
    TRUNCATE = "truncate"
    #: The answer comes whole and is no JSON.
    GARBLE = "garble"
    #: The RayCluster is changed by another process just before.
    CHANGE_BEFORE = "change-before"
    #: No answer comes before `release` is set.
    HOLD = "hold"


@dataclass
class Fault:
    """What goes wrong at the next requests of one kind: `get`, `patch`, or `list`."""

    at: str
    effect: KubernetesEffect = KubernetesEffect.REFUSE
    status: int = 500
    reason: str = "InternalError"
    message: str = "an error on the server has prevented the request from succeeding"
    retry_after: str | None = None
    times: int = 1
    #: The page of a list, from 1; None: any.
    page: int | None = None
    fired: int = 0
    release: threading.Event = field(default_factory=threading.Event)


class KubernetesRefusal(Exception):
    """An error of Kubernetes."""

    def __init__(self, status: int, reason: str, message: str, retry_after: str | None = None) -> None:
        super().__init__(message)
        self.status, self.reason, self.retry_after = status, reason, retry_after

    def document(self) -> dict[str, Any]:
        """Its Status."""
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": str(self),
            "reason": self.reason,
            "code": self.status,
        }


class KubernetesServer:
    """Runs between `with` and its end; `url` is where it listens.  `world` may be changed under `lock`."""

    def __init__(
        self,
        world: World,
        rights: Sequence[Right] | None = None,
        page: int = 500,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`rights` is what the service account may do, None: everything.  `page` bounds lists besides their limit.

        With `tls` it speaks TLS alone.
        """
        self.world = world
        self.lock = threading.RLock()
        self.faults: list[Fault] = []
        self.page = page
        #: The rights that requests needed.
        self.used: set[Right] = set()
        #: Every request: method and path with query.
        self.requests: list[str] = []
        self._rights = rights
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _answering(self))
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)
        if tls is not None:
            self._http.socket = tls.wrap_socket(self._http.socket, server_side=True)
        scheme = "http" if tls is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._http.server_address[1]}"

    def __enter__(self) -> KubernetesServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for fault in self.faults:
            fault.release.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def answer(
        self, method: str, target: str, headers: Any, body: bytes
    ) -> tuple[dict[str, Any], Fault | None]:
        """What is answered, and the fault that spoils it.  Raises KubernetesRefusal."""
        url = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        with self.lock:
            self.requests.append(f"{method} {target}")
            self._authorise(method, url.path, headers)
            kind = {"GET": "get", "PATCH": "patch"}.get(method, method)
            kind = "list" if url.path.endswith("/pods") else kind
            fault = self._fault(kind, query)
            if fault is not None and fault.effect is KubernetesEffect.REFUSE:
                raise KubernetesRefusal(fault.status, fault.reason, fault.message, fault.retry_after)
            if fault is not None and fault.effect is KubernetesEffect.CHANGE_BEFORE:
                self.world.touch()
            if kind == "list":
                return self._list(query), fault
            self._check_name(url.path)
            if method == "PATCH":
                self._patch(headers.get("Content-Type", ""), body)
            return json.loads(json.dumps(self.world.cluster)), fault

    def _authorise(self, method: str, path: str, headers: Any) -> None:
        if headers.get("Authorization") != f"Bearer {TOKEN}":
            raise KubernetesRefusal(401, "Unauthorized", "Unauthorized")
        right = _right(method, path)
        if right is None:
            raise KubernetesRefusal(404, "NotFound", "the server could not find the requested resource")
        verb, group, resource, name = right
        self.used.add(right)
        allowed = self._rights is None or any(
            one[:3] == right[:3] and one[3] in ("", name) for one in self._rights
        )
        if not allowed:
            account = "system:serviceaccount:remora:remora-controller"
            raise KubernetesRefusal(
                403, "Forbidden", f'{resource}.{group} is forbidden: User "{account}" cannot {verb} it'
            )

    def _check_name(self, path: str) -> None:
        metadata = self.world.cluster["metadata"]
        name = path.rpartition("/")[2]
        if f"/namespaces/{metadata['namespace']}/" not in path or name != metadata["name"]:
            raise KubernetesRefusal(404, "NotFound", f'rayclusters.ray.io "{name}" not found')

    def _fault(self, kind: str, query: dict[str, str]) -> Fault | None:
        page = int(query.get("continue", "0").partition(".")[0]) // self._size(query) + 1
        for fault in self.faults:
            if fault.at == kind and fault.fired < fault.times and fault.page in (None, page):
                fault.fired += 1
                return fault
        return None

    def _size(self, query: dict[str, str]) -> int:
        return min(int(query.get("limit", self.page)), self.page)

    def _list(self, query: dict[str, str]) -> dict[str, Any]:
        wanted = dict(one.split("=", 1) for one in query.get("labelSelector", "").split(",") if one)
        found = [
            one for one in self.world.pods.values() if wanted.items() <= one["metadata"]["labels"].items()
        ]
        start, size = int(query.get("continue", "0")), self._size(query)
        metadata = {"resourceVersion": self.world.cluster["metadata"]["resourceVersion"]}
        if start + size < len(found):
            metadata |= {"continue": str(start + size)}
        page = json.loads(json.dumps(found[start : start + size]))
        return {"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": page}

    def _patch(self, kind: str, body: bytes) -> None:
        before = self.world.cluster
        try:
            change = json.loads(body)
            if kind == _JSON_PATCH:
                after = patched(before, change)
            elif kind == _MERGE_PATCH:
                after = merged(before, change)
            else:
                raise KubernetesRefusal(415, "UnsupportedMediaType", f"{kind} is not supported")
        except (ValueError, PatchUnusable) as error:
            raise KubernetesRefusal(400, "BadRequest", str(error)) from error
        except PatchFails as error:
            raise KubernetesRefusal(422, "Invalid", _REJECTED) from error
        if after["metadata"].get("resourceVersion") != before["metadata"]["resourceVersion"]:
            raise KubernetesRefusal(
                409, "Conflict", "the object has been modified; please apply your changes again"
            )
        why = _invalid(after)
        if why:
            raise KubernetesRefusal(
                422, "Invalid", f'RayCluster.ray.io "{after["metadata"]["name"]}" is invalid: {why}'
            )
        self.world.replace(after)


def _right(method: str, path: str) -> Right | None:
    """The right that a request needs; None: there is nothing there."""
    parts = path.split("/")[1:]
    if parts[:2] == ["api", "v1"] and parts[2:3] == ["namespaces"] and parts[4:] == ["pods"]:
        return ("list", "", "pods", "") if method == "GET" else None
    is_cluster = parts[:4] == ["apis", "ray.io", "v1", "namespaces"] and len(parts) == 7
    if is_cluster and parts[5] == "rayclusters" and method in ("GET", "PATCH"):
        return {"GET": "get", "PATCH": "patch"}[method], "ray.io", "rayclusters", parts[6]
    return None


def _invalid(document: dict[str, Any]) -> str:
    """Why the resource's schema does not allow a document, as far as it is known here; empty: it does."""
    if (
        sum(len(key) + len(value) for key, value in document["metadata"].get("annotations", {}).items())
        > 2**18
    ):
        return "metadata.annotations: Too long: may not be more than 262144 bytes"
    for at, group in enumerate(document["spec"].get("workerGroupSpecs", [])):
        replicas = group.get("replicas")
        if replicas is not None and (not isinstance(replicas, int) or replicas < 0):
            return f"spec.workerGroupSpecs[{at}].replicas: Invalid value"
        named = group.get("scaleStrategy", {}).get("workersToDelete", [])
        if not all(isinstance(one, str) for one in named):
            return f"spec.workerGroupSpecs[{at}].scaleStrategy.workersToDelete: must be of type string"
    return ""


def _answering(server: KubernetesServer) -> type[BaseHTTPRequestHandler]:
    class AnsweringRequests(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Head and body go at once: else the body waits for the acknowledgement of the head, which takes 40 ms.
        wbufsize = -1
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            self._answer()

        def do_PATCH(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self._answer()

        def do_PUT(self) -> None:
            self._answer()

        def do_DELETE(self) -> None:
            self._answer()

        def log_message(self, format: str, *_: Any) -> None:
            """Say nothing."""

        def _answer(self) -> None:
            length = min(int(self.headers.get("Content-Length") or 0), _MOST_BYTES)
            body = self.rfile.read(length)
            fault: Fault | None = None
            retry_after, status = None, 200
            try:
                document, fault = server.answer(self.command, self.path, self.headers, body)
            except KubernetesRefusal as refused:
                document, status, retry_after = refused.document(), refused.status, refused.retry_after
            text = json.dumps(document).encode()
            effect = fault.effect if fault is not None else None
            if effect is KubernetesEffect.HOLD and fault is not None:
                fault.release.wait()
            if effect is KubernetesEffect.LOSE_ANSWER:
                self.close_connection = True
                return
            if effect is KubernetesEffect.GARBLE:
                text = b"<html>a proxy has no answer</html>"
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            if retry_after is not None:
                self.send_header("Retry-After", retry_after)
            self.end_headers()
            if effect is KubernetesEffect.TRUNCATE:
                self.close_connection = True
                text = text[: len(text) // 2]
            self.wfile.write(text)

    return AnsweringRequests
