"""Which Python environments a command without users of its own is shown because its job names them by a path."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainers.isolation.named_environment import named_environment


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of the node's user; what platforms keep is in hidden folders of it, but for `home/platform`."""
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    for name, folder in (("HOME", ""), ("REMORA_HOME", "platform"), ("REMORA_WORK_DIR", ".work")):
        monkeypatch.setenv(name, str(home / folder))
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
    return home


def program_in(folder: Path, base: Path | None = None) -> str:
    """A Python environment, based on another folder if that is given; returns its program."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").write_text("#!/bin/sh\n")
    (folder / "bin" / "python").chmod(0o755)
    if base is not None:
        (folder / "pyvenv.cfg").write_text(f"home = {base}/bin\nversion = 3.12\n")
    return str(folder / "bin" / "python")


def interpreter_in(folder: Path) -> Path:
    (folder / "lib" / "python3.12").mkdir(parents=True)
    (folder / "lib" / "python3.12" / "os.py").touch()
    return folder


@pytest.mark.parametrize("base", ["python", ".local/share/uv/python/3.12", ".pyenv/versions/3.12"])
def test_an_environment_of_the_nodes_user_is_shown_with_the_interpreter_below_it(
    home: Path, base: str
) -> None:
    python = interpreter_in(home / base)
    program = program_in(home / "project" / ".venv", python)
    assert named_environment(program, []) == [home / "project" / ".venv", python]


def test_an_environment_of_conda_is_shown_and_other_programs_show_nothing(home: Path) -> None:
    conda, plain = program_in(home / "conda"), program_in(home / "plain")
    (home / "conda" / "conda-meta").mkdir()
    assert named_environment(conda, []) == [home / "conda"]
    for program in (plain, "python", "own/bin/python", str(home / "conda" / "bin" / "none")):
        assert named_environment(program, []) == []


def test_what_a_command_could_have_written_is_not_read(home: Path) -> None:
    python = interpreter_in(home / "python")
    for written in (home / ".work", home / "caches"):
        program = program_in(written / "group" / "env", python)
        assert named_environment(program, [home / "caches"]) == []
    # Temporary folders are among those, and so is a link that leads there.
    (home / "link").symlink_to(home / "caches")
    assert named_environment(str(home / "link/group/env/bin/python"), [home / "caches"]) == []
    assert named_environment(program_in(home / "here", python)) == []


@pytest.mark.parametrize("base", ["", "..", "platform", "platform/folder", ".ssh", ".work", "documents"])
def test_no_environment_shows_what_is_no_interpreter_or_belongs_to_the_platform(
    home: Path, base: str
) -> None:
    hidden = (home / base).resolve()
    program = program_in(home / "env", hidden)
    if base != "documents":
        interpreter_in(hidden)
    assert named_environment(program, []) == [home / "env"]


@pytest.mark.parametrize("prefix", ["", "platform", "platform/folder", ".ssh/x", ".local/share/other"])
def test_no_folder_of_the_platform_is_an_environment(home: Path, prefix: str) -> None:
    program = program_in(home / prefix, interpreter_in(home / "python"))
    (home / prefix / "conda-meta").mkdir()
    assert named_environment(program, []) == []


@pytest.mark.parametrize("at", ["env", "env/pyvenv.cfg", "."])
def test_what_other_users_may_change_is_not_read(home: Path, at: str) -> None:
    python = interpreter_in(home / "python")
    program = program_in(home / "env", python)
    assert named_environment(program, []) != []
    path = home / at
    path.chmod(path.stat().st_mode | 0o002)
    assert named_environment(program, []) == []


def test_settings_that_are_a_link_are_not_read(home: Path) -> None:
    program = program_in(home / "env", interpreter_in(home / "python"))
    (home / "env" / "pyvenv.cfg").rename(home / "elsewhere")
    (home / "env" / "pyvenv.cfg").symlink_to(home / "elsewhere")
    assert named_environment(program, []) == []
