"""What a view of the cluster does not say is nothing, or what is right of nearly every node and job."""

from __future__ import annotations

from dataclasses import MISSING, fields

import pytest

from cluster.policies.placement import ANYWHERE
from cluster.scheduling.view import (
    START_UP_S,
    ClusterView,
    JobDemand,
    NodeView,
    Refusal,
    Spending,
)

NEVER = float("-inf")

#: Of each kind, what is so unless something else is said; anything else is none, nothing, zero or false.
UNLESS_SAID: dict[type, dict[str, object]] = {
    JobDemand: {"project": "default", "priority": 50, "placement": ANYWHERE},
    NodeView: dict.fromkeys(["provided", "is_running", "is_member", "is_noticed", "had_machine"], True),
    Refusal: {"tries": 1, "at": NEVER},
    Spending: {},
    ClusterView: {
        "start_up_s": START_UP_S,
        "paused_until": NEVER,
        "spent": Spending(today=0.0, this_month=0.0),
    },
}


@pytest.mark.parametrize("kind", UNLESS_SAID, ids=lambda kind: kind.__name__)
def test_what_is_not_said_is_nothing_or_the_usual(kind: type) -> None:
    defaults = {one.name: one.default for one in fields(kind) if one.init and one.default is not MISSING}
    assert {name: value for name, value in defaults.items() if value} == UNLESS_SAID[kind]
