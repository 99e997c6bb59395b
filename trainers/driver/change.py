"""One change of a worker group in place: scripts park, get new ranks and join again (pure; time is an argument).

Events are the methods of `Change`; each answers with the effects that `in_place.py` carries out.  Who stays and who
joins is in `regrouping.py`.  `docs/states.md` shows the edges.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from remora.spec.worker_sizes import WorkerSizes
from trainers.driver.regrouping import Cause, Regrouping
from trainers.driver.repeated_failures import RepeatedFailures
from trainers.driver.verdict import Verdict, too_few_workers

#: Seconds without events after which workers are checked for being dead.
QUIET_S = 1.0
#: Seconds in which a new group has to work before ranks are assigned again; doubled with every try, up to the second.
JOIN_S, JOIN_CAP_S = 30.0, 3600.0


class ChangeState(StrEnum):
    """How far a change has come."""

    AGREED = "agreed"
    PARTING = "parting"
    SHORT = "short"
    PREPARING = "preparing"
    JOINING = "joining"
    DONE = "done"
    DROPPED = "dropped"


#: What each state means.
CHANGE_MEANINGS: Mapping[ChangeState, str] = {
    ChangeState.AGREED: "The scripts park at the step that they agreed on.",
    ChangeState.PARTING: "The scripts were asked to park now.",
    ChangeState.SHORT: "All are parked and hold the state, and too few for the smallest size.",
    ChangeState.PREPARING: "All are parked; each is asked whether it answers, and rank 0's node for a free port.",
    ChangeState.JOINING: "The scripts have their new ranks, and build their process groups.",
    ChangeState.DONE: "Every worker has joined the next worker group.",
    ChangeState.DROPPED: "The worker group as a whole ends.",
}

_NO_WAY_ON = "no worker holds the state any more, the same step failed too often, or the worker group ends"

#: What leads from one state to another.
CHANGE_EDGES: Mapping[tuple[ChangeState, ChangeState], str] = {
    (ChangeState.AGREED, ChangeState.PARTING): "a worker was lost, or not all parked in time",
    (ChangeState.AGREED, ChangeState.PREPARING): "all are parked",
    (ChangeState.AGREED, ChangeState.DROPPED): "no worker holds the state, or the worker group ends",
    (ChangeState.PARTING, ChangeState.SHORT): "all that are left are parked, and too few",
    (ChangeState.PARTING, ChangeState.PREPARING): "all that are left are parked",
    (ChangeState.PARTING, ChangeState.DROPPED): _NO_WAY_ON,
    (ChangeState.SHORT, ChangeState.PREPARING): "enough workers are there",
    (ChangeState.SHORT, ChangeState.DROPPED): "too few came in time, or " + _NO_WAY_ON,
    (ChangeState.PREPARING, ChangeState.SHORT): "a worker was lost, and too few are left",
    (ChangeState.PREPARING, ChangeState.JOINING): "all of them answer",
    (ChangeState.PREPARING, ChangeState.DROPPED): _NO_WAY_ON,
    (ChangeState.JOINING, ChangeState.PARTING): "a worker was lost, parked again, or did not join in time",
    (ChangeState.JOINING, ChangeState.DONE): "all have joined",
    (ChangeState.JOINING, ChangeState.DROPPED): "the worker group ends",
}


@dataclass(frozen=True)
class CountLoss:
    """Workers were lost: time counts as lost until the next new step."""


@dataclass(frozen=True)
class FindDead:
    """Look which of these slots are dead; `Change.looked` follows on the answer."""

    slots: tuple[int, ...]


@dataclass(frozen=True)
class SendPark:
    """Ask the scripts of these slots to leave that worker group; those that do not answer are lost."""

    slots: frozenset[int]
    generation: int


@dataclass(frozen=True)
class LeaveBehind:
    """These slots do not answer, or hang, which is ended: the others go on without them."""

    slots: frozenset[int]
    is_hanging: bool = False


@dataclass(frozen=True)
class ReportShort:
    """Report that no worker trains."""


@dataclass(frozen=True)
class Prepare:
    """Ask these slots for an answer, and the first one's node for a free port; `Change.prepared` takes the answers."""

    members: tuple[int, ...]


@dataclass(frozen=True)
class AssignRanks:
    """Give these slots their ranks in the next worker group, whose rendezvous has that port; silent ones are lost."""

    members: tuple[int, ...]
    port: int


@dataclass(frozen=True)
class Finish:
    """The next worker group works."""

    size: int
    cause: Cause
    pause_s: float
    #: Where that went: until all were parked and the lost ones known, until each had answered, and until all had joined
    #: with their new ranks.
    park_s: float = 0.0
    prepare_s: float = 0.0
    join_s: float = 0.0


@dataclass(frozen=True)
class End:
    """End the worker group: with the attempt, or, without a verdict, so that another one starts from the storage."""

    verdict: Verdict | None = None


Effect = CountLoss | FindDead | SendPark | LeaveBehind | ReportShort | Prepare | AssignRanks | Finish | End
Effects = tuple[Effect, ...]


class WrongState(Exception):
    """A change went on in a way that no edge allows."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a change has to keep to."""

    sizes: WorkerSizes
    #: Seconds in which a script parks that is well.
    park_s: float
    #: Seconds for which too few workers wait for others.
    regroup_s: float


class Change:
    """The state of one change, from the first script that parks, or worker that is lost, to the next worker group."""

    def __init__(self, regrouping: Regrouping, limits: Limits, failures: RepeatedFailures) -> None:
        self._regrouping = regrouping
        self._limits = limits
        self._failures = failures
        self._state = ChangeState.AGREED if regrouping.cause != "loss" else ChangeState.PARTING
        #: When the state has lasted too long.
        self._until = math.inf
        self._join_s = JOIN_S
        #: The next worker group, in the order of its ranks.
        self._members: tuple[int, ...] = ()
        #: Those of them that have not joined it yet.
        self._awaited: set[int] = set()
        #: Workers that are parked and were in no worker group yet, with the step of their state.
        self._joiners: dict[int, int] = {}
        self._quiet_since = self._parked_at = self._assigned_at = regrouping.began_at
        self._is_looking = False

    @property
    def state(self) -> ChangeState:
        """How far it has come."""
        return self._state

    @property
    def is_over(self) -> bool:
        """True when it is done or dropped."""
        return self._state in (ChangeState.DONE, ChangeState.DROPPED)

    # --- events; none of them does anything once the change is over

    def begin(self, now: float) -> Effects:
        """The first event."""
        if self._state is ChangeState.PARTING:
            return (CountLoss(), *self._send_park(now), *self._go_on(now))
        self._until = now + self._limits.park_s
        return self._go_on(now)

    def park(self, slot: int, step: int, now: float, *, is_planned: bool) -> Effects:
        """A script is parked with the state after that step: as agreed, as asked, or because its peers are gone."""
        if self.is_over:
            return ()
        self._quiet_since = now
        self._regrouping.park(slot, step)
        is_planned = is_planned and self._state is ChangeState.AGREED
        return (*(() if is_planned else self._break(now)), *self._go_on(now))

    def lose(self, slots: Iterable[int], now: float) -> Effects:
        """These are gone: workers of the group, or such that were to join it."""
        gone = set(slots).intersection((*self._regrouping.staying, *self._joiners))
        if self.is_over or not gone:
            return ()
        self._quiet_since = now
        is_loss = not gone <= self._joiners.keys()
        for slot in gone:
            self._joiners.pop(slot, None)
        self._regrouping.lose(gone)
        return (*(self._break(now) if is_loss else ()), *self._go_on(now))

    def admit(self, joiners: Mapping[int, int], on_demand: set[int], now: float) -> Effects:
        """New workers are parked, with the step of their state: they have a part in the next try to form a group."""
        self._joiners.update(joiners)
        self._regrouping.on_demand |= on_demand
        return self._go_on(now)

    def drain(self, slots: set[int], now: float) -> Effects:
        """The nodes of these are to go."""
        self._regrouping.draining |= slots
        return self._go_on(now)

    def looked(self, now: float) -> Effects:
        """A look at the workers has ended; those that it found dead are lost."""
        self._is_looking = False
        self._quiet_since = now
        return ()

    def prepared(self, members: tuple[int, ...], silent: set[int], port: int | None, now: float) -> Effects:
        """Those that were asked have answered, except for the silent ones."""
        if self._state is not ChangeState.PREPARING or members != self._members:
            return ()
        if port is None:
            silent = silent | {members[0]}
        if silent or port is None:
            # Parked workers that do not answer are gone or frozen.
            return (LeaveBehind(frozenset(silent)), *self.lose(silent, now))
        self._assigned_at = now
        self._enter(ChangeState.JOINING, now + self._join_s)
        self._join_s = min(JOIN_CAP_S, 2 * self._join_s)
        for slot in members:
            self._joiners.pop(slot, None)
        self._awaited = set(members)
        self._failures.begin()
        self._regrouping.try_again(self._regrouping.generation + 1, members)
        return (AssignRanks(members, port),)

    def join(self, slot: int, now: float) -> Effects:
        """A script works in its new group."""
        if self._state is not ChangeState.JOINING:
            return ()
        self._quiet_since = now
        self._failures.join(slot)
        self._awaited.discard(slot)
        return self._go_on(now)

    def tick(self, now: float) -> Effects:
        """What follows from time alone."""
        if self.is_over:
            return ()
        if now >= self._until:
            return self._run_out(now)
        return self._look() if now - self._quiet_since >= QUIET_S else ()

    def drop(self) -> None:
        """The worker group as a whole ends."""
        if not self.is_over:
            self._enter(ChangeState.DROPPED)

    # --- what follows from them

    def _go_on(self, now: float) -> Effects:
        """Go as far as what is known allows."""
        if self.is_over:
            return ()
        if self._state is ChangeState.JOINING:
            return () if self._awaited else self._finish(now)
        one = self._regrouping
        for slot, step in self._joiners.items():
            if slot not in one.parked:
                one.admit(slot)
                one.park(slot, step)
        if one.missing:
            return ()
        # 1. No worker holds the state any more: only the storage has it.
        if one.is_hopeless:
            return self._end()
        # 2. They all hold it, and fail at the same step every time.
        if verdict := self._failures.judge(frozenset(one.staying), one.newest_step):
            return self._end(verdict)
        # 3. Too few hold it: they wait for others, but not for ever.
        if one.is_short(self._limits.sizes):
            if self._state is ChangeState.SHORT:
                return ()
            self._enter(ChangeState.SHORT, now + self._limits.regroup_s)
            return (ReportShort(),)
        # 4. They are the next group, if each of them still answers.
        members = tuple(one.next_members(self._limits.sizes))
        if self._state is ChangeState.PREPARING and members == self._members:
            return ()
        self._members, self._parked_at = members, now
        self._enter(ChangeState.PREPARING)
        return (Prepare(members),)

    def _break(self, now: float) -> Effects:
        """Something happened that was not agreed on: from now on it is a loss, and a group that forms has to park."""
        effects: Effects = ()
        if self._regrouping.cause != "loss":
            self._regrouping.cause = "loss"
            effects = (CountLoss(),)
        if self._state in (ChangeState.AGREED, ChangeState.JOINING):
            effects += self._send_park(now)
        return effects

    def _send_park(self, now: float) -> Effects:
        self._enter(ChangeState.PARTING, now + self._limits.park_s)
        # What a script says that was asked to park is no failure.
        self._failures.begin()
        send = SendPark(frozenset(self._regrouping.missing), self._regrouping.generation)
        return (*self._look(), send)

    def _look(self) -> Effects:
        if self._is_looking:
            return ()
        self._is_looking = True
        return (FindDead(tuple(self._regrouping.staying)),)

    def _run_out(self, now: float) -> Effects:
        """The state has lasted too long."""
        if self._state is ChangeState.SHORT:
            return self._end(too_few_workers(self._limits.sizes.min, self._limits.regroup_s))
        if self._state is ChangeState.PARTING:
            hanging = frozenset(self._regrouping.missing)
            return (LeaveBehind(hanging, is_hanging=True), *self.lose(hanging, now))
        return self._break(now)

    def _end(self, verdict: Verdict | None = None) -> Effects:
        self._enter(ChangeState.DROPPED)
        return (End(verdict),)

    def _finish(self, now: float) -> Effects:
        self._enter(ChangeState.DONE)
        one = self._regrouping
        times = (now - one.began_at, self._parked_at - one.began_at, self._assigned_at - self._parked_at)
        seconds = [round(one_s, 3) for one_s in (*times, now - self._assigned_at)]
        return (Finish(len(self._members), one.cause, *seconds),)

    def _enter(self, state: ChangeState, until: float = math.inf) -> None:
        if state is not self._state and (self._state, state) not in CHANGE_EDGES:
            raise WrongState(f"no edge leads from {self._state.value} to {state.value}")
        self._state, self._until = state, until
