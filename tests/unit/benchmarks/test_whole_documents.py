"""A benchmark that could not measure a part says so and fails; what it left out as asked is no fault."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import main, without_figure
from benchmarks.backends import names

ROOT = Path(__file__).parents[3]
#: Leaves parts out; returns the exit status, standard error, and the document.
Run = Callable[..., tuple[int, str, dict[str, Any]]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`python -m benchmarks backends` where no program is found."""

    def run(*left_out: str) -> tuple[int, str, dict[str, Any]]:
        options = [word for name in left_out for word in ("--leave-out", name)]
        monkeypatch.setattr(sys, "argv", ["benchmarks", "backends", "--out", str(tmp_path), *options])
        monkeypatch.setenv("PATH", str(tmp_path))
        status = main()
        return status, capsys.readouterr().err, json.loads((tmp_path / "backends.json").read_text())

    return run


def test_a_framework_that_is_missing_is_said_and_fails(run: Run) -> None:
    status, said, document = run(*(name for name in names() if name != "mpi"))
    assert status == 1
    assert "mpi IS NOT MEASURED: Open MPI is not installed" in said
    assert "fsdp was left out, as asked" in said
    assert document["missing"].keys() == {"mpi"}


def test_what_was_left_out_as_asked_is_said_and_is_no_fault(run: Run) -> None:
    status, _, document = run(*names())
    assert status == 0
    assert document == {"left_out": names()}


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
