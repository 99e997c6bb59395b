"""An environment with MLflow, Weights & Biases and TensorBoard, layered on ours."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

from tests.needed import is_missing

ROOT = Path(__file__).parents[2]


@cache
def trackers_python() -> str:
    """The interpreter of that environment; it is made once, and kept."""
    made = subprocess.run(["make", "trackers"], cwd=ROOT, capture_output=True, text=True)
    if made.returncode != 0:
        is_missing(f"trackers cannot be installed here: {made.stderr.strip().splitlines()[-1:]}")
    return str(ROOT / ".venv-trackers" / "bin" / "python")
