"""How long agents have been silent, by the process that listens to them."""

from __future__ import annotations

import pytest

from cluster.node.agent.head_client import FIRST_TIMEOUT_S as CLIENT_START_S
from cluster.node.agent.metadata import FIRST_TIMEOUT_S
from cluster.ray.heartbeats import (
    HEARTBEAT_S,
    LONGEST_LOOK_S,
    SILENT_S,
    UNANSWERED_S,
    AgentStatus,
    Heartbeat,
    listen,
    read,
    written,
)


class Listener:
    """Looks at what lies with the head, again and again."""

    def __init__(self) -> None:
        self.heard: dict[str, AgentStatus] = {}

    def look(self, at: float | None, after_s: float = 1.0) -> AgentStatus | None:
        """The newest sign of life of node_a is of that time, if there is one."""
        heartbeats = {} if at is None else {"node_a": Heartbeat(at=at)}
        self.heard = listen(self.heard, heartbeats, after_s)
        return self.heard.get("node_a")

    def is_silent(self, at: float, for_s: float) -> bool:
        """After having seen the same sign for so long, at one look a second."""
        found = [self.look(at) for _ in range(int(for_s))][-1]
        return found is not None and found.is_silent


def test_an_agent_is_silent_after_many_signs_that_did_not_come() -> None:
    listener = Listener()
    listener.look(7.0)
    assert SILENT_S >= 10 * HEARTBEAT_S, "one that is late is not silent"
    assert not listener.is_silent(7.0, SILENT_S)
    assert listener.is_silent(7.0, 1)
    assert not listener.is_silent(12.0, 1), "until it gives the next one"


def test_one_that_beats_is_never_silent_whatever_its_machine_s_clock_says() -> None:
    listener = Listener()
    for at in (9e9, 5.0, 4.0):
        assert not listener.is_silent(at, SILENT_S)


def test_a_time_in_which_no_process_listened_is_not_its_silence() -> None:
    listener = Listener()
    listener.look(7.0)
    found = listener.look(7.0, after_s=10 * SILENT_S)
    assert found == AgentStatus(heartbeat=Heartbeat(at=7.0), unchanged_s=LONGEST_LOOK_S)
    assert not listener.is_silent(7.0, CLIENT_START_S + HEARTBEAT_S), (
        "it may have to start its client of Ray again"
    )


def test_a_node_without_an_agent_is_not_heard_at_all() -> None:
    listener = Listener()
    assert [listener.look(None, after_s=SILENT_S) for _ in range(9)] == [None] * 9


def test_what_an_agent_writes_is_read_again() -> None:
    reported = Heartbeat(at=12.5, leaves="it is sick", is_sick=True)
    assert read(written(12.5, ["XID 79"], "it is sick").encode()) == reported
    assert read(written(12.5, [], "Preempt").encode()) == Heartbeat(at=12.5, leaves="Preempt")
    assert read(written(12.5, [], None).encode()) == Heartbeat(at=12.5)
    assert read(written(12.5, [], None, 301.5).encode()) == Heartbeat(at=12.5, unanswered_s=301.5)
    assert read(written(12.5, [], None, says="a pause").encode()) == Heartbeat(at=12.5, says="a pause")


def test_an_agent_that_beats_may_be_deaf_to_its_cloud() -> None:
    assert not AgentStatus(heartbeat=Heartbeat(at=7.0, unanswered_s=UNANSWERED_S)).is_unanswered
    unanswered = AgentStatus(heartbeat=Heartbeat(at=7.0, unanswered_s=UNANSWERED_S + 1))
    assert (unanswered.is_unanswered, unanswered.is_silent) == (True, False)
    assert UNANSWERED_S > FIRST_TIMEOUT_S, "the first answer takes its time"


@pytest.mark.parametrize("unanswered", ["null", '"long"', "[]", "true"])
def test_an_agent_that_does_not_say_what_it_hears_is_not_deaf(unanswered: str) -> None:
    assert read(f'{{"at": 1, "unanswered_s": {unanswered}}}'.encode()) == Heartbeat(at=1.0)


@pytest.mark.parametrize(
    "reported",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        b'{"leaves": "x"}',
        b'{"at": null}',
        b'{"at": "soon"}',
        b'{"at": 1%s}' % (b"0" * 400),
    ],
)
def test_what_cannot_be_read_is_no_sign(reported: bytes) -> None:
    assert read(reported) is None


@pytest.mark.parametrize("text", ['""', "7", "null"])
def test_a_text_that_is_none_does_not_make_it_unreadable(text: str) -> None:
    assert read(f'{{"at": 1, "leaves": {text}, "says": {text}}}'.encode()) == Heartbeat(at=1.0)


def test_a_reason_is_cut() -> None:
    heartbeat = read(written(1.0, [], "x" * 9_999).encode())
    assert heartbeat is not None
    assert heartbeat.leaves == "x" * 500
