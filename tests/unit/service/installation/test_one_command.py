"""One command at a time changes an installation; the second one says so and changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.installation.__main__ import main
from service.installation.alone import LOCK, alone
from service.installation.layout import Installation, Layout


def state_of(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    layout = Layout(tmp_path / "remora")
    layout.home.mkdir(parents=True)
    (layout.home / "ray.token").write_text("old")
    Installation(
        supervisor="supervisord", apis=1, port=1, controllers=1, head="127.0.0.2:1", has_head=True
    ).write(layout.record)
    layout.current.symlink_to(layout.releases / "1.0-a")
    return layout


@pytest.mark.parametrize(
    "words",
    [
        ["install"],
        ["upgrade", "--wheel", "remora-9-py3-none-any.whl"],
        ["backup", "one.tar"],
        ["rotate", "--yes"],
    ],
    ids=lambda words: words[0],
)
def test_a_second_command_says_that_another_one_runs(
    layout: Layout, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    with alone(layout.prefix):
        before = state_of(layout.prefix)
        assert main([*words, "--prefix", str(layout.prefix)]) == 1
        assert state_of(layout.prefix) == before
    said = capsys.readouterr().err
    assert "another command of remora-server runs" in said
    assert said.count("\n") == 1
    # What reads alone waits for no one.
    with alone(layout.prefix):
        assert main(["status", "--prefix", str(layout.prefix)]) == 0


def test_a_restoration_does_not_end_what_another_command_starts(
    layout: Layout, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.installation.backups.read_manifest", lambda _: {"at": "x", "files": {}})
    with alone(layout.prefix):
        assert main(["restore", str(tmp_path / "one.tar"), "--prefix", str(layout.prefix)]) == 1
    assert "another command of remora-server runs" in capsys.readouterr().err


def test_the_first_installation_of_a_folder_is_one_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prefix = tmp_path / "remora"
    with alone(prefix):
        assert main(["install", "--prefix", str(prefix), "--wheel", "remora-9-py3-none-any.whl"]) == 1
    assert "another command of remora-server runs" in capsys.readouterr().err
    assert [path.name for path in prefix.iterdir()] == [LOCK]
    assert (prefix / LOCK).stat().st_mode & 0o077 == 0
    # The one before has ended.
    with alone(prefix):
        pass
