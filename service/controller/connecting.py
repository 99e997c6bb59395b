"""How the controller comes to its cluster: where the Ray head is, and what acts there and in the cloud."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cluster.provider import Provider
from service.loops.ports import Drains, Launcher, Membership, Rehearsal, Supply
from service.settings import Settings
from service.steady_clock import CLOCK


def _nothing() -> None:
    """What has to be ended where nothing is open."""


@dataclass(frozen=True)
class Cluster:
    """The hands of the controller."""

    launcher: Launcher
    provider: Provider
    membership: Membership
    #: What nodes can be bought as.
    supply: Supply
    #: Tells Ray to give nodes no more work.
    drains: Drains
    #: Takes nodes for a rehearsal; None where that is not possible.
    rehearsal: Rehearsal | None = None
    #: Nodes are bought and returned as the policies say; False: every pool is kept full.
    follows_policies: bool = False
    #: Seconds between two looks at the cloud at least, now: clouds count how often they are asked.
    look_s: Callable[[], float] = lambda: 0.0
    #: Ends the connections that it has of its own; nothing may be asked through them any more.
    close: Callable[[], None] = _nothing
    #: Ray is not asked by `membership`, `drains` and `rehearsal` from now on; waits for a question under way.
    leave_ray: Callable[[], None] = _nothing


def ray_address(settings: Settings) -> str | None:
    """Where the Ray head is, or None while nobody has said it."""
    if settings.ray_address:
        return settings.ray_address
    try:
        return (settings.home / "ray.address").read_text().strip() or None
    except OSError:
        return None


def connect(settings: Settings, address: str) -> Cluster:
    """Connect this process to the Ray cluster and give it hands; the cloud is not asked anything yet.

    Raises what Ray raises, and CloudUnusable.
    """
    import ray

    from cluster.ray.drain import RayDrains
    from cluster.ray.membership import RayMembership
    from service.clouds.clouds import cloud_of
    from service.controller.deadlines import TimedDrains, TimedMembership, TimedRehearsal
    from trainers.launch import RayLauncher

    membership = RayMembership()
    # Before Ray: what keeps the cloud from being used is told without a connection that nobody needs.
    cloud = cloud_of(settings, address, membership)
    try:
        if ray.is_initialized():
            ray.shutdown()
        ray.init(address=address, namespace="remora", log_to_driver=False, configure_logging=False)
    except BaseException:
        cloud.close()
        raise
    return Cluster(
        RayLauncher(ready_drivers=settings.ready_drivers, forks=bool(settings.forked_modules)),
        cloud.provider,
        TimedMembership(membership, CLOCK),
        cloud.supply,
        rehearsal=None if cloud.rehearsal is None else TimedRehearsal(cloud.rehearsal, CLOCK),
        drains=TimedDrains(RayDrains(membership), CLOCK),
        follows_policies=cloud.follows_policies,
        look_s=cloud.look_s,
        close=cloud.close,
        leave_ray=membership.leave,
    )
