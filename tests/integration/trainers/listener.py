"""An actor that hears what a driver hears of kept nodes, and remembers it."""

from __future__ import annotations

Heard = tuple[tuple[int, int], dict[str, str]]


class Listener:
    """Has the part of a driver that gets the kept nodes."""

    def __init__(self) -> None:
        self._heard: list[Heard] = []

    def keep(self, order: tuple[int, int], nodes: dict[str, str]) -> None:
        self._heard.append((order, nodes))

    def heard(self) -> list[Heard]:
        return self._heard
