"""What goes wrong in a storm: requests, machines, clocks and controllers, and whether it really did."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from cluster.azure.emulator.emulated_cloud import DELETING, SUCCEEDED, EmulatedMachine
from cluster.azure.emulator.faults import EmulatorFault
from tests.contracts.service.storm_cloud import add_stray, machines_of, node_of

if TYPE_CHECKING:
    from tests.contracts.service.azure_storm import Storm

#: What may go wrong with a request, by what one would call it.
NO_CAPACITY = {"code": "ZonalAllocationFailed", "message": "We do not have sufficient capacity"}
THROTTLED = {"status": 429, "code": "TooManyRequests"}
FAULTS: dict[str, dict[str, Any]] = {
    "a size that is closed, as a conflict": {"at": "create", "status": 409, "code": "SkuNotAvailable"},
    "a used-up quota, as a conflict": {
        "at": "create",
        "status": 409,
        "code": "OperationNotAllowed",
        "message": "exceeding LowPriorityCores quota",
    },
    "throttling with the code of a quota": {
        "at": "create",
        "status": 429,
        "code": "OperationNotAllowed",
        "message": "too many requests",
        "retry_after": 5,
    },
    "a create throttled with a Retry-After": {"at": "create", **THROTTLED, "retry_after": 4},
    "a create throttled without one": {"at": "create", **THROTTLED},
    "a create that stumbles": {"at": "create", "status": 500},
    "a create that is done and stumbles": {"at": "create", "status": 500, "effect": "done-but-refuse"},
    "a create without an answer": {"at": "create", "effect": "lose-answer"},
    "no capacity after the yes, and a machine": {"at": "create-later", **NO_CAPACITY},
    "an eviction during the create": {"at": "create-later", "effect": "evict"},
    "a delete that stumbles": {"at": "delete", "status": 500},
    "a delete that is throttled": {"at": "delete", **THROTTLED, "retry_after": 2},
    "a delete without an answer": {"at": "delete", "effect": "lose-answer"},
    "a delete that leaves parts behind": {"at": "delete", "effect": "leak"},
    "a delete that fails after the yes": {"at": "delete-later", "code": "InternalOperationError"},
    "a list that stumbles": {"at": "list", "status": 500},
    "a list that is throttled": {"at": "list", **THROTTLED, "retry_after": 4},
    "a list that stumbles on page 2": {"at": "list", "status": 500, "page": 2},
    "a list without an answer": {"at": "list", "effect": "lose-answer"},
    "a poll that stumbles": {"at": "poll", "status": 500},
    "a look at a machine that stumbles": {"at": "get", "status": 503},
    "usages that stumble": {"at": "usages", "status": 500},
}

#: What else goes wrong.
OTHERS = (
    "an eviction",
    "an eviction of all",
    "a notice",
    "a machine that breaks",
    "a machine that never joins",
    "a machine that joins twice",
    "clocks that go wrong",
    "a death in the middle",
    "a controller that stands still",
)
#: Each of these is what one seed leads with.
LEADERS = (*FAULTS, *OTHERS)
#: Fine points, which are no seed's leader.
BESIDES = (
    "slow operations",
    "machines that join late",
    "a death at a purchase",
    "a successor whose list stumbles",
    "a successor whose list lags",
    "a machine that no controller requested",
)
WEATHER = (*LEADERS, *BESIDES)
#: What comes as it comes, and how often: half of it is no refused request.
MIXED = (*WEATHER, *OTHERS, *OTHERS)


class Weather:
    """Lets things go wrong with a storm's cloud, machines and controllers, and counts what did."""

    def __init__(self, storm: Storm) -> None:
        self._storm = storm
        #: How often each thing happened that is no fault of a request.
        self.struck: Counter[str] = Counter()
        self._set: dict[str, list[EmulatorFault]] = {}
        #: The process that dies buying has a successor whose list lags.
        self._lags = False

    def has_happened(self, name: str) -> bool:
        """It did, and not merely was meant to."""
        return any(fault.fired for fault in self._set.get(name, [])) or bool(self.struck[name])

    def missing(self, declared: tuple[str, ...]) -> list[str]:
        """What of it has not happened."""
        return [name for name in declared if not self.has_happened(name)]

    def fault(self, name: str) -> None:
        """A request goes wrong, once or twice."""
        times = self._storm.random.randint(1, 2)
        self._put(name, EmulatorFault.model_validate({**FAULTS[name], "times": times}))

    def _put(self, name: str, fault: EmulatorFault) -> None:
        """Let requests meet the fault, unless there is one of this name that none has met yet."""
        if all(one.fired for one in self._set.get(name, [])):
            self._storm.rig.cloud.faults.all.append(fault)
            self._set.setdefault(name, []).append(fault)

    def happen(self, name: str) -> None:
        """One of the things that go wrong happens, if it can."""
        if name in FAULTS:
            self.fault(name)
            if name == "a poll that stumbles":
                # Only what became of a machine that failed is asked for.
                self.fault("no capacity after the yes, and a machine")
            return
        strays = self._storm.books.strays
        ours = [one for one in machines_of(self._storm.rig) if node_of(one) not in strays]
        machines = [one for one in ours if one.state != DELETING]
        running = [one for one in machines if one.state == SUCCEEDED]
        if self._strike(name, machines, running):
            self.struck[name] += 1

    def _strike(self, name: str, machines: list[EmulatedMachine], running: list[EmulatedMachine]) -> bool:
        """It has happened; False also for what will happen later, if it does."""
        storm, choose = self._storm, self._storm.random
        cloud, now = storm.rig.cloud, storm.rig.server.clock()
        match name:
            case "an eviction" if running:
                storm.take([choose.choice(running)])
            case "an eviction of all" if len(running) > 1:
                storm.take(running)
            case "a notice" if running:
                storm.notice(choose.choice(running))
            case "a machine that breaks" if running:
                cloud.fail(choose.choice(running).name, "VMStartTimedOut", "It does not run.", now)
            case "a machine that never joins" if starting := storm.books.not_joined():
                storm.ray.never_join.add(choose.choice(starting))
            case "machines that join late" if storm.ray.never_join:
                storm.ray.never_join.clear()
            case "machines that join late" if storm.books.not_joined():
                # The next time it is asked for.
                self.happen("a machine that never joins")
                return False
            case "a machine that joins twice" if running:
                storm.ray.joined_twice.add(node_of(choose.choice(running)))
            case "clocks that go wrong":
                storm.rig.server.clock.skew_s = choose.uniform(-240.0, 240.0)
                storm.ray.skew_s = choose.uniform(-240.0, 240.0)
            case "slow operations":
                cloud.create_s, cloud.delete_s = choose.choice([(0.0, 6.0), (6.0, 0.0), (6.0, 6.0)])
            case "a machine that no controller requested":
                stray = f"node_stray_{len(storm.books.strays)}"
                storm.books.strays.add(stray)
                add_stray(storm.rig, stray)
            case "a successor whose list stumbles" if len(machines) > cloud.page_size:
                self._put(name, EmulatorFault.model_validate(FAULTS["a list that stumbles on page 2"]))
                storm.succeed()
                return False
            case _:
                self._doom(name)
                return False
        return True

    def _doom(self, name: str) -> None:
        """A process will die, or stand still, at one of its next calls; it counts once that has happened."""
        life, choose = self._storm.life, self._storm.random
        match name:
            case "a death in the middle":
                life.left = choose.randint(1, 14)
                life.dies_after = choose.random() < 0.5
            case "a controller that stands still":
                life.left, life.meanwhile = choose.randint(1, 14), self._storm.stand_still
            case "a death at a purchase":
                life.dies_buying, life.dies_after = True, choose.random() < 0.5
            case "a successor whose list lags":
                life.dies_buying = life.dies_after = self._lags = True

    def died(self) -> None:
        """A process has died in the middle of what it did; lists may lack for a tick what it has just bought."""
        cloud, life = self._storm.rig.cloud, self._storm.life
        self.struck["a death in the middle"] += 1
        self.struck["a death at a purchase"] += life.died_buying
        if self._lags:
            requested = self._storm.books.requested()
            cloud.unlisted = {m.name for m in machines_of(self._storm.rig) if node_of(m) in requested}
            self.struck["a successor whose list lags"] += bool(cloud.unlisted)
            self._lags = False

    def end(self) -> None:
        """Nothing goes wrong any more."""
        cloud, life = self._storm.rig.cloud, self._storm.life
        cloud.faults.all.clear()
        cloud.create_s = cloud.delete_s = 0.0
        life.left, life.dies_buying = None, False
