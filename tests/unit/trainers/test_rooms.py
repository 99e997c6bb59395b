"""What lies in a room is reached, and nothing else: links, names that lead away and deep folders are refused."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainers.rooms import MAX_DEPTH, NotInRoom, Room, parts_of, remove_tree


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    """A folder that nothing here may touch."""
    folder = tmp_path / "canary"
    folder.mkdir()
    (folder / "bird").write_text("sings")
    return folder


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    (tmp_path / "room").mkdir()
    with Room(tmp_path / "room") as opened:
        yield opened


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Room]:
    (tmp_path / "other").mkdir()
    with Room(tmp_path / "other") as opened:
        yield opened


def _is_alive(canary: Path) -> bool:
    return [path.name for path in canary.iterdir()] == ["bird"] and (canary / "bird").read_text() == "sings"


@pytest.mark.parametrize(
    "name", ["", ".", "..", "/etc", "../canary", "a/../../canary", "a/../b", "a//b", "a/", "./a", "a\0b"]
)
def test_names_that_could_mean_another_place_are_refused(name: str, room: Room) -> None:
    with pytest.raises(NotInRoom):
        parts_of(name)
    for act in (room.open_file, room.open_to_write, room.room, room.make_folder, room.remove, room.status):
        with pytest.raises(NotInRoom):
            act(name)


def test_names_with_dots_that_mean_no_other_place_are_names() -> None:
    assert parts_of("..a/b../.c/d") == ("..a", "b..", ".c", "d")


def test_links_are_followed_by_nothing(room: Room, other: Room, canary: Path) -> None:
    (room.path / "folder").symlink_to(canary)
    (room.path / "file").symlink_to(canary / "bird")

    for reach in (room.room, room.open_file, room.open_to_write):
        for name in ("folder", "file"):
            with pytest.raises(NotInRoom):
                reach(name)
    for act in (room.open_file, room.open_to_write, room.make_folder, room.remove):
        with pytest.raises(NotInRoom):
            act("folder/bird")
    with pytest.raises(NotInRoom):
        room.move("folder", other, "mine")
    with pytest.raises(NotInRoom):
        Room(room.path / "folder")

    assert list(room.files()) == []
    assert list(other.path.iterdir()) == []
    room.remove("folder")
    room.remove("file")
    assert list(room.path.iterdir()) == []
    assert _is_alive(canary)


def test_a_link_that_takes_a_folders_place_in_the_last_moment_is_not_followed(
    room: Room, other: Room, canary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (room.path / "folder").mkdir()
    rename = os.rename

    def late(source: str, new: str, **folders: int) -> None:
        (room.path / "folder").rmdir()
        (room.path / "folder").symlink_to(canary)
        rename(source, new, **folders)

    monkeypatch.setattr(os, "rename", late)

    with pytest.raises(NotInRoom):
        room.move("folder", other, "mine")

    assert list(other.path.iterdir()) == []
    assert _is_alive(canary)


def test_a_moved_folder_is_the_same_one_whatever_its_old_name_is_now(
    room: Room, other: Room, canary: Path
) -> None:
    (room.path / "folder" / "below").mkdir(parents=True)
    (room.path / "folder" / "below" / "file").write_bytes(b"saved")

    with room.move("folder", other, "mine") as moved:
        (room.path / "folder").symlink_to(canary)
        (other.path / "mine").rename(other.path / "elsewhere")
        (other.path / "mine").symlink_to(canary)

        assert [name for name, _ in moved.files()] == ["below/file"]
        with moved.open_file("below/file") as file:
            assert file.read() == b"saved"


def test_only_files_are_opened_and_a_pipe_is_waited_for_by_nobody(room: Room) -> None:
    os.mkfifo(room.path / "pipe")
    (room.path / "folder").mkdir()

    opened: list[BaseException | None] = []

    def open_all() -> None:
        for act in (room.open_file, room.open_to_write):
            for name in ("pipe", "folder"):
                try:
                    act(name)
                except OSError as error:
                    opened.append(error)

    thread = threading.Thread(target=open_all, daemon=True)
    thread.start()
    thread.join(10.0)

    assert len(opened) == 4
    assert list(room.files()) == []


def test_folders_that_are_deeper_than_any_checkpoint_are_refused_and_removed(room: Room) -> None:
    subprocess.run(
        [sys.executable, "-S", "-c", "import os\nfor _ in range(1500): os.mkdir('deep'); os.chdir('deep')"],
        cwd=room.path, check=True, timeout=60,
    )  # fmt: skip
    with pytest.raises(NotInRoom, match=f"more than {MAX_DEPTH} folders"):
        list(room.files())

    remove_tree(room.path)

    is_left = room.path.exists()
    # pytest itself cannot remove what a failure leaves.
    subprocess.run(["/bin/rm", "-rf", str(room.path)], check=True, timeout=60)
    assert not is_left


def test_what_a_script_has_forbidden_itself_is_removed(room: Room, canary: Path) -> None:
    below = room.path / "outer" / "inner"
    below.mkdir(parents=True)
    (below / "file").write_text("x")
    (below / "link").symlink_to(canary)
    below.chmod(0o000)
    (room.path / "outer").chmod(0o500)

    room.remove("outer")
    room.remove("outer")

    assert list(room.path.iterdir()) == []
    assert _is_alive(canary)
