"""An environment with transformers, TRL and Lightning, layered on ours."""

from __future__ import annotations

import fcntl
import json
import os
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


class Scenarios:
    """Runs those of a module, in one process that has imported its library once."""

    def __init__(self, folder: Path, module: str = "trainer_scenarios") -> None:
        self._folder = folder
        read, write = os.pipe()
        self._done = os.fdopen(read)
        environment = {"HOME": str(folder), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        with (folder / "log").open("w") as log:
            self._process = subprocess.Popen(
                [transformers_python(), "-m", f"tests.frameworks.{module}", str(folder), str(write)],
                cwd=ROOT, stdin=subprocess.PIPE, stdout=log, stderr=log, text=True, pass_fds=[write],
                env={"PATH": "/usr/bin:/bin", **environment},
            )  # fmt: skip
        os.close(write)

    def facts(self, name: str) -> dict[str, Any]:
        """What a scenario has found."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{name}\n")
        self._process.stdin.flush()
        assert self._done.readline().strip() == name, self._log()
        facts: dict[str, Any] = json.loads((self._folder / f"{name}.json").read_text())
        assert "error" not in facts, self._log() + facts["error"]
        return facts

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._done.close()

    def _log(self) -> str:
        return (self._folder / "log").read_text()[-4000:]
