"""What the steps of a run say about a loss and about growth (pure)."""

from __future__ import annotations

from typing import Any

#: Time in seconds since 1970, number from 1, workers.
Step = tuple[float, int, int]


def recovered(steps: list[Step], killed_at: float) -> list[Step] | None:
    """All steps, once one is done after the loss by fewer workers and is new."""
    return steps if _first_new(steps, killed_at) is not None else None


def after_loss(steps: list[Step], killed_at: float) -> dict[str, Any]:
    """Seconds from the kill to the first new step of the survivors, and how many steps were done twice."""
    first = _first_new(steps, killed_at)
    assert first is not None
    return {"s": round(first - killed_at, 3), "repeated": repeated(steps)}


def _first_new(steps: list[Step], killed_at: float) -> float | None:
    newest = max((step for at, step, world in steps if world == 3 or at < killed_at), default=0)
    return next((at for at, step, world in steps if step > newest and world < 3), None)


def repeated(steps: list[Step]) -> int:
    """How many steps were done again."""
    numbers = [step for _, step, _ in steps]
    return len(numbers) - len(set(numbers))


def pause_at_growth(steps: list[Step], after: float) -> float | None:
    """Seconds between the last step with fewer workers and the first new one with three; None before there is one."""
    for place, one in enumerate(steps):
        if place and one[0] > after and one[2] == 3 and steps[place - 1][2] < 3:
            newest = max(step for _, step, _ in steps[:place])
            first_new = next((later for later in steps[place:] if later[1] > newest), None)
            return None if first_new is None else round(first_new[0] - steps[place - 1][0], 3)
    return None
