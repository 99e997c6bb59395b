"""Which network interfaces and disks were left behind by machines that are gone (pure)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from cluster.azure.arm import SeenResource
from cluster.azure.body import CLUSTER_TAG, part_of

#: Seconds for which something has to be without a machine before it goes.  An interface exists for some seconds
#: before its machine does, and a machine takes a minute or two to take its parts with it.
GRACE_S = 300.0


def orphans(
    cluster: str,
    resources: Iterable[SeenResource],
    being_made: Collection[str],
    seen: Mapping[str, float],
    now: float,
) -> tuple[list[SeenResource], dict[str, float]]:
    """What to delete, and since when (seconds since 1970) each thing without a machine has been seen so.

    `seen` is what the last look returned.  Things of other clusters, attached ones, and those whose name begins with
    that of a machine that is being made are left alone.  A machine that is made has its parts: what bears its name
    and hangs on nothing is of an earlier machine of that name.
    """
    lower = [name.lower() for name in being_made]
    alone = {
        one.id.lower(): one
        for one in resources
        if _is_ours(cluster, one)
        and not one.is_attached
        and not any(one.name.lower().startswith(name) for name in lower)
    }
    since = {key: seen.get(key, now) for key in alone}
    return [one for key, one in alone.items() if now - since[key] >= GRACE_S], since


def _is_ours(cluster: str, part: SeenResource) -> bool:
    """By its tag, or by the name of our machine with which its own begins: its tags may have been replaced."""
    return part.tags.get(CLUSTER_TAG) == cluster or part_of(cluster, part.name)
