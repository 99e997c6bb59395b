"""Whether all workers compute the same bits for the same shard, and which worker does not; pure but for `Watched`.

In `bitwise` mode a shard's gradient follows from the weights, the samples and the seeds alone.  So every now and then
each worker computes one shard of its neighbour again and both compare a digest of the gradient.  Where these differ a
worker of a third node computes the shard, too, or with two nodes another one of each, and the two that have carried it
compute it once more: what most nodes have found is right, and a worker that ever found something else computes wrongly.
Nodes are counted and not workers, because what lets a machine compute wrongly may be the same for all of its workers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from remora.torch.agreement import digest, stacked, weighed
from remora.torch.buckets import Flats
from remora.torch.neighbours import neighbours
from remora.torch.order import shards_of
from remora.torch.randomness import derive

#: Environment variable of a job that asks for checks.
VERIFY_VARIABLE = "REMORA_VERIFY_EVERY"
#: Shards that are computed once more; a worker that computes wrongly makes two doubtful.
MOST_DOUBTS = 4


class Miscomputed(RuntimeError):
    """A worker computes wrongly, and no supervisor can go on without it."""


@dataclass(frozen=True)
class Checks:
    """Who checks what in one step."""

    #: For each rank the shard of its own that is checked.
    shards: tuple[int, ...]
    #: For each rank the one that checks it.
    checkers: tuple[int, ...]
    nodes: tuple[int, ...]

    def checked_by(self, rank: int) -> int:
        """The rank that this one checks."""
        return self.checkers.index(rank)

    def deciders(self, rank: int) -> tuple[int, ...]:
        """Who decides where a rank and its checker have found unlike bits: one on a third node where there is one.

        Otherwise one of each of their nodes, where these have more ranks: who agrees with the other node is right.
        """
        pair = (rank, self.checkers[rank])
        nodes = [self.nodes[one] for one in pair]
        count = len(self.nodes)
        others = [other for distance in range(count) if (other := (rank + distance) % count) not in pair]
        elsewhere = [one for one in others if self.nodes[one] not in nodes]
        if elsewhere:
            return (elsewhere[0],)
        beside = [next((one for one in others if self.nodes[one] == node), None) for node in nodes]
        return tuple(sorted({one for one in beside if one is not None}))

    def parts_of(self, rank: int) -> tuple[int, ...]:
        """The ranks that find something for a rank's shard when it is computed once more."""
        return (rank, self.checkers[rank], *self.deciders(rank))


def checks_of(step: int, seed: int, shards: int, nodes: Sequence[int]) -> Checks:
    """The checks of a step, given the node of each rank; the shards are drawn by the seed."""
    chosen = []
    for rank in range(len(nodes)):
        own = shards_of(rank, len(nodes), shards)
        chosen.append(own[derive(seed, "verify", step, rank) % len(own)])
    return Checks(tuple(chosen), tuple(neighbours(nodes)), tuple(nodes))


def is_verified(step: int, every: int | None) -> bool:
    """Whether this step is one of those whose shards are checked."""
    return bool(every) and step % (every or 1) == 0


#: What ranks have found for one shard, each as often as it computed it.
Findings = Mapping[int, Collection[int]]


def judge(findings: Findings, nodes: Sequence[int]) -> frozenset[int] | None:
    """The ranks that have ever found something else than most nodes did; None where no finding is that of most.

    `nodes` are those of all ranks.  Where all findings are of one node its ranks are counted.
    """
    is_one_node = len({nodes[rank] for rank in findings}) == 1
    finders_of: dict[int, set[int]] = {}
    for rank, found in findings.items():
        for one in found:
            finders_of.setdefault(one, set()).add(rank if is_one_node else nodes[rank])
    most = max(map(len, finders_of.values()))
    right = [one for one, finders in finders_of.items() if len(finders) == most]
    if len(right) > 1 or most == 1:
        return None
    return frozenset(rank for rank, found in findings.items() if set(found) != {right[0]})


def judge_all(
    checks: Checks, doubts: Sequence[int], firsts: Sequence[Sequence[int]], seconds: Sequence[Sequence[int]]
) -> Verdict:
    """What follows from what all ranks have found.

    `firsts`: by rank, for its own shard and for that of the rank that it checks.  `seconds`: by rank, for the shard of
    each of `doubts`, which the ranks named by `Checks.parts_of` have computed once more.
    """
    unsteady = _unlike_themselves(checks, doubts, firsts, seconds)
    if len(unsteady) > 1:
        # Machines fail one at a time: what several compute otherwise the second time is not deterministic.
        return Verdict(frozenset(), unsteady, is_steady=False)
    wrong: set[int] = set()
    left: list[frozenset[int]] = []
    for place, rank in enumerate(doubts):
        before = {rank: firsts[rank][0], checks.checkers[rank]: firsts[checks.checkers[rank]][1]}
        findings = {
            one: {seconds[one][place], before.get(one, seconds[one][place])} for one in checks.parts_of(rank)
        }
        judged = judge(findings, checks.nodes)
        if judged is None:
            left.append(frozenset(findings))
        else:
            wrong |= judged
    # Who computes wrongly may also leave a doubt about others.
    undecided = frozenset().union(*(ranks for ranks in left if not ranks & wrong))
    if len(wrong) == len(checks.nodes):
        # None would be left to go on.
        return Verdict(frozenset(), frozenset(wrong), is_steady=not unsteady)
    return Verdict(frozenset(wrong), undecided, is_steady=not unsteady)


def _unlike_themselves(
    checks: Checks, doubts: Sequence[int], firsts: Sequence[Sequence[int]], seconds: Sequence[Sequence[int]]
) -> frozenset[int]:
    """The ranks that have found something else when they computed a shard again."""
    found = set()
    for place, rank in enumerate(doubts):
        checker = checks.checkers[rank]
        found |= {rank} if firsts[rank][0] != seconds[rank][place] else set()
        found |= {checker} if firsts[checker][1] != seconds[checker][place] else set()
    return frozenset(found)


def doubted(checks: Checks, firsts: Sequence[Sequence[int]]) -> list[int]:
    """The ranks for whose shard their checker has found other bits, the first `MOST_DOUBTS` of them."""
    differ = [rank for rank, found in enumerate(firsts) if found[0] != firsts[checks.checkers[rank]][1]]
    return differ[:MOST_DOUBTS]


@dataclass(frozen=True)
class Verdict:
    """Which ranks compute wrongly."""

    wrong: frozenset[int]
    #: Ranks of which some do, and it cannot be said which.
    undecided: frozenset[int]
    #: All found the same when they computed a shard again.
    is_steady: bool = True


def wrong_text(step: int, ranks: Iterable[int]) -> str:
    """What is said of workers that compute wrongly."""
    return f"{_names(ranks)} wrongly: in step {step} most nodes have found other bits for the same shard"


def undecided_text(step: int, ranks: Iterable[int]) -> str:
    """The error where it cannot be said which worker computes wrongly."""
    named = sorted(ranks)
    return (
        f"in step {step} ranks {', '.join(map(str, named))} have found unlike bits for the same shard, and it cannot be"
        " said who is right: an operation of the model or of the dataset is not deterministic, or one of their machines"
        " computes wrongly, which takes three nodes to find out"
    )


def _names(ranks: Iterable[int]) -> str:
    named = sorted(ranks)
    if len(named) == 1:
        return f"rank {named[0]} computes"
    return f"ranks {', '.join(map(str, named))} compute"


class Watched:
    """The digest of one shard's gradients, which are there bucket by bucket."""

    def __init__(self) -> None:
        self._shard: int | None = None
        self._digests: list[torch.Tensor] = []

    def begin(self, shard: int | None) -> None:
        """From now on look at this shard; None: at none."""
        self._shard = shard
        self._digests = []

    def see(self, shard: int, number: int, flats: Flats) -> None:
        """A bucket has this shard's gradients."""
        if shard == self._shard:
            self._digests.append(_bucket_digest(number, flats))

    def found(self) -> int:
        """The digest of all buckets of the shard."""
        return _whole(self._digests)


def digest_of_gradients(flats: Flats) -> int:
    """The digest of the gradients that the parameters have now; `flats` are overwritten."""
    digests = []
    for number in range(len(flats.buckets)):
        flats.fill(number)
        digests.append(_bucket_digest(number, flats))
    return _whole(digests)


def _bucket_digest(number: int, flats: Flats) -> torch.Tensor:
    return digest(flats.tensors[number][: flats.buckets[number].gradient_size])


def _whole(digests: Sequence[torch.Tensor]) -> int:
    return int(weighed(stacked(digests, torch.int64, digests[0].device)))
