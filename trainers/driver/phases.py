"""The phases of an attempt in its driver, and why it ends (pure; time is an argument).

Events are the methods of `Lifecycle`; each answers with the effects that the driver has to carry out.  This is the only
place where a phase, a reason to stop or a verdict is written.  While the worker group changes in place, the phase
follows from the state of the change (`change.py`).  `docs/states.md` shows the edges.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from remora.states import EndReason
from trainers.driver.change import Change, ChangeState
from trainers.driver.verdict import Verdict


class Phase(StrEnum):
    """What an attempt is doing."""

    FORMING = "forming"
    TRAINING = "training"
    PARKING = "parking"
    WAITING = "waiting"
    JOINING = "joining"
    STOPPING = "stopping"
    ENDED = "ended"

    @property
    def is_changing(self) -> bool:
        """True while the worker group changes in place."""
        return self in (Phase.PARKING, Phase.WAITING, Phase.JOINING)


#: What each phase means.
MEANINGS: Mapping[Phase, str] = {
    Phase.FORMING: "No worker group exists: its workers are waited for, or being started.",
    Phase.TRAINING: "A worker group has its ranks; its scripts run.",
    Phase.PARKING: "The worker group changes in place: its scripts are to park with their state.",
    Phase.WAITING: "All scripts that are left are parked, and too few for the smallest size.",
    Phase.JOINING: "The parked scripts have their new ranks and build the process groups of the next worker group.",
    Phase.STOPPING: "The worker group as a whole ends, or is not started any more.",
    Phase.ENDED: "The last record is written.",
}

#: What leads from one phase to another.
PHASE_EDGES: Mapping[tuple[Phase, Phase], str] = {
    (Phase.FORMING, Phase.TRAINING): "the processes of a worker group are up",
    (
        Phase.FORMING,
        Phase.STOPPING,
    ): "the attempt was asked to stop, too few workers came in time, or the driver failed",
    (Phase.TRAINING, Phase.FORMING): "the worker group did not start, or Ray Train's controller failed",
    (Phase.TRAINING, Phase.PARKING): "a worker was lost, a step hangs, or scripts park at an agreed step",
    (
        Phase.TRAINING,
        Phase.STOPPING,
    ): "a planned stop, a failure, a hang, the end of every command, or the attempt was asked to stop",
    (Phase.PARKING, Phase.FORMING): "Ray Train's controller failed",
    (Phase.PARKING, Phase.WAITING): "all are parked, and too few for the smallest size",
    (Phase.PARKING, Phase.JOINING): "all are parked, and have their ranks in the next worker group",
    (
        Phase.PARKING,
        Phase.STOPPING,
    ): "no worker holds the state any more, the same step failed too often, or the attempt was asked to stop",
    (Phase.WAITING, Phase.FORMING): "Ray Train's controller failed",
    (Phase.WAITING, Phase.PARKING): "enough workers are there",
    (Phase.WAITING, Phase.STOPPING): "too few workers came in time, or the attempt was asked to stop",
    (Phase.JOINING, Phase.FORMING): "Ray Train's controller failed",
    (Phase.JOINING, Phase.TRAINING): "every worker has joined the next worker group",
    (Phase.JOINING, Phase.PARKING): "a worker was lost, parked again, or did not join in time",
    (Phase.JOINING, Phase.STOPPING): "a command failed, or the attempt was asked to stop",
    (Phase.STOPPING, Phase.FORMING): "the workers have ended, and another worker group follows",
    (Phase.STOPPING, Phase.ENDED): "the workers have ended, and no other worker group follows",
}

#: The phase of an attempt whose worker group has a change in that state.
PHASES_OF_CHANGES: Mapping[ChangeState, Phase] = {
    ChangeState.AGREED: Phase.PARKING,
    ChangeState.PARTING: Phase.PARKING,
    ChangeState.SHORT: Phase.WAITING,
    ChangeState.PREPARING: Phase.PARKING,
    ChangeState.JOINING: Phase.JOINING,
    ChangeState.DONE: Phase.TRAINING,
    ChangeState.DROPPED: Phase.STOPPING,
}


class Effect(StrEnum):
    """What a driver does because of an event."""

    #: End all workers at once.
    STOP_GROUP = "stop_group"
    #: Ask all workers to end their commands, with the usual grace.
    ASK_TO_STOP = "ask_to_stop"
    #: Record that the attempt ends.
    REPORT_DRAINING = "report_draining"


Effects = tuple[Effect, ...]


class WrongPhase(Exception):
    """An event came in a phase in which it cannot happen."""


class Lifecycle:
    """The phase of one attempt, and why it ends.

    Once there is a stop reason or a verdict, no other worker group begins.  The first of each counts, and a stop reason
    takes precedence over a verdict.
    """

    def __init__(self) -> None:
        self._phase = Phase.FORMING
        #: The newest change of the worker group.
        self._change: Change | None = None
        #: True from the start of a worker group's processes until all of them have ended.
        self._has_group = False
        self._stop_reason: EndReason | None = None
        self._verdict: Verdict | None = None
        self._suspicion: Verdict | None = None
        self._waiting_since: float | None = None

    @property
    def phase(self) -> Phase:
        """What the attempt is doing."""
        return self._phase if self._change is None else PHASES_OF_CHANGES[self._change.state]

    @property
    def change(self) -> Change | None:
        """The change in place that is under way."""
        return None if self._change is None or self._change.is_over else self._change

    @property
    def stop_reason(self) -> EndReason | None:
        """Why the attempt was asked to stop; None: it was not."""
        return self._stop_reason

    @property
    def verdict(self) -> Verdict | None:
        """Why the driver ends the attempt by itself; None: it does not."""
        return self._verdict

    @property
    def suspicion(self) -> Verdict | None:
        """What ends the attempt if its workers cannot even park; None since the newest step."""
        return self._suspicion

    @property
    def is_final(self) -> bool:
        """True when no other worker group may begin."""
        return self._stop_reason is not None or self._verdict is not None

    # --- the worker group as a whole

    def begin_group(self) -> bool:
        """The processes of a worker group are up; False when it must not begin.

        Raises WrongPhase when there is a worker group already.
        """
        if self.is_final:
            return False
        if self.phase is not Phase.FORMING:
            raise WrongPhase(f"no worker group can begin while the attempt is {self.phase.value}")
        self._has_group = True
        self._move(Phase.TRAINING)
        return True

    def group_is_up(self) -> None:
        """The workers have their assignments: they are not waited for any more."""
        self._waiting_since = None

    def end_group(self) -> None:
        """The worker group as a whole ends: as planned, or because of a failure."""
        if self._has_group:
            self._move(Phase.STOPPING)

    def restart_group(self) -> Effects:
        """End the worker group, so that another one reads the storage; after a suspected hang none follows."""
        if self._suspicion is not None:
            return self.conclude(self._suspicion)
        return self._stop_group()

    def close_group(self, verdict: Verdict | None = None) -> None:
        """The worker group is gone; the verdict, if there is one, says whether another one follows."""
        if verdict is not None and not verdict.goes_on:
            self._verdict = self._verdict or verdict
        self._has_group = False
        if self.phase is not Phase.ENDED:
            self._move(Phase.STOPPING if self.is_final else Phase.FORMING)

    # --- the end of the attempt

    def stop(self, reason: EndReason) -> Effects:
        """The attempt is asked to stop."""
        if self._stop_reason is not None or self.phase is Phase.ENDED:
            return ()
        self._stop_reason = reason
        self._move(Phase.STOPPING)
        return (Effect.REPORT_DRAINING, Effect.ASK_TO_STOP)

    def conclude(self, verdict: Verdict) -> Effects:
        """The driver ends the attempt by itself."""
        if self.phase is Phase.ENDED:
            return ()
        self._verdict = self._verdict or verdict
        self._move(Phase.STOPPING)
        return self._stop_group()

    def finish(self) -> None:
        """Ray Train's controller has returned: no other worker group begins."""
        if self.phase is not Phase.ENDED:
            self._move(Phase.STOPPING)

    def end(self) -> None:
        """The last record is written.  Raises WrongPhase when the attempt is not stopping."""
        if self.phase is not Phase.STOPPING:
            raise WrongPhase(f"an attempt that is {self.phase.value} cannot have ended")
        self._has_group = False
        self._move(Phase.ENDED)

    # --- hangs

    def suspect(self, verdict: Verdict) -> bool:
        """No step ends: True when the scripts are to park; False when that was tried since the newest step."""
        if self._suspicion is not None or self.phase is not Phase.TRAINING:
            return False
        self._suspicion = verdict
        return True

    def step_ended(self) -> None:
        """The scripts make progress."""
        self._suspicion = None

    # --- a change in place

    def begin_change(self, change: Change) -> bool:
        """The worker group is to change; False when it must not, or does so already."""
        if self.phase is not Phase.TRAINING:
            return False
        self._change = change
        return True

    # --- time

    def waited_s(self, now: float) -> float:
        """Seconds for which workers have been waited for; they count from the first call on, unless they do already."""
        if self._waiting_since is None:
            self._waiting_since = now
        return now - self._waiting_since

    def wait_again(self, now: float) -> None:
        """The workers of the next group are waited for from now on."""
        self._waiting_since = now

    # --- moves

    def _stop_group(self) -> Effects:
        if not self._has_group:
            return ()
        self._move(Phase.STOPPING)
        return (Effect.STOP_GROUP,)

    def _move(self, phase: Phase) -> None:
        old = self.phase
        if old is not phase and (old, phase) not in PHASE_EDGES:
            raise WrongPhase(f"no edge leads from {old.value} to {phase.value}")
        if self._change is not None:
            self._change.drop()
            self._change = None
        self._phase = phase
