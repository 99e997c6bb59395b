"""Processes are found by the mark in their environment, whatever session they are in, and ended whatever they do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator

import pytest

from cluster import processes

MARK = "REMORA_TEST_MARK"
Spawn = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def mark() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def spawn(mark: str) -> Iterator[Spawn]:
    """Starts marked Python code and returns when it has printed a line."""
    started: list[subprocess.Popen[str]] = []

    def start(code: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", code], env={**os.environ, MARK: mark}, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline()
        return process

    yield start
    processes.sweep(MARK, mark, 0.0)
    for process in started:
        process.wait(10)
        assert process.stdout is not None
        process.stdout.close()


WAIT = "import signal; print('up', flush=True); signal.pause()"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + WAIT
# A daemon: a session of its own, its parent gone.
DAEMON = """
import os, signal
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print('up', flush=True)
        signal.pause()
    os._exit(0)
os.wait()
"""
# A child that threw its environment away but has a marked parent.
BARE_CHILD = """
import subprocess, sys, signal
child = "import signal; print('up', flush=True); signal.pause()"
subprocess.Popen([sys.executable, "-S", "-c", child], env={})
signal.pause()
"""


def test_only_what_carries_the_mark_is_found(spawn: Spawn, mark: str) -> None:
    process = spawn(WAIT)
    assert [found.pid for found in processes.find_by_environment(MARK, mark)] == [process.pid]
    assert processes.find_by_environment(MARK, mark[:-1]) == []
    assert processes.find_by_environment(MARK[:-1], mark) == []


def test_daemons_and_children_without_environment_are_found(spawn: Spawn, mark: str) -> None:
    spawn(DAEMON).wait(10)
    assert len(processes.find_by_environment(MARK, mark)) == 1
    spawn(BARE_CHILD)
    assert len(processes.find_by_environment(MARK, mark)) == 3
    assert processes.sweep(MARK, mark, 1.0) == 3
    assert processes.find_by_environment(MARK, mark) == []


def test_this_process_is_never_found(mark: str) -> None:
    code = f"from cluster import processes; print(processes.find_by_environment({MARK!r}, {mark!r}))"
    answer = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, MARK: mark},
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout.strip() == "[]"


def test_the_willing_end_by_sigterm_and_the_stubborn_by_sigkill(spawn: Spawn, mark: str) -> None:
    willing, stubborn = spawn(WAIT), spawn(STUBBORN)
    processes.end(processes.find_by_environment(MARK, mark), 0.5)
    assert (willing.wait(), stubborn.wait()) == (-signal.SIGTERM, -signal.SIGKILL)


def test_without_grace_everything_is_killed_at_once(spawn: Spawn, mark: str) -> None:
    process = spawn(WAIT)
    processes.end(processes.find_by_environment(MARK, mark), 0.0)
    assert process.wait() == -signal.SIGKILL, "no signal asked it first"


def test_a_frozen_process_can_be_ended(spawn: Spawn, mark: str) -> None:
    process = spawn(WAIT)
    process.send_signal(signal.SIGSTOP)
    processes.end(processes.find_by_environment(MARK, mark), 5.0)
    assert process.wait() == -signal.SIGTERM


def test_an_identity_outlives_neither_its_process_nor_moves_to_another(spawn: Spawn) -> None:
    process = spawn(WAIT)
    first = processes.identity(process.pid)
    assert first is not None
    assert processes.is_alive(process.pid, first)
    assert not processes.is_alive(os.getpid(), first)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not processes.is_alive(process.pid, first), "a zombie does not run"
    process.wait()
    assert processes.identity(process.pid) is None


def test_waiting_says_which_processes_still_runs(spawn: Spawn, mark: str) -> None:
    process = spawn(WAIT)
    found = processes.find_by_environment(MARK, mark)
    assert processes.wait_ended(found, 0.0) == found
    process.kill()
    assert processes.wait_ended(found, 10.0) == []
    assert processes.wait_ended([], 0.0) == []
