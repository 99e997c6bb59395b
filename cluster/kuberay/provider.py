"""Nodes that are worker pods of a RayCluster, behind the synchronous interface `cluster.provider.Provider`.

A node is a claim in an annotation of the RayCluster, see `cluster.kuberay.pod_claims`.  Nothing waits for a pod: every
look reads the RayCluster and its pods, decides what each group is to be, and writes that where it is news.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from cluster.kuberay.api import Changed, KubernetesApi, Unprocessable
from cluster.kuberay.documents import SeenCluster, changes, read_cluster, read_pod
from cluster.kuberay.group_ownership import AUTOSCALED, why_not_ours
from cluster.kuberay.nodes import is_suspended, node_of, suspended
from cluster.kuberay.pod_claims import (
    EXCESS_S,
    MOST_BYTES,
    NODES_ANNOTATION,
    ClaimsUnreadable,
    GroupDecision,
    KubernetesClaim,
    SeenPod,
    decide,
    read_claims,
    written_claims,
)
from cluster.kuberay.settings import KubeRaySettings
from cluster.provider import (
    InvalidRequest,
    NodeRequest,
    ProvidedNode,
    ProviderError,
    QuotaExceeded,
    Throttled,
    check_node_id,
)
from cluster.ray.joining import join_flags

log = logging.getLogger(__name__)

#: How often the RayCluster is read again because another process changed it.
TRIES = 6
#: Seconds after which a request is made again that all tries were not enough for.
BUSY_S = 1.0
#: Seconds for which a group is closed that is full.
FULL_S = 180.0
#: Seconds between two times that pods are named again: the head may have forgotten them.
NAME_AGAIN_S = 60.0


class PodNames(Protocol):
    """Lets a pod know which node it is.  May raise any exception: it is called again."""

    def publish(self, pods: Mapping[str, NodeRequest]) -> None:
        """These pods, by name, are these nodes; called again and again, also for pods that know."""
        ...

    def forget(self, pods: Collection[str]) -> None:
        """These pods are gone."""
        ...


@dataclass(frozen=True)
class _Look:
    """The RayCluster, its pods, and the nodes that it is to have."""

    cluster: SeenCluster
    pods: Mapping[str, SeenPod]
    claims: Mapping[str, KubernetesClaim]


class KubeRayProvider:
    """`cluster.provider.Provider` whose machines are worker pods of one RayCluster; any thread may call it."""

    def __init__(
        self,
        settings: KubeRaySettings,
        names: PodNames,
        clock: Callable[[], float] = time.time,
        api: KubernetesApi | None = None,
    ) -> None:
        """Sends no request.  Raises Unauthorized when the file with the API server's authority cannot be used."""
        self._settings = settings
        self._names = names
        self._clock = clock
        self._api = api or KubernetesApi(settings)
        #: Of two requests of this process the second would always have to be made again.
        self._asking = threading.Lock()
        #: Since when groups want pods that no node waits for and that are not to be seen.
        self._excessive: dict[str, float] = {}
        #: The pods that were named, and when.
        self._named: frozenset[str] = frozenset()
        self._named_at = -math.inf

    def close(self) -> None:
        """Close the connections; pods live on."""
        self._api.close()

    def create(self, request: NodeRequest) -> None:
        """Ask for one more pod and return when that is written; does nothing when the node is there already.

        Raises InvalidRequest for what can never be a pod here, QuotaExceeded where the group is full, and what the
        API server refuses.  That no machine has capacity for the pod is the `refusal` of a listed node.
        """
        check_node_id(request.node_id)
        group = (request.offering or "").split("/")[0]
        known = self._settings.group(group)
        if known is None or known.offering.id != request.offering:
            raise InvalidRequest(
                f"{request.offering!r} is none of the groups in the file of REMORA_KUBERAY_FILE"
            )
        # What Ray would refuse later.
        join_flags(request, "head:1")
        claim = KubernetesClaim(
            node_id=request.node_id,
            group=group,
            pool=request.pool,
            at=self._clock(),
            resources=request.resources,
            labels=request.labels,
        )
        with self._asking:
            self._change(joining=claim)

    def list(self) -> list[ProvidedNode]:
        """Every node that was asked for and not given back, in the order of the requests.

        Raises when the RayCluster, any page of its pods or its annotation cannot be read.
        """
        with self._asking:
            look = self._change()
            self._name(look)
        now = self._clock()
        nodes = [
            node_of(one, look.cluster, look.pods.get(one.pod or ""), self._settings, now)
            for one in look.claims.values()
        ]
        return sorted(nodes, key=lambda node: (node.created_at, node.node_id))

    def delete(self, node_id: str) -> None:
        """Have the node's pod deleted; the node is not listed any more from now on."""
        with self._asking:
            self._change(leaving=(node_id,))

    def _change(self, *, joining: KubernetesClaim | None = None, leaving: Sequence[str] = ()) -> _Look:
        """Read everything, decide, and write what is news; again when the RayCluster changed meanwhile."""
        for _ in range(TRIES):
            # In this order: a pod that is made or goes meanwhile changes the RayCluster's status, and so its version.
            cluster = read_cluster(self._api.cluster())
            claims = self._claims(cluster)
            if joining is not None and joining.node_id in claims:
                return _Look(cluster, {}, claims)
            if leaving and cluster.is_autoscaled:
                raise ProviderError(AUTOSCALED)
            if leaving and not claims.keys() & set(leaving):
                return _Look(cluster, {}, claims)
            pods = {pod.name: pod for pod in map(read_pod, self._api.pods())}
            if joining is not None:
                try:
                    self._check_group(cluster, pods, joining.group)
                except InvalidRequest:
                    # Another controller may have begun between the two questions: the pods are ours then.
                    if read_cluster(self._api.cluster()).version == cluster.version:
                        raise
                    continue
            decisions = self._decide(cluster, pods, claims, joining, leaving)
            after = _together(claims, decisions, leaving)
            news = {name: one for name, one in decisions.items() if one.is_news}
            if not news and after == claims:
                return _Look(cluster, pods, after)
            if joining is not None:
                _check_bounds(
                    cluster, decisions, joining, self._settings.offering_id(joining.group), self._clock()
                )
            if self._write(cluster, after, news, is_node_added=joining is not None):
                return _Look(cluster, pods, after)
        if joining is None and not leaving:
            # What is there is known; what is to follow is written at the next look.
            return _Look(cluster, pods, claims)
        raise Throttled("other processes change the RayCluster all the time", retry_after_s=BUSY_S)

    def _claims(self, cluster: SeenCluster) -> dict[str, KubernetesClaim]:
        try:
            return read_claims(cluster.claims)
        except ClaimsUnreadable as error:
            raise ProviderError(
                f"the annotation {NODES_ANNOTATION} of the RayCluster {self._settings.cluster} cannot be read, correct"
                f" it: {error}"
            ) from error

    def _decide(
        self,
        cluster: SeenCluster,
        pods: Mapping[str, SeenPod],
        claims: Mapping[str, KubernetesClaim],
        joining: KubernetesClaim | None,
        leaving: Collection[str],
    ) -> dict[str, GroupDecision]:
        """What becomes of every group of the settings that the RayCluster has and lets us change."""
        now = self._clock()
        by_group: defaultdict[str, list[KubernetesClaim]] = defaultdict(list)
        for claim in claims.values():
            by_group[claim.group].append(claim)
        decisions = {}
        for name in cluster.groups.keys() & {group.name for group in self._settings.groups}:
            if is_suspended(cluster, name) or why_not_ours(cluster, pods.values(), name):
                continue
            decisions[name] = decide(
                cluster.groups[name],
                [pod for pod in pods.values() if pod.group == name],
                by_group[name],
                leaving=leaving,
                joining=[joining] if joining is not None and joining.group == name else [],
                forget_excess=cluster.is_observed and now - self._excessive.get(name, now) >= EXCESS_S,
            )
        self._excessive = {
            name: self._excessive.get(name, now) for name, one in decisions.items() if one.is_excessive
        }
        return decisions

    def _check_group(self, cluster: SeenCluster, pods: Mapping[str, SeenPod], name: str) -> None:
        """Raise InvalidRequest or InsufficientCapacity where the RayCluster lets the group have no nodes of ours."""
        why = why_not_ours(cluster, pods.values(), name)
        if not why and (least := cluster.groups[name].least) > 0:
            why = f"KubeRay keeps {least} pods of the worker group {name!r}: set minReplicas to 0"
        if why:
            raise InvalidRequest(why)
        if is_suspended(cluster, name):
            raise suspended(name, self._settings, self._clock())

    def _write(
        self,
        cluster: SeenCluster,
        claims: Mapping[str, KubernetesClaim],
        decisions: Mapping[str, GroupDecision],
        *,
        is_node_added: bool,
    ) -> bool:
        """Write it; False: the RayCluster was changed meanwhile."""
        text = written_claims(claims)
        if is_node_added and len(text) > MOST_BYTES:
            raise QuotaExceeded(f"the RayCluster takes no more than {len(claims) - 1} nodes")
        try:
            self._api.change(changes(cluster, text, decisions))
        except Changed:
            return False
        except Unprocessable:
            if read_cluster(self._api.cluster()).version == cluster.version:
                raise
            return False
        return True

    def _name(self, look: _Look) -> None:
        """Let pods know which nodes they are, those that are new and now and then all; forget those that are gone."""
        nodes = {
            one.pod: _request(one)
            for one in look.claims.values()
            if one.pod is not None and one.pod in look.pods
        }
        now = self._clock()
        is_due = not 0.0 <= now - self._named_at < NAME_AGAIN_S
        wanted = nodes if is_due else {name: nodes[name] for name in nodes.keys() - self._named}
        gone = self._named - look.pods.keys()
        try:
            if wanted:
                self._names.publish(wanted)
            if gone:
                self._names.forget(gone)
        except Exception as error:  # Ray raises what its RPC library raises
            log.warning("pods cannot be shown which nodes they are, it is tried again: %s", error)
            return
        self._named = frozenset(nodes) | (self._named & look.pods.keys())
        self._named_at = now if is_due else self._named_at


def _together(
    claims: Mapping[str, KubernetesClaim], decisions: Mapping[str, GroupDecision], leaving: Collection[str]
) -> dict[str, KubernetesClaim]:
    """All claims after these decisions; those of groups that are gone stay until they are given back."""
    kept = {name: one for name, one in claims.items() if one.group not in decisions and name not in leaving}
    return kept | {one.node_id: one for decision in decisions.values() for one in decision.claims}


def _request(claim: KubernetesClaim) -> NodeRequest:
    return NodeRequest(
        node_id=claim.node_id, pool=claim.pool, resources=dict(claim.resources), labels=dict(claim.labels)
    )


def _check_bounds(
    cluster: SeenCluster,
    decisions: Mapping[str, GroupDecision],
    joining: KubernetesClaim,
    offering: str,
    now: float,
) -> None:
    """Raise QuotaExceeded where the new node would be beyond what its group may have."""
    group = cluster.groups[joining.group]
    if decisions[joining.group].replicas > group.most:
        raise QuotaExceeded(
            f"the worker group {group.name!r} may have {group.most} pods at most (maxReplicas)",
            closes=(offering,),
            until=now + FULL_S,
        )
