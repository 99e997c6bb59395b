"""Runs the scripts below distributed/ of pytorch/examples that need no accelerator, unchanged, each as a job here.

`python -m tests.foreign.pytorch_examples CHECKOUT` prints one line of JSON: which scripts ran to their end, failed, or
were left out and why.  Each runs by `remora dev` with the packages of its own requirements.txt, one after the other.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

#: What a script has that cannot run here, and why; the first that fits.
_LEFT_OUT = (
    (re.compile(r"verify_min_gpu_count\("), "ends at once without two accelerators"),
    (
        re.compile(
            r"\.cuda\(|[\"']nccl[\"']|[\"']cuda:|torch\.cuda\.|^\s*device = 0\b|current_accelerator\(\)\.type",
            re.MULTILINE,
        ),
        "uses accelerators",
    ),
    (re.compile(r"download=True"), "downloads a data set"),
)
_IS_SCRIPT = re.compile(r"^if __name__ ?== ?[\"']__main__[\"']", re.MULTILINE)
#: Those that are no library of others and have no such line.
_TOP_LEVEL = re.compile(r"^(_world_size|device_mesh) ?=", re.MULTILINE)
_MOST_BYTES = 2**20


def why_left_out(folder: Path, script: Path) -> str | None:
    """Why a script does not run here, by its text and by that of the modules beside it; None when it does."""
    own = _text(script)
    beside = "".join(_text(path) for path in sorted(folder.glob("*.py")) if not _is_script(path))
    for pattern, why in _LEFT_OUT:
        if pattern.search(own) or pattern.search(beside):
            return why
    return None


def _text(path: Path) -> str:
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.read(_MOST_BYTES)


def _is_script(path: Path) -> bool:
    text = _text(path)
    return bool(_IS_SCRIPT.search(text) or _TOP_LEVEL.search(text))


def run(script: Path, limit_s: float) -> str:
    """Run a script as one worker; `ran`, or what went wrong."""
    requirements = script.parent / "requirements.txt"
    options = ["--requirements", requirements.name] if requirements.is_file() else []
    command = [sys.executable, "-m", "remora", "dev", *options, "--", "python", script.name]
    try:
        done = subprocess.run(
            command, cwd=script.parent, capture_output=True, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        return f"no end within {limit_s:g} s"
    lines = done.stderr.strip().splitlines() or [""]
    return "ran" if done.returncode == 0 else f"exit code {done.returncode}: {lines[-1][:200]}"


def count(checkout: Path, limit_s: float) -> dict[str, Any]:
    """What became of each script."""
    scripts = [path for path in sorted((checkout / "distributed").rglob("*.py")) if _is_script(path)]
    left_out: Counter[str] = Counter()
    ran, failed = [], {}
    for script in scripts:
        name = str(script.relative_to(checkout))
        if (why := why_left_out(script.parent, script)) is not None:
            left_out[why] += 1
        elif (end := run(script, limit_s)) == "ran":
            ran.append(name)
        else:
            failed[name] = end
    return {"scripts": len(scripts), "ran": ran, "left_out": dict(left_out.most_common()), "failed": failed}


def main() -> None:
    """Run them, and print what became of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--limit-s", type=float, default=600.0, help="seconds for each script")
    arguments = parser.parse_args()
    print(json.dumps(count(arguments.checkout, arguments.limit_s)))


if __name__ == "__main__":
    main()
