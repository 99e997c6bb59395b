"""What there is, as the provider and Ray say it; it takes as long as they do."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.provider import Provider, Unauthorized
from service.loops.ports import Drains, Membership, Supply
from service.loops.seeing import Machines, Members


class Unseen(Exception):
    """The provider or Ray does not say what there is."""


@dataclass(frozen=True)
class Hands:
    """What acts on nodes, and what they can be bought as."""

    provider: Provider
    membership: Membership
    supply: Supply
    drains: Drains
    #: Nodes are bought and returned as the policies say; False where they cost nothing: each pool is kept at its
    #: maximum, whatever jobs there are.
    follows_policies: bool = True


@dataclass(frozen=True)
class Seen:
    """Machines and members, by node id."""

    machines: Machines
    members: Members


def look(hands: Hands) -> Seen:
    """Ask both.  Raises Unseen: what cannot be seen is not acted upon, and a failed list is never an empty list."""
    try:
        machines = {machine.node_id: machine for machine in hands.provider.list()}
        return Seen(machines, hands.membership.observe())
    except Unauthorized as error:
        raise Unseen(f"{error}; look at the controller's identity and its roles") from error
    except Exception as error:
        raise Unseen(str(error)) from error
