"""What scripts call: harmless alone, and in step with a supervisor when there is one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from remora import training
from remora.script import channel

ROOT = Path(__file__).parents[3]

#: A script that uses everything.
SCRIPT = """
import sys
from remora import training
assert training.world() == training.World(0, 1, 0, 1, 0), training.world()
assert training.resume_from() is None
assert training.preemption() is None
for step in range(1, 4):
    training.report(step, {"loss": float("nan")}, total_steps=3)
    assert not training.should_checkpoint()
with training.checkpoint(3) as folder:
    (folder / "state").write_text("x")
assert not folder.exists()
print("fine")
"""


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "_opened", None)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "REMORA_RESUME_DIR"):
        monkeypatch.delenv(name, raising=False)


class Supervisor:
    """The other end of the channel, following a script of its own."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self.socket.settimeout(20.0)
        self._decoder = channel.Decoder()
        self._heard: list[channel.Message] = []

    def say(self, kind: str, **fields: object) -> None:
        self.socket.sendall(channel.encode({"type": kind, **fields}))

    def hear(self, kind: str) -> channel.Message:
        """The next message, which is of this kind."""
        while not self._heard:
            received = self.socket.recv(65536)
            assert received, "the script closed the channel"
            self._heard.extend(self._decoder.feed(received))
        message = self._heard.pop(0)
        assert message["type"] == kind, message
        return message


@pytest.fixture
def supervisor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Supervisor]:
    ours, theirs = socket.socketpair()
    monkeypatch.setenv(channel.FD_VARIABLE, str(theirs.detach()))
    monkeypatch.setenv("REMORA_SCRATCH_DIR", str(tmp_path))
    yield Supervisor(ours)
    ours.close()
    link = training._opened
    if link is not None:
        with link._changed:
            assert link._changed.wait_for(lambda: link._closed, 10.0)
        link._socket.close()


def eventually(seen: object, what: str = "it happens") -> None:
    """Wait for a condition that the reading thread brings about."""
    deadline = time.monotonic() + 20.0
    while not seen():  # type: ignore[operator]
        assert time.monotonic() < deadline, what
        os.sched_yield()


# --- alone ---------------------------------------------------------------------------------------------------------


def test_every_call_is_harmless_in_a_plain_process(tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    answer = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (answer.returncode, answer.stdout) == (0, "fine\n"), answer.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_descriptor_that_is_no_channel_is_ignored(tmp_path: Path) -> None:
    for number in ("77", "0", "soon", "-1"):
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), channel.FD_VARIABLE: number}
        answer = subprocess.run(
            [sys.executable, "-c", SCRIPT], env=environment, stdin=subprocess.DEVNULL, cwd=tmp_path,
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert (answer.returncode, answer.stdout) == (0, "fine\n"), (number, answer.stderr)


def test_ranks_come_from_torchruns_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "x"}.items():
        monkeypatch.setenv(name, value)
    assert training.world() == training.World(5, 8, 1, 1, 0)


def test_resume_from_is_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REMORA_RESUME_DIR", str(tmp_path))
    assert training.resume_from() == tmp_path


@pytest.mark.parametrize("step", [-1, 2**53 + 1])
def test_impossible_steps_are_refused_with_or_without_remora(step: int) -> None:
    with pytest.raises(ValueError, match="from 0 to 2"):
        training.report(step)
    with pytest.raises(ValueError, match="from 0 to 2"), training.checkpoint(step):
        pass


def test_a_script_that_raises_in_its_checkpoint_leaves_no_folder() -> None:
    with pytest.raises(RuntimeError, match="disk"), training.checkpoint(1) as folder:
        raise RuntimeError("disk full")
    assert not folder.exists()


# --- with a supervisor -----------------------------------------------------------------------------------------------


def test_reports_arrive_and_what_is_not_finite_is_null(supervisor: Supervisor) -> None:
    training.report(7, {"loss": float("nan"), "lr": 0.5, "norm": float("inf"), "n": 3}, total_steps=9)
    hello = supervisor.hear("hello")
    assert (hello["version"], hello["pid"]) == (channel.VERSION, os.getpid())
    report = supervisor.hear("report")
    assert report["metrics"] == {"loss": None, "lr": 0.5, "norm": None, "n": 3.0}
    assert (report["step"], report["total_steps"]) == (7, 9)


def test_the_channel_is_not_shown_to_processes_that_the_script_starts(supervisor: Supervisor) -> None:
    training.report(1)
    assert channel.FD_VARIABLE not in os.environ


def test_nothing_is_asked_nothing_is_waited_for(supervisor: Supervisor) -> None:
    assert [training.should_checkpoint() for _ in range(100)] == [False] * 100


def test_a_held_script_waits_at_its_next_boundary_and_obeys_the_decision(supervisor: Supervisor) -> None:
    for _ in range(3):
        assert not training.should_checkpoint()
    supervisor.hear("hello")
    supervisor.say("hold", token=1)
    held = supervisor.hear("held")
    assert (held["token"], held["boundary"]) == (1, 3)
    answers: list[bool] = []
    script = threading.Thread(target=lambda: answers.extend(training.should_checkpoint() for _ in range(4)))
    script.start()
    link = training._opened
    assert link is not None
    eventually(lambda: link._boundary == 4, "it enters boundary 4")
    assert answers == [], "it waits there"
    supervisor.say("decide", token=1, boundary=6, stop=False)
    script.join(20.0)
    assert answers == [False, False, True, False]


def test_a_released_script_goes_on(supervisor: Supervisor) -> None:
    training.report(1)
    supervisor.hear("hello")
    supervisor.hear("report")
    supervisor.say("hold", token=1)
    supervisor.hear("held")
    answers: list[bool] = []
    script = threading.Thread(target=lambda: answers.append(training.should_checkpoint()))
    script.start()
    supervisor.say("release", token=1)
    script.join(20.0)
    assert answers == [False]


def test_files_are_handed_over_before_the_script_goes_on(supervisor: Supervisor, tmp_path: Path) -> None:
    done = threading.Event()

    def save() -> None:
        with training.checkpoint(5) as folder:
            (folder / "state").write_text("x")
        done.set()

    script = threading.Thread(target=save)
    script.start()
    supervisor.hear("hello")
    assert supervisor.hear("saving")["step"] == 5
    message = supervisor.hear("checkpoint")
    assert (message["step"], message["asked"], message["room"]) == (5, False, "scratch")
    folder = tmp_path / message["folder"]
    assert (folder.parent, (folder / "state").read_text()) == (tmp_path, "x")
    assert not done.is_set(), "the files are the supervisor's until it says so"
    folder.rename(tmp_path / "taken")
    supervisor.say("taken", step=4, park=False)
    supervisor.say("taken", step=5, park=False)
    script.join(20.0)
    assert done.is_set()
    assert (tmp_path / "taken" / "state").exists()
    stalled = supervisor.hear("stalled")
    assert stalled["step"] == 5
    assert stalled["stall_s"] > 0


def test_a_checkpoint_that_was_asked_for_says_so_once(supervisor: Supervisor) -> None:
    def save(step: int) -> None:
        with training.checkpoint(step):
            pass

    assert not training.should_checkpoint()
    supervisor.hear("hello")
    supervisor.say("decide", token=1, boundary=2)
    link = training._opened
    assert link is not None
    eventually(lambda: link._target == 2)
    assert training.should_checkpoint()
    for step, asked in ((2, True), (3, False)):
        script = threading.Thread(target=save, args=(step,))
        script.start()
        supervisor.hear("saving")
        assert supervisor.hear("checkpoint")["asked"] is asked
        supervisor.say("taken", step=step, park=False)
        script.join(20.0)
        supervisor.hear("stalled")


def park(supervisor: Supervisor) -> tuple[threading.Thread, threading.Event]:
    gone_on = threading.Event()

    def save() -> None:
        with training.checkpoint(5):
            pass
        gone_on.set()

    script = threading.Thread(target=save)
    script.start()
    supervisor.hear("hello")
    supervisor.hear("saving")
    supervisor.hear("checkpoint")
    supervisor.say("taken", step=5, park=True)
    link = training._opened
    assert link is not None
    eventually(lambda: link._taken.get(5), "it is parked")
    assert not gone_on.is_set()
    return script, gone_on


def test_a_parked_script_waits_for_its_end(supervisor: Supervisor) -> None:
    script, gone_on = park(supervisor)
    supervisor.say("preemption", deadline_at=None)
    supervisor.socket.shutdown(socket.SHUT_WR)
    script.join(20.0)
    assert gone_on.is_set(), "only a supervisor that is gone lets it go"


def test_a_parked_script_goes_on_when_the_planned_end_does_not_come(supervisor: Supervisor) -> None:
    script, gone_on = park(supervisor)
    supervisor.say("release", token=1)
    script.join(20.0)
    assert gone_on.is_set()


def test_a_script_that_raises_in_its_checkpoint_says_so(supervisor: Supervisor) -> None:
    with pytest.raises(RuntimeError), training.checkpoint(5) as folder:
        raise RuntimeError
    supervisor.hear("hello")
    supervisor.hear("saving")
    assert supervisor.hear("abandoned")["step"] == 5
    assert not folder.exists()
    with pytest.raises(RuntimeError), training.hand_over(6, generation=3):
        raise RuntimeError
    assert supervisor.hear("saving")["step"] == 6
    assert supervisor.hear("abandoned") == {"type": "abandoned", "step": 6, "generation": 3}


def test_a_preemption_is_seen_and_withdrawn(supervisor: Supervisor) -> None:
    assert training.preemption() is None
    supervisor.say("preemption", deadline_at=1234.5, reason="drain")
    eventually(training.preemption)
    assert training.preemption() == training.Preemption(1234.5, "drain")
    supervisor.say("preemption", deadline_at=None)
    eventually(lambda: training.preemption() is None)


def test_messages_from_a_newer_supervisor_are_ignored(supervisor: Supervisor) -> None:
    training.report(1)
    supervisor.say("dance", speed=3)
    supervisor.say("hold", token=9, colour="red")
    for kind in ("hello", "report", "held"):
        supervisor.hear(kind)


def test_a_supervisor_that_is_gone_stops_no_script(supervisor: Supervisor) -> None:
    training.report(1)
    supervisor.socket.close()
    link = training._opened
    assert link is not None
    eventually(lambda: link._closed)
    training.report(2)
    assert not training.should_checkpoint()
    with training.checkpoint(2):
        pass


def test_a_forked_process_is_alone(supervisor: Supervisor) -> None:
    training.report(1)
    child = os.fork()
    if child == 0:
        quiet = True
        try:
            training.report(2)
            quiet = not training.should_checkpoint() and training.preemption() is None
            with training.checkpoint(2):
                pass
        finally:
            os._exit(0 if quiet else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    training.report(3)
    supervisor.hear("hello")
    assert [supervisor.hear("report")["step"] for _ in range(2)] == [1, 3]
