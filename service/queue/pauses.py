"""What the owner of a paused job is told: which budget, how much of it is spent, and what ends the pause (pure)."""

from __future__ import annotations

from cluster.scheduling.money import Money


def pause_message(money: Money) -> str:
    """One sentence, with the time at which it ends by itself and what an operator can do before."""
    return (
        f"the cluster's budget has reached its last step: {money.words}; it waits {money.ends}, and then goes on"
        " by itself from its newest checkpoint"
    )
