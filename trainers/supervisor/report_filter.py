"""Which messages of a script go on to its driver, which serves thousands of workers (pure; time is an argument)."""

from __future__ import annotations

from remora.script import channel
from trainers.worker_identity import WorkerIdentity

#: `pace` messages (how long a worker's own part of a step takes) per second, of all workers together.
PACES_PER_S = 128


class ReportFilter:
    """Decides for one worker, by what was passed on before."""

    def __init__(self) -> None:
        self._has_reported = False
        #: Number of the worker group of the newest `pace` that was passed on, and when that was.
        self._paced: tuple[int, float] | None = None

    def is_needed(self, message: channel.Message, identity: WorkerIdentity, now: float) -> bool:
        """True when the driver needs it; `now` is in seconds of a monotonic clock."""
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
