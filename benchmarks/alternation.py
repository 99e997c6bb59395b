"""Alternating blocks of contestants that run at the same time; needs the standard library only, beside scripts."""

from __future__ import annotations

import json
import time
from pathlib import Path


class Alternation:
    """Steps in blocks, each when its `.go` file appears, with the seconds of every step."""

    def __init__(self, name: str, folder: Path, blocks: int, steps: int) -> None:
        self._name, self._folder = name, folder
        self._blocks, self._steps = blocks, steps
        self._done = 0
        self._times: list[float] = []
        self._last = 0.0

    @property
    def total(self) -> int:
        """Steps of all blocks."""
        return self._blocks * self._steps

    def before(self) -> None:
        """Called before each step."""
        if self._done % self._steps == 0:
            block = self._done // self._steps
            wait_for(self._folder / f"{self._name}-{block}.go")
        self._last = time.perf_counter()

    def after(self, rank: int) -> None:
        """Called after each step."""
        self._times.append(time.perf_counter() - self._last)
        self._done += 1
        if self._done % self._steps == 0:
            block = self._done // self._steps - 1
            if rank == 0:
                draft = self._folder / f"{self._name}-{block}.tmp"
                draft.write_text(json.dumps(self._times))
                draft.rename(self._folder / f"{self._name}-{block}.json")
            self._times = []


def wait_for(file: Path) -> None:
    """Look again every few milliseconds: nothing else that is measured runs meanwhile."""
    while not file.exists():
        time.sleep(0.005)
