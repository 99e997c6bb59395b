"""What the programs of a Ray cluster ask for and hold: the one reader of the state that Ray keeps for its autoscaler.

Ray's own autoscaler (`ray.autoscaler.v2`, which is not started) reads the same answer of the head.  It is no public
interface: `tests/contracts/cluster/test_ray_programs_state.py` holds what is used of it against the pinned Ray.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ray._private import state as ray_state
from ray._raylet import GcsClient, JobID, PlacementGroupID  # type: ignore[attr-defined]
from ray.core.generated import autoscaler_pb2, common_pb2
from ray.experimental import internal_kv

from cluster.ray.membership import MembershipUnknown, RayMembership
from cluster.scheduling.ray_programs import MOST_BUNDLES, Bundle, Gang, LabelTerm, RayDemand, Strategy
from remora.ray_labels import FOR_JOBS_LABEL, NODE_LABEL

#: Namespace of the Ray jobs that are ours: of the controller, and so of drivers and workers.
OURS = "remora"
#: Different shapes, and placement groups, that are read of one answer: others wait until these have what they ask for.
MOST = 1000
_TIMEOUT_S = 5
#: Resources that a bundle of a placement group makes on its node: `CPU_group_0_<id>`, `CPU_group_<id>`.
_OF_GROUP = re.compile(r"(?P<name>.+)_group_(?P<index>\d+_)?(?P<id>[0-9a-f]{36})")
#: Labels that name one node: no other node will do, so that there is nothing to buy.
_NAMES_A_NODE = frozenset({NODE_LABEL, "ray.io/node-id"})
#: Resources that no provider sells by themselves, as every node has them.
_OF_EVERY_NODE = frozenset({"object_store_memory"})
#: Ray's words for a node with a process that works for a task or an actor, or did just now, whatever it holds.
_WORKS = "Busy workers on node."
_EXACT = 1e-4


class RayPrograms:
    """Asks the cluster that this process is connected to; what it says of jobs of Remora is left out."""

    def __init__(self, membership: RayMembership) -> None:
        self._membership = membership
        #: Whether each Ray job is ours, by the last part of ids of placement groups.
        self._is_ours: dict[str, bool] = {}

    def observe(self) -> RayDemand:
        """What programs ask for and hold now.  Raises MembershipUnknown when Ray does not answer."""
        with self._membership.asking():
            try:
                gcs = internal_kv.internal_kv_get_gcs_client()
                answer = gcs.get_cluster_resource_state(timeout_s=_TIMEOUT_S)
                state = autoscaler_pb2.GetClusterResourceStateReply.FromString(answer).cluster_resource_state
                _name_claimed(state, self._membership.claimed())
                groups, actors = _groups_in(state), _actors_on(_busy_without_use(state))
                self._learn_owners(gcs, {*map(_owner, groups), *(job for _, job in actors)})
            except Exception as error:  # Ray raises what its RPC library raises
                raise MembershipUnknown(
                    f"the Ray cluster did not say what its programs ask for: {error}"
                ) from error
        ours = frozenset(one for one in groups if self._is_ours[_owner(one)])
        return demand_of(state, ours, frozenset(node for node, job in actors if not self._is_ours[job]))

    def _learn_owners(self, gcs: GcsClient, owners: set[str]) -> None:
        """Look up these Ray jobs, by their ids; one question when there are new ones."""
        self._is_ours = {one: is_ours for one, is_ours in self._is_ours.items() if one in owners}
        unknown = owners - self._is_ours.keys()
        if not unknown:
            return
        jobs = gcs.get_all_job_info(
            skip_submission_job_info_field=True, skip_is_running_tasks_field=True, timeout=_TIMEOUT_S
        )
        known = {JobID(one.job_id).hex(): one.config.ray_namespace == OURS for one in jobs.values()}
        self._is_ours |= {one: known.get(one, False) for one in unknown}


def _name_claimed(state: Any, claimed: Mapping[str, str]) -> None:
    """Give nodes of an existing cluster the label that our own have."""
    for node in state.node_states if claimed else ():
        if (node_id := claimed.get(node.node_id.hex())) is not None:
            node.labels[NODE_LABEL] = node_id


def _owner(group: str) -> str:
    """The id of the Ray job that made a placement group: the end of its own id."""
    return str(PlacementGroupID(bytes.fromhex(group)).hex()[-2 * JobID.size() :])


def _groups_in(state: Any) -> set[str]:
    """Ids of the placement groups that the answer names."""
    placed = {
        found["id"]
        for node in state.node_states
        for name in node.total_resources
        if (found := _OF_GROUP.fullmatch(name)) is not None
    }
    return placed | {
        _detail(gang)[0] for gang in state.pending_gang_resource_requests if _detail(gang)[1] is not None
    }


def _busy_without_use(state: Any) -> set[str]:
    """Nodes of ours, by Ray's ids, on which something works that holds nothing: our sweeps, and actors of others."""
    return {
        node.node_id.hex()
        for node in state.node_states
        if node.labels.get(NODE_LABEL) and _WORKS in node.node_activity and not _held(node, frozenset())
    }


def _actors_on(nodes: set[str]) -> set[tuple[str, str]]:
    """Node and Ray job of each living actor on these nodes; asked only where there are any."""
    if not nodes:
        return set()
    actors = ray_state.state.actor_table(None, None, "ALIVE").values()
    return {(one["Address"]["NodeID"], one["JobID"]) for one in actors if one["Address"]["NodeID"] in nodes}


def demand_of(state: Any, ours: frozenset[str], with_actors: frozenset[str] = frozenset()) -> RayDemand:
    """What Ray's answer says without what is of our jobs (pure).

    `ours` are ids of their placement groups; `with_actors` are nodes, by Ray's ids, with actors of programs that hold
    nothing.
    """
    constraints = [
        one for constraint in state.cluster_resource_constraints for one in constraint.resource_requests
    ]
    nodes = [
        node
        for node in state.node_states
        if node.labels.get(NODE_LABEL) and node.status != autoscaler_pb2.NodeStatus.DEAD
    ]
    return RayDemand(
        tasks=_counted(state.pending_resource_requests),
        gangs=tuple(_gangs(state.pending_gang_resource_requests[:MOST], ours)),
        minimum=_counted(constraints),
        held={
            node.labels[NODE_LABEL]: held
            for node in nodes
            if (held := _held(node, ours)) or node.node_id.hex() in with_actors
        },
        gangs_on={
            node.labels[NODE_LABEL]: groups
            for node in nodes
            if (groups := frozenset(_groups_on(node)) - ours)
        },
    )


def _counted(requests: Iterable[Any]) -> tuple[tuple[Bundle, int], ...]:
    found: list[tuple[Bundle, int]] = []
    for one in requests:
        bundle = _bundle(one.request)
        if bundle is not None and one.count > 0 and len(found) < MOST:
            found.append((bundle, min(one.count, MOST_BUNDLES)))
    return tuple(found)


def _gangs(requests: Iterable[Any], ours: frozenset[str]) -> Iterator[Gang]:
    """The smallest placement groups, as long as there are not too many bundles of all together."""
    left = MOST_BUNDLES
    for request in sorted(requests, key=_size):
        if _size(request) <= left and (gang := _gang(request, ours)) is not None:
            left -= len(gang.bundles)
            yield gang


def _size(request: Any) -> int:
    """Bundles of a placement group that are read."""
    wanted = request.bundle_selectors
    return min(len(wanted[0].resource_requests), MOST_BUNDLES) if wanted else 0


def _gang(request: Any, ours: frozenset[str]) -> Gang | None:
    """A placement group that more nodes could hold; None where it is ours, or wants nodes that it names."""
    group, strategy = _detail(request)
    if strategy is None or group in ours or not request.bundle_selectors:
        return None
    bundles = [_bundle(one) for one in request.bundle_selectors[0].resource_requests[:MOST_BUNDLES]]
    if not bundles or any(one is None for one in bundles):
        return None
    return Gang(group, strategy, tuple(one for one in bundles if one is not None))


def _detail(request: Any) -> tuple[str, Strategy | None]:
    """Id and strategy of a placement group, from Ray's `<id>:<strategy>|<state>`; None for another text."""
    group, _, rest = request.details.partition(":")
    with contextlib.suppress(ValueError):
        if re.fullmatch(r"[0-9a-f]{36}", group):
            return group, Strategy(rest.partition("|")[0])
    return "", None


def _bundle(request: Any) -> Bundle | None:
    """What is asked for; None where no node that is bought could help, or where nothing is asked for."""
    resources = {
        name: amount
        for name, amount in request.resources_bundle.items()
        if amount > 0 and name not in _OF_EVERY_NODE
    }
    if not resources or any(name.startswith("node:") or _OF_GROUP.fullmatch(name) for name in resources):
        return None
    alternatives = [
        terms for terms in map(_terms, request.label_selectors) if not any(map(_names_a_node, terms))
    ]
    if request.label_selectors and not alternatives:
        return None
    if any(term.key == FOR_JOBS_LABEL for terms in alternatives for term in terms):
        return None  # a driver of ours asks Ray Train's coordinator in this way
    return Bundle(resources, tuple(terms for terms in alternatives if terms))


def _names_a_node(term: LabelTerm) -> bool:
    return term.key in _NAMES_A_NODE and term.is_in


def _terms(selector: Any) -> tuple[LabelTerm, ...]:
    return tuple(
        LabelTerm(
            one.label_key,
            tuple(sorted(one.label_values)),
            one.operator == common_pb2.LabelSelectorOperator.LABEL_OPERATOR_IN,
        )
        for one in selector.label_constraints
    )


def _held(node: Any, ours: frozenset[str]) -> Mapping[str, float]:
    """What programs hold of a node."""
    held = Counter[str]()
    for name, amount in node.total_resources.items():
        found = _OF_GROUP.fullmatch(name)
        if found is not None:
            if found["id"] in ours and found["index"] is None:
                held[found["name"]] -= amount
        elif not name.startswith("node:") and name not in _OF_EVERY_NODE:
            held[name] += amount - node.available_resources.get(name, 0.0)
    return {name: amount for name, amount in held.items() if amount > _EXACT}


def _groups_on(node: Any) -> set[str]:
    return {found["id"] for name in node.total_resources if (found := _OF_GROUP.fullmatch(name)) is not None}
