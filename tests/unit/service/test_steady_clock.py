"""A clock that never jumps."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.ray.members import MemberNode
from service.controller.deadlines import TimedDrains, TimedMembership, TimedRehearsal
from service.steady_clock import RATE, SteadyClock
from tests.service_fakes import FakeCluster

HOUR = 3600.0


class Machine:
    """Its clocks, which only the test moves."""

    def __init__(self) -> None:
        self.wall, self.running = 1_000_000.0, 50.0
        self.clock = SteadyClock(lambda: self.wall, lambda: self.running)

    def pass_by(self, seconds: float, drift: float = 0.0) -> None:
        self.running += seconds
        self.wall += seconds * (1.0 + drift)


def test_it_says_what_the_machine_says() -> None:
    machine = Machine()
    machine.pass_by(1000.0)
    assert machine.clock() == machine.wall


def test_what_ntp_corrects_is_followed_at_once() -> None:
    machine = Machine()
    for _ in range(100):
        machine.pass_by(1.0, drift=0.0005)
        assert machine.clock() == pytest.approx(machine.wall, abs=1e-6)


@pytest.mark.parametrize("by_s", [HOUR, -HOUR])
def test_after_a_jump_a_length_is_wrong_by_a_tenth_at_most_until_the_time_is_right_again(by_s: float) -> None:
    machine = Machine()
    began = machine.clock()
    machine.wall += by_s
    assert machine.clock() == began
    machine.pass_by(60.0)
    assert abs(machine.clock() - began - 60.0) <= 6.0 + 1e-6
    for _ in range(100):
        machine.pass_by(HOUR / 10.0)
        machine.clock()
    assert machine.clock() == pytest.approx(machine.wall)


def test_it_never_goes_back_whatever_happens_to_the_clock() -> None:
    chance, machine = random.Random(1), Machine()
    before = machine.clock()
    for _ in range(2000):
        machine.wall += chance.choice([0.0, 0.0, 0.0, chance.uniform(-1e6, 1e6)])
        passed_s = chance.uniform(0.0, 100.0)
        machine.pass_by(passed_s)
        now = machine.clock()
        assert passed_s * (1.0 - RATE) - 1e-3 <= now - before <= passed_s * (1.0 + RATE) + 1e-3
        before = now


@pytest.mark.parametrize("by_s", [HOUR, -HOUR])
def test_a_deadline_leaves_a_node_the_same_time_on_both_sides(by_s: float) -> None:
    machine, cluster = Machine(), FakeCluster()
    machine.wall += by_s
    machine.pass_by(10.0)
    drains, rehearsal = TimedDrains(cluster, machine.clock), TimedRehearsal(cluster, machine.clock)
    drains.drain("node_a", "it is returned", machine.clock() + 30.0)
    rehearsal.notify("node_b", machine.clock() + 30.0)
    assert cluster.drains["node_a"] - machine.wall == pytest.approx(30.0, abs=0.5)
    assert cluster.notices["node_b"] - machine.wall == pytest.approx(30.0, abs=0.5)
    reported: Any = SimpleNamespace(observe=lambda: {"node_a": member(deadline_at=machine.wall + 30.0)})
    seen = TimedMembership(reported, machine.clock).observe()["node_a"]
    assert seen.deadline_at == pytest.approx(machine.clock() + 30.0, abs=0.5)


def member(deadline_at: float) -> MemberNode:
    return MemberNode(
        node_id="node_a",
        ray_node_id="a",
        address="127.0.0.1",
        is_alive=True,
        is_draining=True,
        is_in_use=False,
        resources={},
        deadline_at=deadline_at,
        raylet_port=1,
    )
