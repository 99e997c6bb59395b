"""What `make demo` and `make demo-restart` run, from outside: its exit code, and the one line for programs."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.processes import processes_with

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]


@pytest.mark.framework("PyTorch with Loop", "metrics")
@pytest.mark.parametrize("target", ["demo", pytest.param("demo-restart", marks=pytest.mark.soak)])
def test_the_demo_holds_what_it_promises(target: str, tmp_path: Path) -> None:
    home = tmp_path / "demo"
    done = subprocess.run(
        # How fast it is depends on what else the machine does; that is for benchmarks to measure.
        [sys.executable, *command_of(target), "--home", home, "--recovery-limit", "150"],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=580,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert set(result) >= {
        "accuracy", "steps", "repeated_steps", "recovery_s", "world_sizes", "attempts", "checkpoint",
    }  # fmt: skip
    assert 0.95 <= result["accuracy"] <= 1.0
    assert result["recovery_s"] > 0
    assert 0 <= result["repeated_steps"] < (1 if target == "demo" else result["steps"])
    first, *later = result["world_sizes"]
    # The node may be replaced before the workers that are left have started again.
    assert first == 3
    assert 3 in later
    assert set(later) <= {2, 3}
    assert result["attempts"] == 1
    assert Path(result["checkpoint"]).is_dir()
    assert home in Path(result["checkpoint"]).parents
    assert "SIGKILL to every process of" in done.stdout
    assert processes_with(str(home)) == []


def command_of(target: str, script: str = "demo.py") -> list[str]:
    """What `make` gives its interpreter to do for a target."""
    shown = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True)
    (line,) = [line for line in shown.stdout.splitlines() if f"examples/{script}" in line]
    return shlex.split(line.partition("/python ")[2])
