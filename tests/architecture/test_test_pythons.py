"""`deploy/test-pythons` says loudly which version of Python nothing is tested under; CI leaves out none."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.architecture.repository import ROOT, texts

SCRIPT = ROOT / "deploy/test-pythons"
TEXT = texts()["deploy/test-pythons"]


def words(name: str) -> list[str]:
    """The words of a list in the script."""
    (value,) = re.findall(rf'^{name}="([^"]*)"', TEXT, re.MULTILINE)
    return str(value).split()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A PATH with nothing but what the script itself starts, and without any Python."""
    for name in ("sh", "dirname"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    return tmp_path


def run(folder: Path, *versions: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [folder / "sh", SCRIPT, *versions],
        env={"PATH": str(folder), "HOME": str(folder), **variables},
        capture_output=True,
        text=True,
    )


def test_a_version_that_is_not_there_is_said_loudly_in_one_sentence(folder: Path) -> None:
    done = run(folder, "3.98", "3.99")
    assert done.returncode == 0
    (sentence,) = done.stderr.splitlines()
    assert sentence.startswith("LEFT OUT: NOTHING IS TESTED UNDER PYTHON 3.98 3.99, ")


def test_a_command_of_pyenv_that_has_no_version_to_start_is_no_interpreter(folder: Path) -> None:
    (folder / "python3.98").write_text(
        "#!/bin/sh\necho 'pyenv: python3.98: command not found' >&2\nexit 127\n"
    )
    (folder / "python3.98").chmod(0o755)
    assert "PYTHON 3.98, " in run(folder, "3.98").stderr


def test_ci_leaves_out_no_version(folder: Path) -> None:
    assert run(folder, "3.98", CI="true").returncode == 1


def test_what_is_left_out_of_the_environments_and_of_the_tests_is_there() -> None:
    lock = texts()["requirements/lock.txt"]
    assert [name for name in words("LEFT_OUT") if not re.search(rf"^{name}==", lock, re.MULTILINE)] == []
    paths = [*words("TESTS"), *words("NEED_MORE"), *words("TAKE_LONG")]
    assert [path for path in paths if not any(ROOT.glob(path))] == []


def test_ci_runs_the_tests_under_each_version() -> None:
    (versions,) = re.findall(r"^PYTHONS \?= (.*)$", texts()["Makefile"], re.MULTILINE)
    assert versions.split() == ["3.12", "3.13"]
    assert "\tdeploy/test-pythons $(PYTHONS)" in texts()["Makefile"]
    assert re.search(r"^make .*\btest-pythons\b", texts()[".ci/run"], re.MULTILINE)
