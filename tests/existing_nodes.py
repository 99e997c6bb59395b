"""An existing Ray cluster in memory, for tests of what claims its nodes."""

from __future__ import annotations

from dataclasses import dataclass, field

from cluster.ray.node_claims import Claim, RayNode


@dataclass
class FewNodes:
    """An existing cluster in memory, with the rule of Ray's store: the first entry under a key stays."""

    seen: list[RayNode]
    entries: dict[str, Claim] = field(default_factory=dict)
    answers: bool = True
    #: Another service that uses it.
    other: str = ""
    #: False: it does not write down which nodes are sick.
    takes_notes: bool = True
    withheld: set[str] = field(default_factory=set)

    def nodes(self) -> list[RayNode]:
        self._asked()
        return self.seen

    def claims(self) -> list[Claim]:
        self._asked()
        return list(self.entries.values())

    def claim(self, claim: Claim) -> bool:
        self._asked()
        return self.entries.setdefault(claim.ray_node_id, claim).node_id == claim.node_id

    def release(self, ray_node_id: str) -> None:
        self._asked()
        self.entries.pop(ray_node_id, None)

    def rewrite(self, claim: Claim) -> None:
        self._asked()
        self.entries[claim.ray_node_id] = claim

    def other_owner(self) -> str:
        self._asked()
        return self.other

    def sick(self) -> set[str]:
        self._asked()
        return set(self.withheld)

    def set_sick(self, ray_node_id: str, *, is_sick: bool) -> None:
        self._asked()
        if not self.takes_notes:
            raise RuntimeError("the head does not answer")
        (self.withheld.add if is_sick else self.withheld.discard)(ray_node_id)

    def _asked(self) -> None:
        if not self.answers:
            raise RuntimeError("the head does not answer")


def node(number: int, **resources: float) -> RayNode:
    return RayNode(
        id=f"{number:056x}", address=f"10.0.0.{number}", is_alive=True, resources=resources or {"CPU": 4.0}
    )
