"""What becomes of one fabric domain, which is one Uniform scale set, given what Azure shows of it (pure).

Azure names the instances of a set, so a node cannot be found by its machine's name.  The set's own tags say which
nodes wait for an instance, written in one request with the capacity that they need; an instance's tag says which node
it is.  Both are in Azure, so that the next look, also after a crash, comes to the same decision.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cluster.azure.body import NODE_TAG, TAG_CHARACTERS

#: Tags of a set that name the nodes that wait: this and a number from 0.
WAITS_TAG = "remora:waits-"
#: Nodes that one set can have, as its placement group ends there.
MOST_NODES = 100

_ENDED_BADLY = ("Failed", "Canceled")


@dataclass(frozen=True, kw_only=True)
class SeenSet:
    """A scale set as Azure shows it."""

    name: str
    tags: Mapping[str, str] = field(default_factory=dict)
    #: Azure's word: `Creating`, `Updating`, `Succeeded`, `Failed`, `Deleting`, ...
    state: str = ""
    capacity: int = 0
    #: Size of its machines.
    size: str = ""
    #: Version of the document; None where Azure has none.
    etag: str | None = None
    #: Azure's own id of it, which no other set has, also none of the same name; empty where Azure has none.
    unique_id: str = ""

    @property
    def has_failed(self) -> bool:
        """The last thing that was done to it went wrong."""
        return self.state in _ENDED_BADLY


@dataclass(frozen=True, kw_only=True)
class SeenInstance:
    """One machine of a set."""

    #: Its number within the set.
    id: str
    tags: Mapping[str, str] = field(default_factory=dict)
    state: str = ""
    etag: str | None = None
    #: False: it was given to its node, and Azure does not show the tag yet.
    is_tagged: bool = True

    @property
    def node_id(self) -> str | None:
        """The node that it was claimed for."""
        return self.tags.get(NODE_TAG) or None

    @property
    def has_failed(self) -> bool:
        """It will not run."""
        return self.state in _ENDED_BADLY

    @property
    def is_leaving(self) -> bool:
        """Azure deletes it."""
        return self.state == "Deleting"


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """A node that was asked for and does not bear an instance's tag yet."""

    node_id: str
    #: When it was asked for, seconds since 1970.
    since: float
    #: Number of the instance that it is given, stored before the instance's tags are written; None while it has none.
    instance: str | None = None


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What to do about a set."""

    #: Nodes that wait, those included that are claimed an instance now.
    waiting: tuple[Waiting, ...]
    #: Nodes that the set's document names: those that wait, and those whose instance does not show its tag yet.
    named: tuple[Waiting, ...]
    #: Nodes that get no instance: Azure could not make all that were asked for.
    refused: tuple[Waiting, ...]
    #: Which instance becomes which node, those included that may not have heard of it yet.
    claims: tuple[tuple[SeenInstance, Waiting], ...]
    #: Instances that no node waits for, and broken ones that belong to no node.
    surplus: tuple[SeenInstance, ...]
    capacity: int
    #: The set's document says something else about capacity or waiting nodes.
    is_news: bool
    #: Nodes that the set has, with and without an instance.
    nodes: int


def decide(
    seen: SeenSet,
    instances: Sequence[SeenInstance],
    *,
    joining: Sequence[Waiting] = (),
    leaving: Collection[str] = (),
) -> Decision:
    """What to do about a set, when these nodes join and those, which wait, do not want to any more.

    The capacity never says less than there are instances, and is not lowered while one of them is leaving, as it may
    count in the capacity until it is gone: Azure would choose by itself which ones end.
    """
    written = read_waiting(seen.tags)
    claimed = {one.node_id for one in instances if one.node_id}
    untagged = {one.node_id: one for one in instances if not one.is_tagged}
    again = [
        replace(one, instance=untagged[one.node_id].id)
        for one in written
        if one.node_id in untagged and one.node_id not in leaving
    ]
    stay = [
        replace(one, instance=None)
        for one in written
        if one.node_id not in claimed and one.node_id not in leaving
    ]
    known = claimed | {one.node_id for one in stay}
    new = [one for one in joining if one.node_id not in known]
    unclaimed = sorted((one for one in instances if not one.node_id and not one.is_leaving), key=_number)
    broken = [one for one in unclaimed if one.has_failed]
    free = [one for one in unclaimed if not one.has_failed]
    short = max(0, len(stay) - len(free))
    # A set that did not fail is still being made; in one that did, whatever is missing does not come any more.
    out = short if seen.has_failed else min(short, len(broken))
    kept = stay[: len(stay) - out]
    waiting = [*kept, *new]
    ready = [one for one in free if one.state == "Succeeded"]
    given = [(one, replace(node, instance=one.id)) for one, node in zip(ready, kept, strict=False)]
    named = (*again, *(node for _, node in given), *waiting[len(given) :])
    # Those that run are kept first.
    spare = sorted(free, key=lambda one: (one.state != "Succeeded", _number(one)))[len(waiting) :]
    owned = sum(1 for one in instances if one.node_id and not one.is_leaving)
    capacity = max(owned + len(waiting), sum(1 for one in instances if not one.is_leaving))
    if len(waiting) <= len(free):
        # No node lacks a machine: an instance that Azure does not count any more is being deleted.
        capacity = min(capacity, seen.capacity)
    if any(one.is_leaving for one in instances):
        capacity = max(capacity, seen.capacity)
    return Decision(
        waiting=tuple(waiting),
        named=named,
        refused=tuple(stay[len(stay) - out :]),
        claims=(
            *((untagged[one.node_id], one) for one in again if untagged[one.node_id].state == "Succeeded"),
            *given,
        ),
        surplus=(*broken, *spare),
        capacity=capacity,
        is_news=named != written or capacity != seen.capacity,
        nodes=owned + len(waiting),
    )


def read_waiting(tags: Mapping[str, str]) -> tuple[Waiting, ...]:
    """The nodes that wait, in the order in which they were asked for; words that cannot be read are passed over."""
    found: list[Waiting] = []
    for number in range(len(tags)):
        for word in tags.get(f"{WAITS_TAG}{number}", "").split():
            node_id, _, rest = word.partition("@")
            since, _, instance = rest.partition("@")
            try:
                found.append(Waiting(node_id=node_id, since=float(since), instance=instance or None))
            except ValueError:
                continue
    return tuple(found)


def waiting_tags(tags: Mapping[str, str], waiting: Sequence[Waiting]) -> dict[str, str]:
    """All tags of a set that had these, with other nodes waiting.

    Tags that are not needed any more become empty instead of being left out: whether a request's tags replace the
    others or are added to them, the outcome is the same.
    """
    lines = [""]
    for one in waiting:
        word = f"{one.node_id}@{one.since!r}" + (f"@{one.instance}" if one.instance is not None else "")
        if lines[-1] and len(lines[-1]) + 1 + len(word) > TAG_CHARACTERS:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    emptied = {name: "" for name in tags if name.startswith(WAITS_TAG)}
    return {**tags, **emptied, **{f"{WAITS_TAG}{at}": line for at, line in enumerate(lines)}}


def _number(instance: SeenInstance) -> tuple[int, str]:
    return (int(instance.id) if instance.id.isdigit() else 0, instance.id)
