"""An environment with JAX, which has no place in ours."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

from tests.needed import is_missing

ROOT = Path(__file__).parents[3]


@cache
def jax_python() -> str:
    """The interpreter of that environment; it is made once, and kept."""
    made = subprocess.run(["make", "jax"], cwd=ROOT, capture_output=True, text=True)
    if made.returncode != 0:
        is_missing(f"JAX cannot be installed here: {made.stderr.strip().splitlines()[-1:]}")
    return str(ROOT / ".venv-jax" / "bin" / "python")
