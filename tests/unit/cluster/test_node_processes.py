"""A node's two processes: Ray's end is the node's, the agent's is not, and nothing is left of either."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from cluster.node import node_processes
from cluster.processes import sweep

#: Says its pid in a file, one line for each start, and waits.
STAYS = """
import os, signal, sys
with open(sys.argv[1], "a") as file:
    file.write(f"{os.getpid()} {os.environ['MARK']}\\n")
signal.pause()
"""
#: The same with a child that takes no SIGTERM.
STUBBORN = """
import subprocess, sys
child = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); signal.pause()"
process = subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE)
process.stdout.readline()
with open(sys.argv[1], "a") as file:
    file.write(f"{process.pid} stubborn\\n")
process.wait()
"""


def until(seen: Callable[[], bool], what: str) -> None:
    pause = threading.Event()
    for _ in range(1200):
        if seen():
            return
        pause.wait(0.05)
    pytest.fail(f"not within a minute: {what}")


class Node:
    """`processes.run` in a thread, with scripts for Ray and the agent."""

    def __init__(self, folder: Path, thread: ThreadPoolExecutor) -> None:
        self._folder = folder
        self._thread = thread
        self.stopping = threading.Event()
        self.pid_file = folder / "ray.pid"

    def run(self, ray: str = STAYS, agent: str = STAYS) -> Future[int | None]:
        words = [
            [sys.executable, "-c", script, str(self._folder / name)]
            for name, script in (("ray", ray), ("agent", agent))
        ]
        return self._thread.submit(
            node_processes.run, words[0], words[1], {"MARK": str(self._folder)}, self.pid_file, self.stopping
        )

    def starts(self, name: str) -> list[int]:
        file = self._folder / name
        return [int(line.split()[0]) for line in file.read_text().splitlines()] if file.exists() else []

    def runs(self) -> None:
        """Wait until both have begun."""
        until(lambda: bool(self.starts("ray") and self.starts("agent")), "both run")

    def left(self) -> list[int]:
        return [pid for name in ("ray", "agent") for pid in self.starts(name) if psutil.pid_exists(pid)]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    monkeypatch.setattr(node_processes, "LOOK_S", 0.01)
    monkeypatch.setattr(node_processes, "AGENT_AGAIN_S", 0.0)
    with ThreadPoolExecutor(1) as thread:
        node = Node(tmp_path, thread)
        yield node
        node.stopping.set()
    sweep("MARK", str(tmp_path), 0.0)


def test_what_is_stopped_ends_both_and_has_no_status(node: Node) -> None:
    ended = node.run()
    node.runs()
    assert int(node.pid_file.read_text()) == node.starts("ray")[0]
    node.stopping.set()
    assert ended.result(60.0) is None
    assert node.left() == []
    assert not node.pid_file.exists()


def test_when_ray_ends_the_agent_ends_and_its_status_is_reported(node: Node) -> None:
    ended = node.run()
    node.runs()
    os.kill(node.starts("ray")[0], signal.SIGKILL)
    assert ended.result(60.0) == -signal.SIGKILL
    assert node.left() == []


def test_an_agent_that_ends_is_started_again_and_ray_stays(node: Node) -> None:
    ended = node.run()
    node.runs()
    (ray,), (agent,) = node.starts("ray"), node.starts("agent")
    os.kill(agent, signal.SIGKILL)
    until(lambda: len(node.starts("agent")) == 2, "another agent runs")
    assert not ended.done()
    assert node.starts("ray") == [ray]
    node.stopping.set()
    assert ended.result(60.0) is None
    assert node.left() == []


def test_what_a_process_started_ends_with_it_even_against_its_will(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_processes, "GRACE_S", 0.2)
    ended = node.run(ray=STUBBORN)
    node.runs()
    node.stopping.set()
    assert ended.result(60.0) is None
    until(lambda: node.left() == [], "the child is gone")
