"""The agent and the metadata service over real HTTP, with everything that goes wrong between them."""

from __future__ import annotations

import inspect
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from typing import Any, TypeVar

import httpx2
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount

from cluster.azure.emulator.imds import REQUESTS_PER_S, Announcement, MetadataServer
from cluster.node.agent import agent as agent_module
from cluster.node.agent import gcs_requests
from cluster.node.agent import head_client as head_module
from cluster.node.agent.agent import Agent
from cluster.node.agent.head_client import RayHead
from cluster.node.agent.health import Health
from cluster.node.agent.metadata import Heard, MetadataAway, MetadataService
from cluster.node.agent.scheduled_events import API_VERSION, DrainNotice, meaning
from cluster.node.agent.watch import SICK_DRAIN_S

T = TypeVar("T")

#: Longest wait for a moment that comes at once.
PATIENCE_S = 30.0


class Clock:
    """A time that only tests move."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def server(clock: Clock) -> MetadataServer:
    server = MetadataServer(clock=clock)
    server.add("w0")
    return server


@pytest.fixture
def url(server: MetadataServer) -> Iterator[str]:
    """Where it listens."""
    app = Starlette(routes=[Mount("/metadata", server.application())])
    config = uvicorn.Config(app, log_level="critical", lifespan="off", date_header=False)
    running = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]})
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/metadata"
        running.should_exit = True
        thread.join()


@pytest.fixture
def metadata(url: str, clock: Clock) -> Iterator[MetadataService]:
    service = MetadataService(url, clock=clock)
    yield service
    service.close()


class Head:
    """A head that does what a test says."""

    def __init__(self) -> None:
        self.drained_until: float | None = None
        self.is_empty: bool | None = None
        self.wanted: list[tuple[float, str]] = []
        self.answers = True
        self.problems: Sequence[str] = ()

    def drain(self, deadline_at: float, reason: str) -> None:
        self.wanted.append((deadline_at, reason))
        if self.answers:
            self.drained_until, self.is_empty = deadline_at, False

    def say(self, problems: Sequence[str]) -> None:
        self.problems = problems

    def heard(self) -> None:
        pass

    def announce(self, announced: str | None) -> None:
        pass


@pytest.fixture
def head() -> Head:
    return Head()


@pytest.fixture
def ended() -> list[str]:
    return []


@pytest.fixture
def agent(metadata: MetadataService, head: Head, ended: list[str], clock: Clock) -> Agent:
    return Agent("w0", metadata, head, ended.append, Health, clock)


def look(agent: Agent, clock: Clock, after_s: float = 1.0) -> None:
    """One question and one step."""
    clock.now += after_s
    agent.listen()
    agent.step()


class TestTheService:
    def ask(self, url: str, status: int, path: str = "/scheduledevents", **headers: str) -> httpx2.Response:
        params = {"api-version": API_VERSION}
        answer = httpx2.get(url + path, params=params, headers=headers, trust_env=False)
        assert answer.status_code == status, answer.text
        return answer

    def test_answers_only_who_asks_as_a_machine_does(self, url: str) -> None:
        self.ask(url, 200, Metadata="true")
        self.ask(url, 400)
        self.ask(url, 400, **{"Metadata": "true", "X-Forwarded-For": "10.0.0.1"})
        self.ask(url, 404, "/machines/w9/scheduledevents", Metadata="true")
        refused = httpx2.get(f"{url}/scheduledevents", headers={"Metadata": "true"}, trust_env=False)
        assert (refused.status_code, API_VERSION in refused.json()["newest-versions"]) == (400, True)

    def test_has_a_limit_of_questions(self, url: str, clock: Clock) -> None:
        for _ in range(REQUESTS_PER_S):
            self.ask(url, 200, Metadata="true")
        assert self.ask(url, 429, Metadata="true").headers["retry-after"] == "1"
        clock.now += 1.0
        self.ask(url, 200, Metadata="true")

    def test_numbers_its_documents_and_begins_what_is_due(
        self, server: MetadataServer, url: str, clock: Clock
    ) -> None:
        before = self.ask(url, 200, Metadata="true").json()
        event_id = server.announce("w0", Announcement(notice_s=10))
        (scheduled,) = self.ask(url, 200, Metadata="true").json()["Events"]
        assert (scheduled["EventId"], scheduled["EventStatus"]) == (event_id, "Scheduled")
        clock.now += 10
        begun = self.ask(url, 200, Metadata="true").json()
        assert (begun["Events"][0]["EventStatus"], begun["Events"][0]["NotBefore"]) == ("Started", "")
        server.finish(event_id)
        after = self.ask(url, 200, Metadata="true").json()
        assert after["Events"] == before["Events"] == []
        assert before["DocumentIncarnation"] < begun["DocumentIncarnation"] < after["DocumentIncarnation"]

    def test_has_a_control_api(self, url: str) -> None:
        control = f"{url}/control"
        made = httpx2.post(f"{control}/machines/w1/events", json={"type": "Freeze"}, trust_env=False)
        place = f"{control}/events/{made.json()['EventId']}"
        assert httpx2.get(place, trust_env=False).json()["Resources"] == ["w1"]
        assert httpx2.delete(place, trust_env=False).status_code == 204
        assert httpx2.get(place, trust_env=False).status_code == 404
        bad = httpx2.post(f"{control}/machines/w1/events", json={"kind": "Freeze"}, trust_env=False)
        assert bad.status_code == 400

    def test_refuses_answers_to_events_that_are_not_there(self, metadata: MetadataService) -> None:
        with pytest.raises(MetadataAway, match="answered 400 to POST"):
            metadata.acknowledge("none")

    def test_gives_a_machine_its_name(self, metadata: MetadataService) -> None:
        assert metadata.name() == "w0"


class TestTheAgent:
    def test_drains_with_the_true_deadline_and_answers_when_the_work_has_left(
        self, agent: Agent, server: MetadataServer, head: Head, clock: Clock
    ) -> None:
        look(agent, clock)
        event_id = server.announce("w0", Announcement(notice_s=20))
        deadline_at = clock.now + 20
        look(agent, clock)
        assert head.wanted == [(deadline_at, "Preempt by the cloud")]
        look(agent, clock)
        assert not server.event(event_id).is_acknowledged  # type: ignore[union-attr]
        head.is_empty = True
        look(agent, clock)
        event = server.event(event_id)
        assert event is not None
        assert (event.is_acknowledged, event.is_started) == (True, True)
        look(agent, clock)
        assert len(head.wanted) == 1

    def test_counts_by_its_own_clock_when_the_platform_s_is_ahead(
        self, agent: Agent, server: MetadataServer, head: Head, clock: Clock
    ) -> None:
        server.skew_s = 90.0
        look(agent, clock)
        server.announce("w0", Announcement(type="Terminate", notice_s=300))
        look(agent, clock)
        ((deadline_at, _),) = head.wanted
        assert deadline_at == pytest.approx(clock.now + 299, abs=1.0)

    def test_lives_through_every_bad_answer_and_forgets_no_notice(
        self, agent: Agent, server: MetadataServer, head: Head, clock: Clock
    ) -> None:
        look(agent, clock)
        head.answers = False
        server.announce("w0", Announcement(notice_s=30))
        look(agent, clock)
        for fault in ((500, ""), (200, "{"), (200, "[]"), (429, ""), (200, '{"Events": 1}'), (410, "gone")):
            server.faults.append(fault)
            look(agent, clock)
        assert not server.faults
        assert len(head.wanted) == 7, "the head is asked all the while"

    def test_pauses_when_it_asked_too_often(
        self, agent: Agent, metadata: MetadataService, clock: Clock
    ) -> None:
        for _ in range(REQUESTS_PER_S):
            assert agent.listen() == 0.0
        assert agent.listen() == 1.0
        with pytest.raises(MetadataAway, match="too often"):
            metadata.listen()
        clock.now += 1.0
        assert agent.listen() == 0.0

    def test_ends_the_workers_softly_when_the_head_stays_silent(
        self, agent: Agent, server: MetadataServer, head: Head, ended: list[str], clock: Clock
    ) -> None:
        head.answers = False
        server.announce("w0", Announcement(notice_s=20))
        look(agent, clock)
        assert ended == []
        look(agent, clock, after_s=15)
        assert ended == ["Preempt by the cloud; the head did not answer"]

    def test_without_a_metadata_service_it_says_so_and_goes_on(
        self, head: Head, clock: Clock, caplog: pytest.LogCaptureFixture
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = f"http://127.0.0.1:{taken.getsockname()[1]}/metadata"
        away = MetadataService(address, clock=clock)
        agent = Agent("w0", away, head, lambda _: None, Health, clock)
        for _ in range(3):
            look(agent, clock)
        assert [record.getMessage().startswith("the metadata service does not answer") for record in
                caplog.records] == [True]  # fmt: skip
        assert head.wanted == []
        away.close()

    def test_reports_to_the_head_how_its_gpus_are_and_leaves_a_sick_machine(
        self, metadata: MetadataService, head: Head, clock: Clock
    ) -> None:
        sick: Callable[[], Health] = lambda: Health(problems=("1 of 2 GPUs are there",))  # noqa: E731
        agent = Agent("w0", metadata, head, lambda _: None, sick, clock)
        agent.look_after()
        look(agent, clock)
        assert head.problems == ("1 of 2 GPUs are there",)
        ((_, reason),) = head.wanted
        assert reason == "this machine is sick: 1 of 2 GPUs are there"

    def test_runs_until_it_is_stopped(self, agent: Agent, server: MetadataServer, clock: Clock) -> None:
        server.first_call_s = 0.2
        stopping = threading.Event()
        running = threading.Thread(target=agent.run, args=(stopping,))
        running.start()
        stopping.set()
        running.join(10)
        assert not running.is_alive()
        assert clock.now > 0


class SlowService(MetadataService):
    """One whose first answer, to the question of this name, comes when the test says."""

    def __init__(self, url: str, clock: Clock, slow: str) -> None:
        super().__init__(url, clock=clock)
        self._slow = slow
        self.is_asked = threading.Event()
        self.answers = threading.Event()

    def name(self) -> str:
        self._hang("name")
        return super().name()

    def listen(self) -> Heard:
        self._hang("listen")
        return super().listen()

    def _hang(self, question: str) -> None:
        if question == self._slow:
            self.is_asked.set()
            assert self.answers.wait(PATIENCE_S)


#: The Ray node that is drained, in hex.
RAY_NODE = "a1" * 28


class HeardHead(RayHead):
    """The agent's side of the head; what it would ask of Ray is put down here."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__("127.0.0.1:0", "node_a", clock)
        self.heartbeats: SimpleQueue[dict[str, Any]] = SimpleQueue()
        self.drains: SimpleQueue[tuple[float, str]] = SimpleQueue()

    def _ask(self, question: Callable[..., Any], *arguments: Any) -> Any:
        if question is gcs_requests.send_heartbeat:
            self.heartbeats.put(json.loads(arguments[0]))
        if question is gcs_requests.drain:
            self.drains.put((arguments[0], arguments[1]))
            return gcs_requests.Drained(RAY_NODE)
        # Empty, as far as the head knows.
        return arguments == (RAY_NODE,)


def test_a_node_counts_as_empty_once_the_head_had_time_to_hear_what_began_before_the_drain() -> None:
    head = HeardHead()
    head._step()
    assert head.is_empty is None, "no controller drained it"
    head.drain(5.0, "Preempt by the cloud")
    head._step()
    assert (head.drained_until, head.is_empty) == (5.0, None)
    head._step()
    assert head.is_empty is True


def test_signs_of_life_say_for_how_long_the_cloud_has_not_been_heard(
    server: MetadataServer, metadata: MetadataService, clock: Clock
) -> None:
    head = HeardHead(clock)
    agent = Agent("w0", metadata, head, lambda _: None, Health, clock)

    def unanswered_s(after_s: float) -> float:
        clock.now += after_s
        agent.listen()
        head._step()
        reported: float = head.heartbeats.get(timeout=PATIENCE_S)["unanswered_s"]
        return reported

    server.faults.extend([(500, ""), (200, "{")])
    assert [unanswered_s(200), unanswered_s(200), unanswered_s(200), unanswered_s(1)] == [
        200.0,
        400.0,
        0.0,
        0.0,
    ]


def test_signs_of_life_report_announcements_that_move_nothing_as_long_as_they_stand(
    server: MetadataServer, metadata: MetadataService, clock: Clock
) -> None:
    head = HeardHead(clock)
    agent = Agent("w0", metadata, head, lambda _: None, Health, clock)

    def said() -> str | None:
        look(agent, clock)
        head._step()
        reported: str | None = head.heartbeats.get(timeout=PATIENCE_S)["says"]
        return reported

    assert said() is None
    event_id = server.announce("w0", Announcement(type="Freeze", duration_s=2, notice_s=900))
    pause = "Freeze by the cloud; this machine pauses for 2 s, and its work stays"
    assert [said(), said()] == [pause, pause]
    server.finish(event_id)
    assert said() is None
    assert head.drains.empty()


@pytest.fixture
def heard_head(monkeypatch: pytest.MonkeyPatch) -> Iterator[HeardHead]:
    """It and the agent pause for a moment where they pause for seconds, so that several steps pass at once."""
    monkeypatch.setattr(head_module, "HEARTBEAT_S", 0.01)
    monkeypatch.setattr(agent_module, "HEALTH_S", 0.01)
    monkeypatch.setattr(agent_module, "POLL_S", 0.01)
    head = HeardHead()
    head.start()
    yield head
    head.close()


def three_more(things: SimpleQueue[T]) -> list[T]:
    """Three that come after this moment."""
    return [things.get(timeout=PATIENCE_S) for _ in range(things.qsize() + 3)][-3:]


class Stumbling(MetadataService):
    """One that fails in a way that the code does not expect, until it is mended."""

    def __init__(self, url: str, clock: Clock) -> None:
        super().__init__(url, clock=clock)
        self.is_mended = threading.Event()

    def listen(self) -> Heard:
        if not self.is_mended.is_set():
            raise OverflowError("not expected")
        return super().listen()


def test_no_failure_whatever_ends_the_listening_or_the_looks_at_the_gpus(
    server: MetadataServer,
    url: str,
    heard_head: HeardHead,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(agent_module, "AGAIN_S", 0.01)
    server.announce("w0", Announcement(notice_s=25))
    first_look = iter([ValueError("not expected")])

    def look() -> Health:
        for failure in first_look:
            raise failure
        return Health(problems=("XID 79",))

    metadata = Stumbling(url, clock)
    agent = Agent("w0", metadata, heard_head, lambda _: None, look, clock)
    stopping = threading.Event()
    running = threading.Thread(target=agent.run, args=(stopping,))
    running.start()
    try:
        sick = (clock.now + SICK_DRAIN_S, "this machine is sick: XID 79")
        assert heard_head.drains.get(timeout=PATIENCE_S) == sick
        metadata.is_mended.set()
        assert heard_head.drains.get(timeout=PATIENCE_S) == (clock.now + 25, "Preempt by the cloud")
    finally:
        stopping.set()
        running.join(PATIENCE_S)
    metadata.close()
    assert {record.getMessage() for record in caplog.records if record.exc_info} == {
        "listening to the metadata service failed; trying again",
        "looking at the GPUs failed; trying again",
    }


@pytest.mark.parametrize("slow", ["name", "listen"])
def test_while_the_first_answer_does_not_come_all_else_goes_on_and_its_notice_is_heard(
    slow: str,
    server: MetadataServer,
    url: str,
    heard_head: HeardHead,
    clock: Clock,
) -> None:
    metadata = SlowService(url, clock, slow)
    looks: SimpleQueue[None] = SimpleQueue()
    sick = threading.Event()

    def look() -> Health:
        looks.put(None)
        return Health(problems=("XID 79",) if sick.is_set() else ())

    agent = Agent("", metadata, heard_head, lambda _: None, look, clock)
    stopping = threading.Event()
    running = threading.Thread(target=agent.run, args=(stopping,))
    running.start()
    try:
        assert metadata.is_asked.wait(PATIENCE_S)
        three_more(looks)
        assert [heartbeat["leaves"] for heartbeat in three_more(heard_head.heartbeats)] == [None] * 3
        assert heard_head.drains.empty(), "nothing is known yet"
        sick.set()
        sick_until = clock.now + SICK_DRAIN_S
        assert heard_head.drains.get(timeout=PATIENCE_S) == (sick_until, "this machine is sick: XID 79")
        server.announce("w0", Announcement(notice_s=25))
        goes_at = clock.now + 25
        clock.now += 15
        metadata.answers.set()
        assert heard_head.drains.get(timeout=PATIENCE_S) == (goes_at, "Preempt by the cloud"), (
            "not 25 s from now"
        )
    finally:
        metadata.answers.set()
        stopping.set()
        running.join(PATIENCE_S)
    assert not running.is_alive()
    metadata.close()


@pytest.mark.parametrize("date", [None, "", "now", "Tue, 09 Aug 20220000000000000000000 17:07:32 GMT"])
def test_a_date_that_cannot_be_read_is_no_difference_of_the_clocks(
    metadata: MetadataService, date: str | None
) -> None:
    assert metadata._skew_s(date) == 0.0


def test_the_first_answer_may_take_the_two_minutes_in_which_the_service_is_switched_on(
    server: MetadataServer, url: str, clock: Clock
) -> None:
    # Time is scaled: the minutes of Azure by 200, what the agent waits by 100, as this machine may be busy.
    reported = inspect.signature(MetadataService).parameters["first_timeout_s"].default
    server.first_call_s = 120.0 / 200
    metadata = MetadataService(url, first_timeout_s=reported / 100, clock=clock)
    assert metadata.listen().document.events == ()
    metadata.close()


def test_what_is_heard_is_what_was_announced(
    server: MetadataServer, metadata: MetadataService, clock: Clock
) -> None:
    server.announce("w0", Announcement(type="Redeploy", notice_s=600, description="host repair"))
    heard = metadata.listen()
    (event,) = heard.document.events
    assert (event.resources, event.source, heard.skew_s) == (("w0",), "Platform", 0.0)
    assert meaning(event, clock.now) == DrainNotice(
        deadline_at=clock.now + 600, reason="Redeploy by the cloud: host repair"
    )
