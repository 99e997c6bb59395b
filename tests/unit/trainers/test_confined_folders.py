"""Names reach what lies in the folder, and nothing else: links, names that lead away and deep folders are refused."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainers.confined_folders import MAX_DEPTH, ConfinedFolder, OutsideFolder, parts_of, remove_tree


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    """A folder that nothing here may touch."""
    folder = tmp_path / "canary"
    folder.mkdir()
    (folder / "bird").write_text("sings")
    return folder


@pytest.fixture
def confined(tmp_path: Path) -> Iterator[ConfinedFolder]:
    (tmp_path / "confined").mkdir()
    with ConfinedFolder(tmp_path / "confined") as opened:
        yield opened


@pytest.fixture
def other(tmp_path: Path) -> Iterator[ConfinedFolder]:
    (tmp_path / "other").mkdir()
    with ConfinedFolder(tmp_path / "other") as opened:
        yield opened


def _is_alive(canary: Path) -> bool:
    return [path.name for path in canary.iterdir()] == ["bird"] and (canary / "bird").read_text() == "sings"


@pytest.mark.parametrize(
    "name", ["", ".", "..", "/etc", "../canary", "a/../../canary", "a/../b", "a//b", "a/", "./a", "a\0b"]
)
def test_names_that_could_mean_another_place_are_refused(name: str, confined: ConfinedFolder) -> None:
    with pytest.raises(OutsideFolder):
        parts_of(name)
    for act in (
        confined.open_file,
        confined.open_to_write,
        confined.subfolder,
        confined.make_folder,
        confined.remove,
        confined.status,
    ):
        with pytest.raises(OutsideFolder):
            act(name)


def test_names_with_dots_that_mean_no_other_place_are_names() -> None:
    assert parts_of("..a/b../.c/d") == ("..a", "b..", ".c", "d")


def test_links_are_followed_by_nothing(confined: ConfinedFolder, other: ConfinedFolder, canary: Path) -> None:
    (confined.path / "folder").symlink_to(canary)
    (confined.path / "file").symlink_to(canary / "bird")

    for reach in (confined.subfolder, confined.open_file, confined.open_to_write):
        for name in ("folder", "file"):
            with pytest.raises(OutsideFolder):
                reach(name)
    for act in (confined.open_file, confined.open_to_write, confined.make_folder, confined.remove):
        with pytest.raises(OutsideFolder):
            act("folder/bird")
    with pytest.raises(OutsideFolder):
        confined.move("folder", other, "mine")
    with pytest.raises(OutsideFolder):
        ConfinedFolder(confined.path / "folder")

    assert list(confined.files()) == []
    assert list(other.path.iterdir()) == []
    confined.remove("folder")
    confined.remove("file")
    assert list(confined.path.iterdir()) == []
    assert _is_alive(canary)


def test_a_link_that_takes_a_folders_place_in_the_last_moment_is_not_followed(
    confined: ConfinedFolder, other: ConfinedFolder, canary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (confined.path / "folder").mkdir()
    rename = os.rename

    def late(source: str, new: str, **folders: int) -> None:
        (confined.path / "folder").rmdir()
        (confined.path / "folder").symlink_to(canary)
        rename(source, new, **folders)

    monkeypatch.setattr(os, "rename", late)

    with pytest.raises(OutsideFolder):
        confined.move("folder", other, "mine")

    assert list(other.path.iterdir()) == []
    assert _is_alive(canary)


def test_a_moved_folder_is_the_same_one_whatever_its_old_name_is_now(
    confined: ConfinedFolder, other: ConfinedFolder, canary: Path
) -> None:
    (confined.path / "folder" / "below").mkdir(parents=True)
    (confined.path / "folder" / "below" / "file").write_bytes(b"saved")

    with confined.move("folder", other, "mine") as moved:
        (confined.path / "folder").symlink_to(canary)
        (other.path / "mine").rename(other.path / "elsewhere")
        (other.path / "mine").symlink_to(canary)

        assert [name for name, _ in moved.files()] == ["below/file"]
        with moved.open_file("below/file") as file:
            assert file.read() == b"saved"


def test_only_files_are_opened_and_no_call_waits_for_a_pipe(confined: ConfinedFolder) -> None:
    os.mkfifo(confined.path / "pipe")
    (confined.path / "folder").mkdir()

    opened: list[BaseException | None] = []

    def open_all() -> None:
        for act in (confined.open_file, confined.open_to_write):
            for name in ("pipe", "folder"):
                try:
                    act(name)
                except OSError as error:
                    opened.append(error)

    thread = threading.Thread(target=open_all, daemon=True)
    thread.start()
    thread.join(10.0)

    assert len(opened) == 4
    assert list(confined.files()) == []


def test_folders_that_are_deeper_than_any_checkpoint_are_refused_and_removed(
    confined: ConfinedFolder,
) -> None:
    subprocess.run(
        [sys.executable, "-S", "-c", "import os\nfor _ in range(1500): os.mkdir('deep'); os.chdir('deep')"],
        cwd=confined.path, check=True, timeout=60,
    )  # fmt: skip
    with pytest.raises(OutsideFolder, match=f"more than {MAX_DEPTH} folders"):
        list(confined.files())

    remove_tree(confined.path)

    is_left = confined.path.exists()
    # pytest itself cannot remove what a failure leaves.
    subprocess.run(["/bin/rm", "-rf", str(confined.path)], check=True, timeout=60)
    assert not is_left


def test_what_a_script_has_forbidden_itself_is_removed(confined: ConfinedFolder, canary: Path) -> None:
    below = confined.path / "outer" / "inner"
    below.mkdir(parents=True)
    (below / "file").write_text("x")
    (below / "link").symlink_to(canary)
    below.chmod(0o000)
    (confined.path / "outer").chmod(0o500)

    confined.remove("outer")
    confined.remove("outer")

    assert list(confined.path.iterdir()) == []
    assert _is_alive(canary)
