"""An environment with transformers and TRL, layered on ours."""

from __future__ import annotations

import fcntl
import json
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

from tests.needed import is_missing

ROOT = Path(__file__).parents[2]


@cache
def transformers_python() -> str:
    """The interpreter of that environment; it is made once, and kept."""
    with (ROOT / "Makefile").open() as lock:
        # Tests run in several processes.
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = subprocess.run(["make", "transformers"], cwd=ROOT, capture_output=True, text=True)
    if made.returncode != 0:
        is_missing(f"transformers cannot be installed here: {made.stderr.strip().splitlines()[-1:]}")
    return str(ROOT / ".venv-transformers" / "bin" / "python")


def scenario(name: str, folder: Path) -> dict[str, Any]:
    """The facts of a scenario of `trainer_scenarios.py`."""
    done = subprocess.run(
        [transformers_python(), "-m", "tests.frameworks.trainer_scenarios", str(folder), name],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={
            "PATH": "/usr/bin:/bin",
            "HOME": str(folder),
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        },
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    facts: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
    return facts
