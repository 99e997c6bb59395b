"""What `remora-server install` says before it makes anything, and whose its folders are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from service.installation.__main__ import main

MISSING_USER = "remora-of-no-machine"


def install(prefix: Path, *words: str) -> int:
    return main(["install", "--prefix", str(prefix), "--wheel", "remora-9-py3-none-any.whl", *words])


def test_a_user_that_is_not_there_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = os.umask(0o077)
    try:
        assert install(tmp_path / "remora", "--user", MISSING_USER) == 1
    finally:
        os.umask(before)
    assert f"useradd --system --user-group {MISSING_USER}" in capsys.readouterr().err


def test_supervisord_runs_processes_as_its_own_user(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert install(tmp_path / "remora", "--supervisor", "supervisord", "--user", MISSING_USER) == 1
    assert "leave --user out" in capsys.readouterr().err
    assert not (tmp_path / "remora").exists()


def test_a_wheel_that_is_not_there_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert install(tmp_path / "remora") == 1
    assert "cannot be read" in capsys.readouterr().err
    # Nothing is installed: the same command begins again.
    assert not (tmp_path / "remora" / "installation.json").exists()
    assert (tmp_path / "remora" / "backups").stat().st_mode & 0o077 == 0
