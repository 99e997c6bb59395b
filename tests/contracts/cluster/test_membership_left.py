"""The thread that asks Ray about nodes, while another one makes the process's connection again."""

from __future__ import annotations

import threading

import pytest

from cluster.local.rehearsal import LocalRehearsal
from cluster.ray.drain import RayDrains
from cluster.ray.membership import MembershipUnknown, RayMembership


class NoProvider:
    """Nothing is asked of it."""


def test_nothing_is_asked_of_ray_once_the_connection_was_left() -> None:
    membership = RayMembership()
    membership.leave()
    provider: object = NoProvider()
    for ask in (
        membership.observe,
        lambda: RayDrains(membership).drain("node_x", "it goes", 0.0),
        lambda: LocalRehearsal(provider, membership).notify("node_x", 0.0),  # type: ignore[arg-type]
    ):
        with pytest.raises(MembershipUnknown, match="is being made again"):
            ask()


def test_who_leaves_waits_for_the_question_under_way() -> None:
    membership, left = RayMembership(), threading.Event()

    def leave() -> None:
        membership.leave()
        left.set()

    thread = threading.Thread(target=leave)
    with membership.asking():
        thread.start()
        assert not left.wait(0.2)
    thread.join(20)
    assert left.is_set()
