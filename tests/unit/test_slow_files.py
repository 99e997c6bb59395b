"""The slow lane reads the files that have the mark; a slow test that it would not find is an error of the fast lane."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.slow_files import ROOT, slow_files

#: Spelled so that this file has none of its marks itself.
MARK = "pytest." + "mark"
TEST = "def test_it(): pass\n"
ROW = f"pytest.param(1, marks={MARK}.slow)"
SOME = f"@{MARK}.soak\n@{MARK}.slow\n{TEST}"


@pytest.mark.parametrize(
    ("text", "is_read"),
    [
        (f"@{MARK}.slow\n{TEST}", True),
        (f"pytestmark = {MARK}.slow\n{TEST}", True),
        (f"@{MARK}.parametrize('number', [{ROW}])\ndef test_it(number): pass\n", True),
        (f"pytestmark = [{MARK}.slow]\n{SOME}", True),
        (f"pytestmark = [\n    {MARK}.slow,\n    {MARK}.timeout(9),\n]\n{SOME}", True),
        (f"pytestmark = [{MARK}.slow, {MARK}.soak]\n{TEST}", False),
        (f"pytestmark = [\n    {MARK}.slow,\n    {MARK}.soak,\n]\n{TEST}", False),
        (TEST, False),
    ],
)
def test_it_reads_what_may_have_a_test_of_it(tmp_path: Path, text: str, is_read: bool) -> None:
    (tmp_path / "tests/deep").mkdir(parents=True)
    for name in ("tests/deep/test_it.py", "test_elsewhere.py", "tests/no_test.py"):
        (tmp_path / name).write_text(text)
    assert slow_files(tmp_path) == (["tests/deep/test_it.py"] if is_read else [])


@pytest.mark.parametrize(
    ("marks", "processes", "is_lost"),
    [
        (["slow"], "0", True),
        (["slow"], "1", True),
        (["slow", "soak"], "0", False),
        ([], "0", False),
    ],
    ids=str,
)
def test_a_mark_that_a_file_does_not_show_is_an_error_of_a_run_that_reads_it(
    tmp_path: Path, marks: list[str], processes: str, is_lost: bool
) -> None:
    """As one does that the conftest.py of a folder gives to its tests."""
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/test_it.py").write_text(TEST)
    (tmp_path / "deep/conftest.py").write_text(
        f"def pytest_collection_modifyitems(items):\n    [items[0].add_marker(mark) for mark in {marks}]\n"
    )
    (tmp_path / "test_other.py").write_text(TEST)
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_collection_modifyitems\n")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-n", processes, "-m", "not slow and not soak"),
            *("-c", ROOT / "pyproject.toml", "-p", "no:cacheprovider", "--rootdir", tmp_path, tmp_path),
        ],
        cwd=ROOT, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert (done.returncode != pytest.ExitCode.OK) == is_lost, done.stdout
    assert ("The slow lane does not read this file" in done.stdout) == is_lost
