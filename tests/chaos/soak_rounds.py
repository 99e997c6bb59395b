"""What is killed in each round of the soak, and which jobs it queues: everything follows from the seed (pure)."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

Victim = Literal["api", "controller", "driver", "supervisor", "node", "stopped controller"]

VICTIMS: tuple[Victim, ...] = ("api", "controller", "driver", "supervisor", "node", "stopped controller")


@dataclass(frozen=True)
class Round:
    """One blow, and what is submitted while it falls."""

    victim: Victim
    #: Seconds from the beginning of the round to the blow.
    after_s: float
    #: Which of those that could be struck: the remainder by their number.
    choice: int
    #: Workers and steps of each new job.
    jobs: tuple[tuple[int, int], ...]


def rounds_of(seed: int, count: int) -> list[Round]:
    """That number of rounds; every six of them strike each kind of process once."""
    dice = random.Random(f"remora soak {seed}")
    victims: list[Victim] = []
    while len(victims) < count:
        victims += dice.sample(VICTIMS, len(VICTIMS))
    return [
        Round(
            victim=victim,
            after_s=dice.uniform(0.0, 3.0),
            choice=dice.randrange(12),
            jobs=tuple((dice.choice([1, 1, 2]), dice.randint(1, 20)) for _ in range(2)),
        )
        for victim in victims[:count]
    ]
