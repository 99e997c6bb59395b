"""Which messages of a script its driver needs (pure; time is an argument): it hears thousands of workers at once."""

from __future__ import annotations

from remora.script import channel
from trainers.worker_identity import WorkerIdentity

#: Messages of all workers together, in a second, that say how long their own part of a step takes.
PACES_PER_S = 128


class Reporting:
    """What one worker's script has told."""

    def __init__(self) -> None:
        self._has_reported = False
        #: Number of the worker group of the newest `pace` that was passed on, and when that was.
        self._paced: tuple[int, float] | None = None

    def is_needed(self, message: channel.Message, identity: WorkerIdentity, now: float) -> bool:
        """True when the driver does something with it; `now` is in seconds of a monotonic clock."""
        match message["type"]:
            case "report":
                # Rank 0 counts the steps; of the others the driver wants to know that they train at all.
                is_first, self._has_reported = not self._has_reported, True
                return is_first or identity.rank == 0
            case "pace":
                return self._is_pace_due(identity, now)
        return True

    def _is_pace_due(self, identity: WorkerIdentity, now: float) -> bool:
        if self._paced is not None:
            generation, at = self._paced
            if generation == identity.generation and now - at < identity.world_size / PACES_PER_S:
                return False
        self._paced = (identity.generation, now)
        return True
