"""An environment with what Ray's job API and Serve need, layered on ours, in which heads and nodes are started."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.needed import is_missing

ROOT = Path(__file__).parents[3]


@cache
def _folder() -> Path:
    """That environment; it is made once, and kept."""
    made = subprocess.run(["make", "ray-programs"], cwd=ROOT, capture_output=True, text=True)
    if made.returncode != 0:
        is_missing(f"Ray's job API cannot be installed here: {made.stderr.strip().splitlines()[-1:]}")
    return ROOT / ".venv-ray-programs"


def use_ray_environment(patch: pytest.MonkeyPatch) -> None:
    """Let machines that this process starts from now on run in it, and this process know of its packages."""
    (packages,) = _folder().glob("lib/python3*/site-packages")
    patch.setattr(sys, "executable", str(_folder() / "bin" / "python"))
    patch.setattr(sys, "path", [*sys.path, str(packages)])
