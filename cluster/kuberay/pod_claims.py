"""What becomes of one worker group, given what Kubernetes shows of it (pure).

KubeRay names the pods, so a node cannot be found by its pod's name.  An annotation of the RayCluster has a *claim* for
each node: it waits for a pod, or has one.  It is written in one request with the number of pods and the names of those
that end, so that the next look, also after a crash, comes to the same decision.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from pydantic import TypeAdapter, ValidationError

#: The annotation with the claims.
NODES_ANNOTATION = "remora-nodes"
#: Bytes of it; Kubernetes takes 256 KiB of all annotations together.
MOST_BYTES = 200 * 1024
#: Seconds for which a group may want pods that no node waits for and that are not to be seen.
EXCESS_S = 60.0


class ClaimsUnreadable(Exception):
    """The annotation has another content than was written; the message is one sentence."""


@dataclass(frozen=True, kw_only=True)
class KubernetesClaim:
    """A node that was asked for and was not given back."""

    node_id: str
    group: str
    pool: str
    #: When it was asked for, seconds since 1970.
    at: float
    resources: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    #: The pod that it has; None: it waits for one.
    pod: str | None = None


class PodState(StrEnum):
    """How far a pod is."""

    #: It waits for a machine, its image or its first process.
    STARTING = "starting"
    RUNNING = "running"
    #: All of its processes have ended; KubeRay deletes it and makes another one.
    ENDED = "ended"
    #: It is being deleted.
    LEAVING = "leaving"


@dataclass(frozen=True, kw_only=True)
class SeenPod:
    """A worker pod as Kubernetes shows it."""

    name: str
    group: str
    state: PodState
    created_at: float = 0.0
    address: str | None = None
    #: Why it does not run, for people; empty: it does, or nothing is wrong yet.
    message: str = ""
    #: No machine has capacity for it since then, seconds since 1970; None: it has one, or was not looked at yet.
    homeless_since: float | None = None
    #: When it got a machine, seconds since 1970; 0.0: it has none, or that is not known.
    placed_at: float = 0.0
    #: It does not start, as `message` says.
    is_stuck: bool = False
    #: It may start all the same, some minutes later.
    may_pass: bool = False

    @property
    def is_living(self) -> bool:
        """It may be a node, or become one."""
        return self.state in (PodState.STARTING, PodState.RUNNING)


@dataclass(frozen=True, kw_only=True)
class SeenGroup:
    """A worker group as the RayCluster's document shows it."""

    name: str
    #: Its place in the document.
    index: int
    #: Pods that KubeRay keeps.
    replicas: int
    #: Pods that KubeRay may keep at most.
    most: int
    to_delete: tuple[str, ...] = ()
    #: Pods of which several are one replica; such a group has no nodes of ours.
    hosts: int = 1
    #: Pods that KubeRay keeps at least, whatever `replicas` is.
    least: int = 0
    #: KubeRay ends its pods and makes none.
    is_suspended: bool = False


@dataclass(frozen=True, kw_only=True)
class GroupDecision:
    """What one group is to be."""

    claims: tuple[KubernetesClaim, ...]
    replicas: int
    to_delete: tuple[str, ...]
    #: It wants pods that no node waits for and that are not to be seen; to be forgotten after `EXCESS_S`.
    is_excessive: bool
    #: Something is to be written.
    is_news: bool


def decide(
    group: SeenGroup,
    pods: Iterable[SeenPod],
    claims: Iterable[KubernetesClaim],
    *,
    leaving: Collection[str] = (),
    joining: Sequence[KubernetesClaim] = (),
    forget_excess: bool = False,
) -> GroupDecision:
    """What becomes of a group when the nodes `leaving`, by their ids, are given back and `joining` are asked for.

    A pod is given to one node once, and a node gets one pod.  A pod that ends is named until it is gone: KubeRay counts
    an ended one that is not named, and would delete any other one for it.  For the same reason the number of pods goes
    down with pods that are named alone, or with `forget_excess` where the pods beyond it have not come for long; never
    below what is there.  No pod is named in whose place KubeRay would make another one, for the least that it keeps.
    """
    here = {pod.name: pod for pod in pods}
    before = tuple(claims)
    stay = [one for one in before if one.node_id not in leaving]
    known = {one.node_id for one in stay}
    stay += [one for one in joining if one.node_id not in known]
    named_before = {name for name in group.to_delete if name in here}
    named = named_before | {one.pod for one in before if one.node_id in leaving and one.pod in here}
    given = {one.pod for one in before}
    free = sorted(
        (pod for pod in here.values() if pod.is_living and pod.name not in named and pod.name not in given),
        key=lambda pod: (pod.created_at, pod.name),
    )
    waiting = sorted((one for one in stay if one.pod is None), key=lambda one: (one.at, one.node_id))
    gets = {claim.node_id: pod.name for claim, pod in zip(waiting, free, strict=False)}
    after = tuple(replace(one, pod=gets.get(one.node_id, one.pod)) for one in stay)
    living = sum(1 for one in stay if one.pod in here and here[one.pod].is_living and one.pod not in named)
    idle = free[len(waiting) :]
    named |= {pod.name for pod in idle[max(0, group.least - living - len(waiting)) :]}
    wanted = max(group.least, living + len(waiting))
    # An ended pod is replaced before it is gone: whether it still counts is not known.
    counted = {name for name in named - named_before if here[name].state is not PodState.ENDED}
    replicas = max(wanted, group.replicas - len(counted))
    is_excessive = replicas > wanted
    if is_excessive and forget_excess:
        # Of those that are there and are not named, KubeRay would end any for one too few.
        replicas = min(replicas, max(wanted, len(here.keys() - named) + len(waiting[len(free) :])))
    to_delete = tuple(sorted(named))
    return GroupDecision(
        claims=after,
        replicas=replicas,
        to_delete=to_delete,
        is_excessive=is_excessive,
        is_news=after != before or replicas != group.replicas or to_delete != tuple(sorted(group.to_delete)),
    )


_CLAIMS = TypeAdapter(dict[str, KubernetesClaim])


def read_claims(text: str | None) -> dict[str, KubernetesClaim]:
    """Claims by node id, out of the annotation; None: it is not there.  Raises ClaimsUnreadable."""
    if not text:
        return {}
    try:
        written = json.loads(text)
        if not isinstance(written, dict):
            raise ClaimsUnreadable("it is no JSON object")
        return _CLAIMS.validate_python({name: {"node_id": name, **one} for name, one in written.items()})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ClaimsUnreadable(f"{'.'.join(map(str, first['loc']))[:120]}: {first['msg']}") from error
    except (ValueError, TypeError, RecursionError) as error:
        raise ClaimsUnreadable(str(error)[:200]) from error


def written_claims(claims: Mapping[str, KubernetesClaim]) -> str:
    """The annotation; the same claims give the same text."""
    document = {
        name: {key: value for key, value in vars(one).items() if key != "node_id" and value is not None}
        for name, one in claims.items()
    }
    return json.dumps(document, sort_keys=True, separators=(",", ":"))
