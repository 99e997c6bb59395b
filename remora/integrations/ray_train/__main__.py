"""Runs a script, or with `-m` a module, whose `TorchTrainer` trains on the workers of a job.

usage: python -m remora.integrations.ray_train [-m MODULE | SCRIPT] [ARGUMENT]...
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path


def main() -> None:
    """Run what the command line names as Python itself would, after the import of this package."""
    words = sys.argv[1:]
    is_module = words[:1] == ["-m"]
    target = words[1:] if is_module else words
    if not target or target[0].startswith("-"):
        print(
            "usage: python -m remora.integrations.ray_train [-m MODULE | SCRIPT] [ARGUMENT]...",
            file=sys.stderr,
        )
        sys.exit(2)
    if not is_module and not Path(target[0]).is_file():
        print(f"there is no script {target[0]}", file=sys.stderr)
        sys.exit(2)
    sys.argv[:] = target
    if is_module:
        runpy.run_module(target[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(target[0]).resolve().parent)
        runpy.run_path(target[0], run_name="__main__")


main()
