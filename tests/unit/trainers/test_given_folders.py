"""Folders that are given to a job's user, or back: also those that a script has made to be walked through by no one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainers.confined_folders import OutsideFolder, remove_tree
from trainers.isolation.confined import ConfinedJob
from trainers.isolation.giving import MOST_DEEP, give

UID = 2_000_920_000
DEEP = """
import os, sys
os.chdir(sys.argv[1])
for _ in range(int(sys.argv[2])):
    os.mkdir("d"); os.chdir("d")
open("file", "w")
"""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


def make_deep(folder: Path, levels: int) -> None:
    folder.mkdir()
    (folder / "z").write_text("beside")
    subprocess.run([sys.executable, "-c", DEEP, str(folder), str(levels)], check=True)


def owner(folder: Path, levels: int) -> int:
    return folder.joinpath(*["d"] * levels).stat().st_uid


@needs_root
def test_a_folder_is_given_with_all_that_is_in_it(tmp_path: Path) -> None:
    make_deep(tmp_path / "tree", MOST_DEEP - 1)
    give(tmp_path / "tree", UID)
    assert owner(tmp_path / "tree", MOST_DEEP - 1) == UID
    assert (tmp_path / "tree" / "z").stat().st_uid == UID


@needs_root
def test_a_tree_without_end_is_said_and_the_rest_is_given(tmp_path: Path) -> None:
    make_deep(tmp_path / "tree", 3000)
    with pytest.raises(OutsideFolder, match="more than 256 others"):
        give(tmp_path / "tree", UID)
    assert [owner(tmp_path / "tree", levels) for levels in (0, MOST_DEEP, MOST_DEEP + 1)] == [UID, UID, 0]
    assert (tmp_path / "tree" / "z").stat().st_uid == UID
    job = ConfinedJob(uid=UID, groups=(UID,), name="job", temporary=tmp_path, home=tmp_path, kept=tmp_path)
    job.own(tmp_path / "tree", tmp_path / "missing")
    remove_tree(tmp_path / "tree")
