"""What Ray knows about our nodes; only this, `drain.py` and `gcs_requests.py` use Ray's internals in `cluster`."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import ray
from ray._private import state as ray_state
from ray._raylet import GcsClient  # type: ignore[attr-defined]
from ray.experimental import internal_kv

from cluster.ray.heartbeats import AgentStatus, Heartbeat, listen, read
from cluster.ray.members import MemberNode, chosen, doubtful, is_given_away
from cluster.ray.node_claims import claim_entries, claimed_nodes
from remora.ray_labels import NODE_LABEL, claims_in, drains_in

#: Namespace and beginning of the keys of the agents' heartbeats in Ray's internal KV, as `gcs_requests.py` writes them.
BEAT_NAMESPACE = b"remora"
BEAT_PREFIX = b"agent:"
#: Seconds for a question to the head that goes beyond its usual ones.
_TIMEOUT_S = 5.0


class MembershipUnknown(Exception):
    """Ray could not be asked; the caller must not treat that as "no members"."""


class RayMembership:
    """Asks the cluster that this process is connected to (`ray.init` has been called); one question at a time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, are_claimed: bool = False) -> None:
        """`are_claimed`: our nodes are those of an existing cluster that are claimed, beside those with our label."""
        self._clock = clock
        self._are_claimed = are_claimed
        self._looked_at = clock()
        self._heard: dict[str, AgentStatus] = {}
        #: The last status of agents whose nodes have left; None of those that never sent a heartbeat.
        self._last_words: dict[str, AgentStatus | None] = {}
        self._asking = threading.RLock()
        self._is_left = False

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        """Ask Ray about our nodes while the connection stays.  Raises MembershipUnknown once it was left."""
        with self._asking:
            if self._is_left:
                raise MembershipUnknown("the connection to the Ray head is being made again")
            yield

    def leave(self) -> None:
        """The connection of this process ends: nothing is asked from now on; waits for a question under way."""
        with self._asking:
            self._is_left = True

    def claimed(self) -> Mapping[str, str]:
        """Our node ids of claimed nodes, by Ray's ids; empty where none is claimed.  Raises what Ray raises."""
        return claimed_nodes() if self._are_claimed else {}

    def observe(self) -> dict[str, MemberNode]:
        """All nodes that carry our label or are claimed, by node id; the head is not among those with a label.

        Raises MembershipUnknown when Ray cannot be asked.
        """
        with self.asking():
            return self._observe()

    def _observe(self) -> dict[str, MemberNode]:
        if not ray.is_initialized():
            raise MembershipUnknown("this process is not connected to a Ray cluster")
        try:
            nodes = ray.nodes()
            draining = ray_state.state.get_draining_nodes()
            free = ray_state.state.available_resources_per_node()
            entries = claim_entries() if self._are_claimed else {}
            names = claims_in(entries)
            draining = {**{node: int(at * 1000) for node, at in drains_in(entries).items()}, **draining}
            known = [member for node in nodes if (member := _member(node, names, draining, free)) is not None]
            began = began_at(internal_kv.internal_kv_get_gcs_client()) if doubtful(known) else {}
        except Exception as error:  # Ray raises what its RPC library raises
            raise MembershipUnknown(f"the Ray cluster did not say which nodes it has: {error}") from error
        members = chosen(known, began)
        self._listen(members)
        return {node_id: replace(member, agent=self._agent(member)) for node_id, member in members.items()}

    def _agent(self, member: MemberNode) -> AgentStatus | None:
        heard = self._heard if member.is_alive else self._last_words
        return heard.get(member.node_id)

    def _listen(self, members: Mapping[str, MemberNode]) -> None:
        gone = {node_id for node_id, member in members.items() if not member.is_alive}
        # What agents say is no reason to see no nodes: where they cannot be asked about, what was heard last holds.
        with contextlib.suppress(Exception):
            # Who has left says nothing new, but may have said why between the last look and its end.
            heartbeats = _heartbeats(members.keys() - (gone & self._last_words.keys()))
            now = self._clock()
            heard = listen(self._heard, heartbeats, now - self._looked_at)
            self._looked_at = now
            self._last_words = {
                node_id: self._last_words.get(node_id) or heard.get(node_id) for node_id in gone
            }
            self._heard = heard


def _member(
    node: dict[str, Any],
    names: Mapping[str, str],
    draining: Mapping[str, int],
    free: Mapping[str, Mapping[str, float]],
) -> MemberNode | None:
    node_id = node["Labels"].get(NODE_LABEL) or names.get(node["NodeID"])
    if node_id is None:
        return None
    deadline_ms = draining.get(node["NodeID"])
    brings = {k: v for k, v in node["Resources"].items() if not k.startswith("node:")}
    return MemberNode(
        node_id=node_id,
        ray_node_id=node["NodeID"],
        address=node["NodeManagerAddress"],
        is_alive=node["Alive"],
        is_draining=node["Alive"] and deadline_ms is not None,
        is_in_use=node["Alive"] and is_given_away(brings, free.get(node["NodeID"])),
        resources=brings,
        deadline_at=deadline_ms / 1000 if deadline_ms else None,
        raylet_port=node["NodeManagerPort"],
    )


def began_at(gcs: GcsClient) -> dict[str, float]:
    """When each Ray node began, seconds since 1970, by Ray's own ids; `ray.nodes()` does not say."""
    answers = gcs.get_all_node_info(timeout=_TIMEOUT_S)
    return {ray_node_id.hex(): node.start_time_ms / 1000 for ray_node_id, node in answers.items()}


def _heartbeats(node_ids: Iterable[str]) -> dict[str, Heartbeat]:
    """The newest sign of life of each agent, in one question; without those that never gave one that can be read."""
    keys = {BEAT_PREFIX + node_id.encode(): node_id for node_id in node_ids}
    answers = internal_kv.internal_kv_get_gcs_client().internal_kv_multi_get(
        list(keys), namespace=BEAT_NAMESPACE, timeout=_TIMEOUT_S
    )
    return {keys[key]: heartbeat for key, text in answers.items() if (heartbeat := read(text)) is not None}
