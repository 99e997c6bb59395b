"""The policies in force, read anew at every tick."""

from __future__ import annotations

from cluster.policies import Policies
from service.loops.turn import Turn
from service.policies_followed import policies_followed


def policies_in_force(turn: Turn) -> Policies:
    """The newest version that can be read, else what the settings say."""
    return turn.load(lambda connection: policies_followed(connection, turn.settings))
