"""Runs a demo as `make` does, from outside, and reads its one line for programs."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.e2e.processes import processes_with

ROOT = Path(__file__).parents[2]


def run_demo(
    command: Sequence[str | Path],
    home: Path,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 580.0,
) -> tuple[dict[str, Any], str]:
    """The line for programs of a demo that succeeds and leaves no process behind, and all that it printed."""
    bare = {"PATH": "/usr/bin:/bin", "HOME": str(home.parent)}
    done = subprocess.run(
        [sys.executable, *command, "--home", home],
        cwd=ROOT,
        env={**(bare if environment is None else environment), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    assert processes_with(str(home)) == []
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result, done.stdout


def command_of(target: str, script: str = "demo.py") -> list[str]:
    """What `make` gives its interpreter to do for a target."""
    shown = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True)
    (line,) = [line for line in shown.stdout.splitlines() if f"examples/{script}" in line]
    return shlex.split(line.partition("/python ")[2])
