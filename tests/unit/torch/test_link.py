"""What a script that regroups in place says and hears, over a real socket."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from remora.script import channel
from remora.script.link import Link, Rendezvous, SupervisorGone

PLACE = {
    "rank": 1,
    "world_size": 3,
    "local_rank": 0,
    "local_world_size": 2,
    "node_rank": 1,
    "master_addr": "127.0.0.1",
    "master_port": 4321,
}


class Supervisor:
    """The other end."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self.end.settimeout(10)
        self._decoder = channel.Decoder()
        self._heard: list[channel.Message] = []

    def say(self, kind: str, **fields: object) -> None:
        self.end.sendall(channel.encode({"type": kind, **fields}))

    def hear(self) -> channel.Message:
        while not self._heard:
            received = self.end.recv(65536)
            assert received
            self._heard.extend(self._decoder.feed(received))
        return self._heard.pop(0)

    def decide(self, **fields: object) -> None:
        """As the driver does it: everybody stops at the next boundary until the decision is there."""
        self.say("hold", token=1)
        assert self.hear()["type"] == "held"
        self.say("decide", token=1, **fields)


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMORA_GENERATION", "1")
    for name in (*map(str.upper, PLACE), "GROUP_RANK"):
        monkeypatch.setenv(name, "0")


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    ours, theirs = socket.socketpair()
    ending = Supervisor(ours)
    ending.theirs = theirs  # type: ignore[attr-defined]
    yield ending
    ours.close()


@pytest.fixture
def link(supervisor: Supervisor) -> Link:
    opened = Link(supervisor.theirs.detach())  # type: ignore[attr-defined]
    assert supervisor.hear()["type"] == "hello"
    return opened


def test_a_regroup_sends_the_new_place_and_the_environment(
    link: Link, supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor.say("regroup", generation=2, **PLACE)
    reported = link.await_regroup(1)
    assert reported == Rendezvous(generation=2, **PLACE)  # type: ignore[arg-type]
    assert os.environ["RANK"] == "1"
    assert os.environ["WORLD_SIZE"] == "3"
    assert os.environ["MASTER_PORT"] == "4321"
    assert os.environ["REMORA_GENERATION"] == "2"


def test_a_regroup_of_an_old_generation_is_not_taken(link: Link, supervisor: Supervisor) -> None:
    supervisor.say("regroup", generation=1, **PLACE)
    supervisor.say("regroup", generation=3, **PLACE)
    assert link.await_regroup(2).generation == 3


def test_part_wakes_the_listener_and_names_the_generation(link: Link, supervisor: Supervisor) -> None:
    reported = threading.Event()
    heard: list[int] = []
    link.on_leave = lambda generation: (heard.append(generation), reported.set())[0]
    supervisor.say("part", generation=4)
    assert reported.wait(10)
    assert heard == [4]
    assert link.must_leave(4)
    assert not link.must_leave(5)


def test_a_boundary_says_whether_to_save_or_to_park(link: Link, supervisor: Supervisor) -> None:
    supervisor.decide(boundary=7, action="regroup", stop=True)
    assert link.reach_boundary(6) is None
    assert link.reach_boundary(7) == "regroup"
    assert not link.stops, "a worker that parks does not end"
    supervisor.decide(boundary=9, stop=True)
    assert link.reach_boundary(9) == "checkpoint"
    assert link.stops


def test_boundaries_count_alike_for_those_who_came_later(link: Link, supervisor: Supervisor) -> None:
    link.set_boundary(41)
    supervisor.say("hold", token=5)
    assert supervisor.hear() == {"type": "held", "token": 5, "boundary": 41}


def test_who_waits_at_a_boundary_leaves_it_when_asked_to_part(link: Link, supervisor: Supervisor) -> None:
    supervisor.say("hold", token=5)
    supervisor.hear()
    answers: list[object] = []
    waiting = threading.Thread(target=lambda: answers.append(link.reach_boundary(3)))
    waiting.start()
    supervisor.say("part", generation=1)
    waiting.join(10)
    assert answers == [None]


def test_a_decision_of_the_old_group_is_forgotten(link: Link, supervisor: Supervisor) -> None:
    supervisor.decide(boundary=3)
    supervisor.say("regroup", generation=2, **PLACE)
    link.await_regroup(1)
    assert link.reach_boundary(3) is None


@pytest.mark.parametrize(
    "message",
    [
        {"type": "regroup", "generation": 9},
        {"type": "regroup", "generation": "x", **PLACE},
        {"type": "part", "generation": None},
        {"type": "decide"},
        {"type": "taken", "step": []},
    ],
)
def test_malformed_messages_are_skipped(
    link: Link, supervisor: Supervisor, message: dict[str, object]
) -> None:
    supervisor.end.sendall(channel.encode(message))
    supervisor.say("regroup", generation=2, **PLACE)
    assert link.await_regroup(1).generation == 2


def test_a_parked_script_learns_that_its_supervisor_is_gone(link: Link, supervisor: Supervisor) -> None:
    supervisor.end.close()
    with pytest.raises(SupervisorGone, match="the supervisor ended"):
        link.await_regroup(1)
