"""Which node a pod is, in Ray's internal KV: the controller writes it, and the pod reads it before it joins.

A pod can read nothing of Kubernetes, and has Ray's secret anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError
from ray._raylet import GcsClient  # type: ignore[attr-defined]
from ray.experimental import internal_kv

from cluster.provider import InvalidRequest, NodeRequest, check_node_id
from cluster.ray.membership import RayMembership

#: Namespace and beginning of the keys.
NAMESPACE, PREFIX = b"remora", b"pod:"
#: Seconds for one question.
TIMEOUT_S = 5
#: Bytes of one entry.
MOST_BYTES = 64 * 1024

_REQUEST = TypeAdapter(NodeRequest)


class RayPodNames:
    """`cluster.kuberay.provider.PodNames` in the cluster that this process is connected to."""

    def __init__(
        self,
        membership: RayMembership,
        client: Callable[[], Any] = internal_kv.internal_kv_get_gcs_client,
    ) -> None:
        self._membership = membership
        self._client = client

    def publish(self, pods: Mapping[str, NodeRequest]) -> None:
        """Write which nodes these pods are.  Raises what Ray raises, and MembershipUnknown."""
        with self._membership.asking():
            gcs = self._client()
            for name, request in pods.items():
                gcs.internal_kv_put(
                    _key(name), _REQUEST.dump_json(request), True, NAMESPACE, timeout=TIMEOUT_S
                )

    def forget(self, pods: Collection[str]) -> None:
        """Delete what was written of these pods.  Raises what Ray raises, and MembershipUnknown."""
        with self._membership.asking():
            gcs = self._client()
            for name in pods:
                gcs.internal_kv_del(_key(name), False, NAMESPACE, timeout=TIMEOUT_S)


def named_node(address: str, pod: str) -> NodeRequest | None:
    """The node that this pod is, by the head at `address` (`host:port`); None: it is not known yet.

    Raises InvalidRequest for what was not written by a controller, and what Ray raises.
    """
    text = GcsClient(address=address).internal_kv_get(_key(pod), NAMESPACE, timeout=TIMEOUT_S)
    return None if not text else read(bytes(text))


def read(text: bytes) -> NodeRequest:
    """The node in an entry (pure).  Raises InvalidRequest."""
    if len(text) > MOST_BYTES:
        raise InvalidRequest(f"it has more than {MOST_BYTES} bytes")
    try:
        request = _REQUEST.validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise InvalidRequest(f"{'.'.join(map(str, first['loc']))[:120]}: {first['msg']}") from error
    check_node_id(request.node_id)
    return request


def _key(pod: str) -> bytes:
    return PREFIX + pod.encode()
