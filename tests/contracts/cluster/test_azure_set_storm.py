"""Scale sets under a dozen seeds of faults, evictions, deletions and deaths of the controller."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Iterator

import pytest

from cluster.provider import NodeRequest, ProviderError, Throttled
from tests.contracts.cluster.azure_rig import IB_SIZE, AzureRig

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(600)]

SEEDS = range(12)
#: Of them each eighth is among the other tests, and all are in `make soak`.
STORMS = [pytest.param(seed, marks=pytest.mark.soak if seed % 8 else ()) for seed in SEEDS]
TICKS = 30
NODES = 4
DOMAINS = ("gpu-job_1", "gpu-job_2")
LOST = [
    {"status": 500},
    {"status": 500, "effect": "done-but-refuse"},
    {"effect": "lose-answer"},
    {"status": 409, "code": "Conflict"},
    {"status": 429, "code": "TooManyRequests", "retry_after": 3},
]
FAULTS = [
    *({"at": at, **how} for at in ("create", "update-set", "claim", "delete") for how in LOST),
    {"at": "update-set", "status": 412, "code": "ConditionNotMet"},
    {"at": "create-later", "code": "AllocationFailed", "message": "no capacity"},
    {"at": "create-later", "effect": "evict"},
    {"at": "delete-later", "code": "InternalOperationError", "message": "try again"},
    *({"at": at, "status": 500} for at in ("list", "list-sets", "list-instances", "get", "poll", "view")),
]


class Storm:
    """Requests nodes as the controller does: it makes what is requested, and deletes all else."""

    def __init__(self, rig: AzureRig, seed: int) -> None:
        self.rig = rig
        self.random = random.Random(seed)
        #: Domain of each node that is requested.
        self.requested: dict[str, str] = {}
        #: Nodes that were seen; one that is not seen any more is lost.
        self.seen: set[str] = set()
        self.made = 0
        self.rages = True

    def tick(self) -> None:
        """Look, give up what is lost or broken, delete what was never requested, and ask for the rest."""
        self.rig.clock.passed_s += self.random.choice([1.0, 2.0, 7.0])
        try:
            nodes = {node.node_id: node for node in self.rig.list()}
        except ProviderError:
            return
        for name in self.seen - nodes.keys():
            self.requested.pop(name, None)
        for name, node in nodes.items():
            if not node.is_running or (self.rages and self.random.random() < 0.03):
                self.requested.pop(name, None)
            if name not in self.requested:
                with contextlib.suppress(ProviderError):
                    self.rig.delete(name)
        self.seen = set(nodes) & self.requested.keys()
        while len(self.requested) < NODES:
            self.made += 1
            self.requested[f"node_{self.made}"] = self.random.choice(DOMAINS)
        for name in self.requested.keys() - nodes.keys():
            self.ask(name)

    def ask(self, name: str) -> None:
        offering = f"{IB_SIZE}/1/spot"
        node_request = NodeRequest(
            node_id=name, pool="gpu", resources={}, offering=offering, fabric=self.requested[name]
        )
        try:
            self.rig.create(node_request)
            self.seen.add(name)
        except Throttled:
            pass
        except ProviderError:
            del self.requested[name]

    def strike(self) -> None:
        """Something goes wrong, or nothing."""
        machines = list(self.rig.state()["machines"])
        match self.random.randrange(8):
            case 0 | 1 | 2 | 3:
                self.rig.fault(**{**self.random.choice(FAULTS), "times": self.random.randint(1, 2)})
            case 4 if machines:
                self.rig.control(f"machines/{self.random.choice(machines)}/evict", {})
            case 5 if machines:
                self.rig.control(f"machines/{self.random.choice(machines)}/fail", {})
            case 6:
                self.rig.azure = self.rig.another()
            case _:
                self.rig.knobs(create_s=self.random.choice([0, 0, 6]), delete_s=self.random.choice([0, 0, 6]))

    def check(self) -> None:
        """What holds at every moment."""
        claimed = Counter(one["node"] for one in self.rig.state()["machines"].values() if one["node"])
        assert max(claimed.values(), default=0) <= 1, "a node has two machines"


@pytest.fixture
def rig() -> Iterator[AzureRig]:
    with AzureRig(manual_clock=True) as rig:
        rig.knobs(page_size=2)
        yield rig


@pytest.mark.parametrize("seed", STORMS)
def test_after_any_storm_there_are_the_requested_nodes_and_nothing_else(rig: AzureRig, seed: int) -> None:
    storm = Storm(rig, seed)
    for _ in range(TICKS):
        storm.strike()
        storm.tick()
        storm.check()
    storm.rages = False
    rig.server.cloud.faults.all.clear()
    rig.knobs(create_s=0, delete_s=0)
    for _ in range(15):
        rig.clock.passed_s += 20.0
        storm.tick()
        storm.check()
    state = rig.state()
    assert sorted(one["node"] for one in state["machines"].values()) == sorted(storm.requested)
    assert {one["state"] for one in state["machines"].values()} == {"Succeeded"}
    numbers = Counter(one["set"] for one in state["machines"].values())
    assert {name: one["capacity"] for name, one in state["sets"].items() if one["capacity"]} == numbers
