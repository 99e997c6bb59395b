"""A benchmark that could not measure a part says so and fails; what it left out as told is no fault."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import without_figure
from benchmarks.backends import names

ROOT = Path(__file__).parents[3]


def run(out: Path, *left_out: str) -> subprocess.CompletedProcess[str]:
    """`python -m benchmarks backends` where no program is found."""
    options = [word for name in left_out for word in ("--leave-out", name)]
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", "backends", "--out", str(out), *options],
        cwd=ROOT,
        env={"PATH": str(out), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )


def test_a_framework_that_is_missing_is_said_and_fails(tmp_path: Path) -> None:
    done = run(tmp_path, *(name for name in names() if name != "mpi"))
    assert done.returncode == 1, done.stderr
    assert "mpi IS NOT MEASURED: Open MPI is not installed" in done.stderr
    assert "fsdp was left out, as asked" in done.stderr
    assert json.loads((tmp_path / "backends.json").read_text())["missing"].keys() == {"mpi"}


def test_what_was_left_out_as_told_is_said_and_is_no_fault(tmp_path: Path) -> None:
    done = run(tmp_path, *names())
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "backends.json").read_text()) == {"left_out": names()}


MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in (ROOT / "benchmarks").rglob("*.py")
    if not path.stem.endswith("_train") and path.stem not in ("__init__", "__main__")
)


@pytest.mark.parametrize("module", MODULES)
def test_every_benchmark_can_be_imported(module: str) -> None:
    importlib.import_module(module)


def test_a_part_that_failed_is_said_with_its_reason() -> None:
    document = {"failed": {"zero": "RuntimeError: no"}, "steady_ratio": {"mpi": 1.0}}
    assert list(without_figure(document)) == ["zero FAILED: RuntimeError: no"]
