"""`deploy/make-venv` never mixes two Pythons in one environment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(600)]

MAKE_VENV = Path(__file__).parents[2] / "deploy" / "make-venv"


def make(folder: Path) -> str:
    done = subprocess.run([MAKE_VENV, sys.executable, folder], capture_output=True, text=True, check=True)
    return done.stdout


def test_an_environment_of_another_python_is_made_again_and_ones_own_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / "venv"
    assert make(folder) == ""
    mark = folder / "mark"
    mark.touch()
    assert make(folder) == ""
    assert mark.exists()
    other = folder / "bin" / "python"
    other.unlink()
    other.write_text("#!/bin/sh\necho /another/python 3.99\n")
    other.chmod(0o755)
    assert "was made by another Python and is made again" in make(folder)
    assert not mark.exists()
    assert os.access(folder / "bin" / "python", os.X_OK)
