"""What one process knows of scale sets beyond what a list shows; when it is lost, the next look restores it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from cluster.azure.body import CREATED_TAG, NODE_TAG
from cluster.azure.fabric_domain import SeenInstance, SeenSet, Waiting, read_waiting
from cluster.provider import ProvidedNode, ProviderError

#: Seconds for which a deleted instance counts as going although Azure may still show it as running.
_GOING_S = 300.0

#: Name of the set, number of the instance.
InstanceKey = tuple[str, str]


@dataclass
class SetMemory:
    """All of it; times are seconds since 1970."""

    #: By node id.
    instance_keys: dict[str, InstanceKey] = field(default_factory=dict)
    #: Set by the id of a node that its document may name as waiting, whether or not it got an instance since.
    waits: dict[str, str] = field(default_factory=dict)
    #: Numbers of instances by set, as they were last seen.
    sets: dict[str, set[str]] = field(default_factory=dict)
    #: Nodes that Azure had no machine for, until they are deleted.
    refused: dict[str, ProvidedNode] = field(default_factory=dict)
    #: The node of each instance, from before its tag is written: the answer may be lost, the tag be shown later.
    claims: dict[InstanceKey, Waiting] = field(default_factory=dict)
    #: Azure's own id of each set.
    unique_ids: dict[str, str] = field(default_factory=dict)
    #: When each instance was asked to go.
    going: dict[InstanceKey, float] = field(default_factory=dict)
    #: Where the last change of a set can be asked about.
    operations: dict[str, str] = field(default_factory=dict)
    #: Why instances failed.
    failures: dict[InstanceKey, ProviderError] = field(default_factory=dict)
    #: Since when sets have had no node.
    empty_since: dict[str, float] = field(default_factory=dict)
    has_looked: bool = False

    def forget_replaced(self, seen: SeenSet) -> None:
        """Given a set that was just read, forget what is known of an earlier one of its name."""
        if not seen.unique_id:
            return
        if seen.unique_id != self.unique_ids.get(seen.name, seen.unique_id):
            self.forget_set(seen.name)
        self.unique_ids[seen.name] = seen.unique_id

    def forget_set(self, name: str) -> None:
        """There is no set of this name; the next one numbers its instances from 0 again."""
        self.sets.pop(name, None)
        self.unique_ids.pop(name, None)
        self.operations.pop(name, None)
        self.empty_since.pop(name, None)
        self.claims = {key: node for key, node in self.claims.items() if key[0] != name}
        self.going = {key: at for key, at in self.going.items() if key[0] != name}
        self.failures = {key: why for key, why in self.failures.items() if key[0] != name}

    def claim(self, name: str, instance: SeenInstance, node: Waiting) -> None:
        """Record that an instance belongs to a node, in place of any other instance that it had."""
        self.claims = {key: one for key, one in self.claims.items() if one.node_id != node.node_id}
        self.claims[(name, instance.id)] = node
        self.instance_keys[node.node_id] = (name, instance.id)

    def known(self, seen: SeenSet, instance: SeenInstance) -> SeenInstance:
        """The instance with what was done to it and may not be shown yet."""
        name = seen.name
        written = {one.instance: one for one in read_waiting(seen.tags)}
        claim = self.claims.get((name, instance.id)) or written.get(instance.id)
        if instance.node_id is None and claim is not None:
            instance = replace(instance, tags={**instance.tags, **claim_tags(claim)}, is_tagged=False)
        if (name, instance.id) in self.going and not instance.has_failed:
            instance = replace(instance, state="Deleting")
        return instance

    def not_waiting(self, seen: SeenSet, instances: Sequence[SeenInstance]) -> set[str]:
        """Nodes that wait no longer, even if the set's document names them: they had a machine, or were refused one."""
        here = {one.id for one in instances}
        given = {node.node_id: number for (name, number), node in self.claims.items() if name == seen.name}
        given |= {one.node_id: one.instance for one in read_waiting(seen.tags) if one.instance is not None}
        return {node_id for node_id, number in given.items() if number not in here} | self.refused.keys()

    def expected(self, seen: SeenSet) -> set[str]:
        """Numbers of the instances that a list of this set should have."""
        given = {one.instance for one in read_waiting(seen.tags) if one.instance is not None}
        return self.sets.get(seen.name, set()) | given

    def begin_look(self, sets: Sequence[tuple[SeenSet, Sequence[SeenInstance]]], now: float) -> None:
        """Forget what is over, given all sets that there are with their instances."""
        self.instance_keys, self.waits = {}, {}
        self.sets = {seen.name: {one.id for one in instances} for seen, instances in sets}
        self.going = {
            key: at for key, at in self.going.items() if now - at < _GOING_S and key[0] in self.sets
        }
        # A claim outlives its instance for as long as the document names its node.
        named = {(seen.name, one.node_id) for seen, _ in sets for one in read_waiting(seen.tags)}
        self.claims = {
            (name, number): node
            for (name, number), node in self.claims.items()
            if number in self.sets.get(name, ()) or (name, node.node_id) in named
        }
        self.failures = {
            key: why for key, why in self.failures.items() if key[1] in self.sets.get(key[0], ())
        }
        self.empty_since = {name: since for name, since in self.empty_since.items() if name in self.sets}
        self.operations = {name: url for name, url in self.operations.items() if name in self.sets}
        self.unique_ids = {name: own for name, own in self.unique_ids.items() if name in self.sets}

    def is_shown(self, name: str, instance: SeenInstance) -> bool:
        """It is some node's machine, and was not asked to go, or failed to."""
        is_going = (name, instance.id) in self.going and not instance.has_failed
        return instance.node_id is not None and not is_going


def claim_tags(node: Waiting) -> dict[str, str]:
    """Tags by which an instance becomes a node."""
    return {NODE_TAG: node.node_id, CREATED_TAG: repr(node.since)}
