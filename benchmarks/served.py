"""Servers that benchmarks ask, each a process of its own."""

from __future__ import annotations

import contextlib
import http.client
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil

_ROOT = Path(__file__).parent.parent


@contextlib.contextmanager
def serve(
    words: Sequence[str], settings: Mapping[str, str], address: Path
) -> Iterator[tuple[str, psutil.Process]]:
    """Run Python with `words` until the end; its host and port, which it writes to `address`, and its process.

    Variables of Remora of this process do not reach it.  Raises RuntimeError when it ends before it answers.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("REMORA_")}
    process = subprocess.Popen(
        [sys.executable, *words],
        env={**environment, **settings, "PYTHONPATH": str(_ROOT)},
        cwd=_ROOT,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        while not address.exists() or not address.read_text().endswith("\n"):
            if process.poll() is not None:
                raise RuntimeError(f"the server ended with {process.returncode}")
            time.sleep(0.05)
        host = address.read_text().strip().removeprefix("http://")
        _until_it_answers(host)
        yield host, psutil.Process(process.pid)
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _until_it_answers(host: str) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            connection = http.client.HTTPConnection(host, timeout=5)
            connection.request("GET", "/healthz")
            connection.getresponse().read()
            connection.close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return
