"""Asks drivers over Ray which protocol they speak."""

from __future__ import annotations

from typing import Any

import ray

from trainers.driver_protocol import FIRST


class SpokenProtocols:
    """What the drivers of attempts have answered; no call waits for one."""

    def __init__(self) -> None:
        self._known: dict[str, object] = {}
        self._asked: dict[str, Any] = {}

    def ask(self, attempt_id: str, driver: Any) -> None:
        """Ask the attempt's driver, unless it was asked; one of a release that knew no number cannot be."""
        if attempt_id in self._known or attempt_id in self._asked:
            return
        if hasattr(driver, "protocol"):
            self._asked[attempt_id] = driver.protocol.remote()
        else:
            self._known[attempt_id] = FIRST

    def answer(self, attempt_id: str) -> object | None:
        """The number, or what it answers instead of one; None while it has not, or has no attempt yet."""
        asked = self._asked.get(attempt_id)
        if asked is not None and ray.wait([asked], timeout=0)[0]:
            del self._asked[attempt_id]
            try:
                spoken = ray.get(asked)
            except ray.exceptions.RayTaskError:
                # This release asked for it on a node of a release that knew no number.
                spoken = FIRST
            except ray.exceptions.RayError:
                spoken = None  # it died, which its poll says as well; its successor is asked
            if spoken is not None:
                self._known[attempt_id] = spoken
        return self._known.get(attempt_id)

    def forget(self, attempt_id: str) -> None:
        """Its driver is gone, or another one is made."""
        self._known.pop(attempt_id, None)
        self._asked.pop(attempt_id, None)
