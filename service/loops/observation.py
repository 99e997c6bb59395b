"""Observes the cluster: which machines the provider lists, and which members Ray has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cluster.provider import Provider, Unauthorized
from cluster.scheduling.ray_programs import RayDemand
from service.interfaces import Drains, Membership, Preflights, RayPrograms, Supply
from service.loops.planner_view import Machines, Members


class ObservationFailed(Exception):
    """The provider or Ray did not answer; the message is one sentence for operators."""


def withhold_none(_: str) -> None:
    """The default of `withhold` where a machine ends with its node."""


@dataclass(frozen=True)
class ClusterAccess:
    """The interfaces through which nodes are observed, launched, drained and deleted, and the offerings."""

    provider: Provider
    membership: Membership
    supply: Supply
    drains: Drains
    #: Nodes are bought and returned as the policies say.  False where they cost nothing: each pool is kept at its
    #: maximum, independent of the jobs.
    follows_policies: bool = True
    #: What Ray programs ask for; None: they are not served.
    ray_programs: RayPrograms | None = None
    #: Has nodes measured before they get work; None: they are ready as soon as they have joined.
    preflights: Preflights | None = None
    #: Called with the id of a node that computes wrongly, before it is deleted, so that its machine is not used again.
    withhold: Callable[[str], None] = withhold_none


@dataclass(frozen=True)
class ClusterObservation:
    """Machines of the provider and members of the Ray cluster, by node id."""

    machines: Machines
    members: Members
    #: What Ray programs ask for and hold; None: it was not asked.
    ray_demand: RayDemand | None = None


def observe_cluster(access: ClusterAccess) -> ClusterObservation:
    """Ask the provider and Ray, for as long as they take.

    Raises ObservationFailed when one of them does not answer: a failed list is never taken for an empty one.
    """
    try:
        machines = {machine.node_id: machine for machine in access.provider.list()}
        members = access.membership.observe()
        asked = None if access.ray_programs is None else access.ray_programs.observe()
        return ClusterObservation(machines, members, asked)
    except Unauthorized as error:
        raise ObservationFailed(f"{error}; look at the controller's identity and its roles") from error
    except Exception as error:
        raise ObservationFailed(str(error)) from error
