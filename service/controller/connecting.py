"""Connects the controller to its Ray cluster and its cloud."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

from cluster.provider import Provider
from service import interfaces
from service.interfaces import Drains, Launcher, Membership, Rehearsal, Supply
from service.loops.observation import withhold_none
from service.settings import Settings
from service.steady_clock import CLOCK
from service.storage_locations import open_storage
from trainers.storage_grants import Scopes


def _nothing() -> None:
    """The default of `close` and `leave_ray` where nothing is open."""


def _serve_none(_: Mapping[str, Scopes]) -> None:
    """The default of `serve_storage` where no storage needs it."""


@dataclass(frozen=True)
class ClusterConnection:
    """Everything that the controller calls in the Ray cluster and in the cloud."""

    launcher: Launcher
    provider: Provider
    membership: Membership
    #: What nodes can be bought as.
    supply: Supply
    #: Has Ray give nodes no more work.
    drains: Drains
    #: Takes nodes for a drill; None where that is not possible.
    rehearsal: Rehearsal | None = None
    #: Nodes are bought and returned as the policies say; False: every pool is kept full.
    follows_policies: bool = False
    #: What Ray programs that are no jobs ask for; None where that is not known.
    ray_programs: interfaces.RayPrograms | None = None
    #: Has nodes measured before they get work; None where that is not possible.
    preflights: interfaces.Preflights | None = None
    #: Reaches the shells of attempts; None where there are none.
    shells: interfaces.ShellTransport | None = None
    #: Seconds between two observations of the cloud at least, now: clouds count requests.
    observation_interval_s: Callable[[], float] = lambda: 0.0
    #: Answers what these attempts, by id, ask of storages, and no others; does not wait.
    serve_storage: Callable[[Mapping[str, Scopes]], None] = _serve_none
    #: Keeps the machine of a node that computes wrongly from being used again; called before the node is deleted.
    withhold: Callable[[str], None] = withhold_none
    #: Closes its own connections; no call may be made through them afterwards.
    close: Callable[[], None] = _nothing
    #: `membership`, `drains`, `rehearsal` and `shells` do not call Ray from now on; waits for a call under way.
    leave_ray: Callable[[], None] = _nothing


def ray_address(settings: Settings) -> str | None:
    """Address of the Ray head (`host:port`), or None while it is not known."""
    if settings.ray_address:
        return settings.ray_address
    try:
        return (settings.cluster_home / "ray.address").read_text().strip() or None
    except OSError:
        return None


def connect(settings: Settings, address: str) -> ClusterConnection:
    """Connect this process to the Ray cluster; no request is sent to the cloud yet.

    Raises what Ray raises, and CloudUnusable.
    """
    import ray

    from cluster.existing.packages import brought
    from cluster.ray.drain import RayDrains
    from cluster.ray.membership import RayMembership
    from cluster.ray.programs import RayPrograms
    from service.clouds.clouds import cloud_of
    from service.controller.deadlines import TimedDrains, TimedMembership, TimedRehearsal
    from service.storage_broker import StorageBroker, granted_code
    from trainers.launch import RayLauncher
    from trainers.preflight.tasks import RayPreflights
    from trainers.shell_transport import RayShellTransport
    from trainers.storage_server import StorageServer

    is_existing = settings.cloud == "existing"
    membership = RayMembership(are_claimed=is_existing)
    # Before Ray: settings that the cloud cannot use are reported without a connection to Ray.
    cloud = cloud_of(settings, address, membership)
    try:
        if ray.is_initialized():
            ray.shutdown()
        with brought(settings.home) if is_existing else nullcontext() as runtime_env:
            ray.init(
                address=address,
                namespace="remora",
                log_to_driver=False,
                configure_logging=False,
                runtime_env=runtime_env,
            )
    except BaseException:
        cloud.close()
        raise
    broker = StorageBroker(settings.storage_credentials)
    storage_server = StorageServer(broker.answer)

    shell_transport = RayShellTransport()

    def close() -> None:
        storage_server.close()
        cloud.close()

    def leave_ray() -> None:
        membership.leave()
        shell_transport.leave()

    return ClusterConnection(
        RayLauncher(
            ready_drivers=settings.ready_drivers,
            forks=bool(settings.forked_modules),
            prestarts=not is_existing,
            open_storage=partial(open_storage, settings),
            granted=partial(granted_code, broker),
        ),
        cloud.provider,
        TimedMembership(membership, CLOCK),
        cloud.supply,
        rehearsal=None if cloud.rehearsal is None else TimedRehearsal(cloud.rehearsal, CLOCK),
        drains=TimedDrains(cloud.drains or RayDrains(membership), CLOCK),
        follows_policies=cloud.follows_policies,
        ray_programs=RayPrograms(membership),
        preflights=RayPreflights(),
        shells=shell_transport,
        observation_interval_s=cloud.observation_interval_s,
        serve_storage=storage_server.serve,
        withhold=cloud.withhold or withhold_none,
        close=close,
        leave_ray=leave_ray,
    )
