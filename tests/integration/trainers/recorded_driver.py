"""Drivers of other releases, without processes: what they answered is recorded, and what they are asked is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from trainers.plan import AttemptPlan, Record

#: What a driver of the release before reported of a short job, before it was asked to stop.
_REPORTED: Sequence[tuple[str, dict[str, Any]]] = (
    ("event", {"kind": "attempt.driver_started", "message": "The driver of this attempt runs.", "data": {}}),
    ("progress", {"state": "starting"}),
    ("progress", {"state": "running", "world_size": 1, "total_steps": 1000}),
    ("log", {"rank": 0, "stream": "stdout", "text": "step 1\nstep 2"}),
    ("metric", {"step": 2, "world_size": 1, "values": {"loss": 0.5}}),
    ("progress", {"step": 2, "repeated_steps": 0, "lost_s": 0.0}),
)


class Driver:
    """A driver of the release before: it has no call for the number of its protocol."""

    def __init__(self) -> None:
        self._plan: AttemptPlan | None = None
        self._records: list[Record] = []
        self._calls: list[str] = []

    def _report(self, kind: str, body: dict[str, Any]) -> None:
        self._records.append(Record(seq=len(self._records) + 1, at=1001.0, kind=kind, body=body))  # type: ignore[arg-type]

    async def start(self, plan: AttemptPlan, *_: bytes) -> None:
        """Begin once; a plan has fields that it does not know."""
        self._calls.append("start")
        if self._plan is None:
            self._plan = plan
            for kind, body in _REPORTED:
                self._report(kind, body)

    async def poll(self, after: int, limit: int) -> list[Record] | None:
        """Records after that number."""
        return None if self._plan is None else self._records[after : after + limit]

    async def keep(self, *_: Any) -> None:
        """Take note of kept nodes."""
        self._calls.append("keep")

    async def resize(self, *_: Any) -> None:
        """Take other sizes."""
        self._calls.append("resize")

    async def stop(self, reason: Any) -> None:
        """End, once."""
        if "stop" not in self._calls:
            self._report("ended", {"end_reason": reason.value, "message": "", "exit_code": None})
        self._calls.append("stop")

    async def calls(self) -> list[str]:
        """What it was asked; for tests."""
        return self._calls

    async def grow(self, step: int) -> None:
        """Train on to that step; for tests."""
        self._report("progress", {"step": step})
        await asyncio.sleep(0)


class LaterDriver(Driver):
    """A driver of a release that is two numbers later: it says so, and what it reports is nothing we know."""

    async def protocol(self) -> int:
        """Its number."""
        return 99

    async def poll(self, after: int, limit: int) -> Any:
        """Nothing that this release can read."""
        return {"batches": [after, limit]}
