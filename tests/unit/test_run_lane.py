"""A failed test is run once more, alone; what fails twice, or was never run, is red."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.run_lane import run_lane

FAILS_ONCE = """
from pathlib import Path
def test_fails_once():
    ran = Path(__file__).with_name("ran")
    had_run = ran.exists()
    ran.touch()
    assert had_run
"""
PASSES = """
from pathlib import Path
def test_passes():
    with Path(__file__).with_name("passed").open("a") as passed:
        passed.write("x")
"""
FAILS = "def test_fails(): assert False\n"
#: More failures than stop a lane.
MANY = "import pytest\n@pytest.mark.parametrize('number', range(40))\ndef test_fails(number): assert False\n"


def lane(folder: Path, **files: str) -> int:
    for name, text in files.items():
        (folder / f"test_{name}.py").write_text(text)
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}

    def run(arguments: list[str]) -> int:
        command = [sys.executable, "-m", "pytest", "-p", "xdist.plugin", *arguments, "."]
        return subprocess.run(
            command, cwd=folder, env=environment, check=False, capture_output=True
        ).returncode

    return run_lane("not slow", run, folder / "cache")


def test_a_test_that_passes_alone_is_no_failure_and_no_other_runs_again(tmp_path: Path) -> None:
    assert lane(tmp_path, once=FAILS_ONCE, passes=PASSES) == 0
    assert (tmp_path / "passed").read_text() == "x"


def test_a_test_that_fails_twice_is_a_failure(tmp_path: Path) -> None:
    assert lane(tmp_path, fails=FAILS, passes=PASSES) == pytest.ExitCode.TESTS_FAILED


def test_a_lane_that_stopped_early_is_not_made_green_by_its_failures(tmp_path: Path) -> None:
    assert lane(tmp_path, many=MANY) == pytest.ExitCode.INTERRUPTED


def test_a_file_that_cannot_be_read_is_a_failure(tmp_path: Path) -> None:
    assert lane(tmp_path, broken="import nothing_of_that_name\n", passes=PASSES) != 0
