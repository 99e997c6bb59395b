"""Which faults strike a run, and when: everything follows from the seed (pure)."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

Kind = Literal["kill", "drain", "freeze", "cut", "supervisor", "worker", "blackout"]

#: How often each is drawn: those that end the whole group take longest, and happen most seldom.
WEIGHTS: dict[Kind, int] = {
    "kill": 4,
    "drain": 4,
    "freeze": 3,
    "cut": 3,
    "supervisor": 3,
    "worker": 2,
    "blackout": 1,
}


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong."""

    kind: Kind
    #: Steps that are done in peace before it.
    after_steps: int
    #: Which of the workers it hits: the remainder by their number.
    victim: int
    #: The next fault strikes at once, before anybody has recovered from this one.
    overlaps: bool
    #: A frozen node, or one that was cut off, comes back when the others have gone on without it.
    thaws: bool
    #: Seconds from a notice to the end of its node.
    deadline_s: float


def faults_of(seed: int) -> list[Fault]:
    """Two or three faults."""
    dice = random.Random(f"remora chaos {seed}")
    count = dice.choice([2, 3])
    kinds = dice.choices(list(WEIGHTS), list(WEIGHTS.values()), k=count)
    return [
        Fault(
            kind=kind,
            after_steps=dice.randint(2, 25),
            victim=dice.randrange(12),
            # After a blackout there is no process left to strike.
            overlaps=dice.random() < 0.3 and place < count - 1 and kind != "blackout",
            thaws=dice.random() < 0.5,
            deadline_s=dice.choice([5.0, 8.0, 15.0]),
        )
        for place, kind in enumerate(kinds)
    ]
