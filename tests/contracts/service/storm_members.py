"""What Ray says of the machines in a storm."""

from __future__ import annotations

import random
from collections.abc import Mapping

from cluster.azure.emulator.emulated_cloud import SUCCEEDED
from cluster.ray.heartbeats import AgentStatus, Heartbeat
from cluster.ray.members import MemberNode, chosen, doubtful
from tests.contracts.cluster.azure_rig import AzureRig
from tests.contracts.service.storm_cloud import machines_of, node_of

#: Seconds for which Ray believes in a machine that is gone.
BELIEF_S = 6.0


class Ray:
    """Machines that run join by themselves, and are believed in for some seconds once they are gone."""

    def __init__(self, rig: AzureRig, choose: random.Random) -> None:
        self._rig = rig
        self._random = choose
        self._addresses: dict[str, str] = {}
        self._seen_at: dict[str, float] = {}
        #: When each draining node has to be gone, and why, where its agent says so.
        self.draining: dict[str, float] = {}
        self.leaves: dict[str, str] = {}
        self.never_join: set[str] = set()
        self.joined_twice: set[str] = set()
        #: Seconds by which the clocks of machines go wrong.
        self.skew_s = 0.0

    def running(self) -> dict[str, str]:
        """Addresses of the nodes whose machines run and have joined, by node id."""
        names = [node_of(one) for one in machines_of(self._rig) if one.state == SUCCEEDED]
        return {name: self._address(name) for name in names if name not in self.never_join}

    def _address(self, node_id: str) -> str:
        number = len(self._addresses)
        return self._addresses.setdefault(node_id, f"10.0.{number // 200}.{number % 200 + 1}")

    def drain(self, node_id: str, deadline_at: float) -> None:
        """Give a node no more work."""
        if node_id not in self.running():
            raise ConnectionError(f"{node_id} is no member")
        self.draining[node_id] = deadline_at

    def observe(self) -> Mapping[str, MemberNode]:
        """What Ray says of all nodes that it has not forgotten, in no order."""
        now, running = self._rig.clock(), self.running()
        self._seen_at |= dict.fromkeys(running, now)
        reported: list[MemberNode] = []
        for name, seen_at in self._seen_at.items():
            is_believed = now - seen_at < BELIEF_S
            reported.append(self._member(name, f"{name}-new", is_alive=is_believed))
            if name in self.joined_twice:
                # What began first: it may be called alive for as long, and drains by its own account.
                is_ghost = is_believed and self._random.random() < 0.7
                reported.append(self._member(name, f"{name}-old", is_alive=is_ghost))
        self._random.shuffle(reported)
        began = {one.ray_node_id: float(one.ray_node_id.endswith("-new")) for one in reported}
        return chosen(reported, began if doubtful(reported) else {})

    def _member(self, name: str, ray_node_id: str, *, is_alive: bool) -> MemberNode:
        drains = is_alive and name in self.draining and ray_node_id.endswith("-new")
        return MemberNode(
            node_id=name,
            ray_node_id=ray_node_id,
            address=self._address(name),
            is_alive=is_alive,
            is_draining=drains,
            resources={"CPU": 4.0} if is_alive else {},
            deadline_at=self.draining[name] if drains else None,
            agent=AgentStatus(
                heartbeat=Heartbeat(at=self._rig.clock() + self.skew_s, leaves=self.leaves.get(name))
            ),
        )
