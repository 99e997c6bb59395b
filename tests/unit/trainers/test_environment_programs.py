"""A program that makes a part of an environment ends with its first process, whatever that leaves running."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.processes import until
from trainers.environments.commands import EnvironmentFailed, TimeLimit, run_program

#: A child that holds the output open, and prints on if it is asked to, until it is ended.
DAEMON = """
import os, sys
print("begins", flush=True)
if os.fork() == 0:
    open(sys.argv[1], "w").write(str(os.getpid()))
    while True:
        print("more " * 100, flush=True) if sys.argv[2] == "chatty" else __import__("signal").pause()
print("the last line", end="")
sys.stdout.flush()
while not os.path.exists(sys.argv[1]) or not open(sys.argv[1]).read():
    pass
os._exit(int(sys.argv[3]))
"""


def run(tmp_path: Path, *words: str) -> list[str]:
    limit = TimeLimit(deadline=time.monotonic() + 60, too_late="the limit was waited for")
    command = [sys.executable, "-c", DAEMON, str(tmp_path / "pid"), *words]
    return run_program("setup failed", command, tmp_path, dict(os.environ), limit)


@pytest.mark.parametrize("kind", ["silent", "chatty"])
def test_what_a_program_leaves_running_does_not_hold_the_build(tmp_path: Path, kind: str) -> None:
    lines = run(tmp_path, kind, "0")
    if kind == "silent":
        assert lines == ["begins", "the last line"]
    left = int((tmp_path / "pid").read_text())
    until(lambda: not Path(f"/proc/{left}").exists(), "it is ended with its group, and reaped")


def test_its_exit_status_counts(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailed, match="setup failed: begins\nthe last line"):
        run(tmp_path, "silent", "3")
