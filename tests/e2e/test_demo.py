"""What `make demo` and `make demo-restart` run, from outside: its exit code, and the one line for programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.demos import command_of, run_demo

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.framework("PyTorch with Loop", "metrics")
@pytest.mark.parametrize(
    ("target", "options"),
    [
        # Fewer steps, which wait most of their time: a new node has a minute in which to train with the others.
        pytest.param("demo", ["--command", "python train.py --steps 600 --least-step-s 0.13"], id="demo"),
        pytest.param("demo", [], marks=pytest.mark.soak, id="demo-whole"),
        pytest.param("demo-restart", [], marks=pytest.mark.soak, id="demo-restart"),
    ],
)
def test_the_demo_holds_what_it_promises(target: str, options: list[str], tmp_path: Path) -> None:
    home = tmp_path / "demo"
    # How fast it is depends on what else the machine does; that is for benchmarks to measure.
    result, said = run_demo([*command_of(target), "--recovery-limit", "150", *options], home)
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
    assert "SIGKILL to every process of" in said
