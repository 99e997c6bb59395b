"""`remora top` against a real service: on a terminal until Ctrl-C, in a pipe once, and as JSON."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
import uvicorn

from service.api.app import create_app
from service.settings import Settings

REMORA = [sys.executable, "-m", "remora", "top"]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[str]:
    listening = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    server = uvicorn.Server(uvicorn.Config(create_app(Settings(home=tmp_path / "home")), log_config=None))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        answer = httpx2.post(f"{url}/v1/jobs", json={"name": "watched", "command": ["true"]})
        assert answer.status_code == 201
        yield url
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


def test_in_a_pipe_it_is_printed_once(service: str) -> None:
    done = subprocess.run([*REMORA, "--server", service], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    head, job, pools, pool = done.stdout.splitlines()
    assert head.split() == ["JOB", "NAME", "STATE", "STEP", "LEFT", "WORKERS", "PROJECT", "WHY"]
    assert "watched" in job
    assert pools.split()[:2] == ["POOL", "NODES"]
    assert pool.split()[:4] == ["local", "none", "of", "3"]


def test_as_json_it_is_one_document(service: str) -> None:
    words = [*REMORA, "--server", service, "--json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    seen = json.loads(done.stdout)
    assert [job["name"] for job in seen["jobs"]] == ["watched"]
    assert ([pool["name"] for pool in seen["pools"]], seen["nodes"]) == (["local"], [])


def test_on_a_terminal_it_goes_on_until_ctrl_c(service: str) -> None:
    terminal, theirs = pty.openpty()
    words = [*REMORA, "--server", service, "--every", "500ms"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "160", "LINES": "40"}
    with subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        read_until(terminal, b"watched")
        second = httpx2.post(f"{service}/v1/jobs", json={"name": "later", "command": ["true"]})
        assert second.status_code == 201
        read_until(terminal, b"later")
        process.send_signal(signal.SIGINT)
        read_until(terminal, b"\x1b[?1049l")
        assert process.wait(timeout=60) == 0
    os.close(terminal)


def read_until(terminal: int, words: bytes) -> None:
    """Read what is drawn until the words are there: the last ones give the terminal its own screen back."""
    seen, deadline = b"", time.monotonic() + 60
    while words not in seen:
        assert time.monotonic() < deadline, seen[-2000:]
        if select.select([terminal], [], [], 1.0)[0]:
            seen += os.read(terminal, 65536)


@pytest.mark.parametrize("every", ["soon", "-1s"])
def test_a_wrong_duration_is_named(service: str, every: str) -> None:
    words = [*REMORA, "--server", service, f"--every={every}"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "--every" in done.stderr
    assert "Traceback" not in done.stderr
