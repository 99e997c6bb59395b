"""python -m tests.soak [--rounds N] [--seed N] | --age: run what `make test` leaves out, or say when that was done.

`tests/soak.json` keeps the commit, the day, and how many tests ran, failed and were skipped, with their seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

ROOT = Path(__file__).parents[1]
SUMMARY = ROOT / "tests" / "soak.json"
#: Parts by name: arguments of pytest.  The first two have all rounds and all seeds by the environment.
PARTS: Mapping[str, tuple[str, ...]] = {
    "rounds": ("tests/chaos/test_soak.py",),
    "seeds": ("tests/chaos/test_chaos.py",),
    "marked": ("-m", "soak"),
}


@dataclass(frozen=True)
class Counts:
    """Tests of one part; `seconds` is the time from its start to its end."""

    tests: int
    failed: int
    skipped: int
    seconds: int


def counts_of(report: str, seconds: float) -> Counts:
    """What pytest's JUnit report says; of several suites the sums."""
    suites = list(ET.fromstring(report).iter("testsuite"))  # noqa: S314 - our own

    def total(*names: str) -> int:
        return sum(int(suite.get(name, 0)) for suite in suites for name in names)

    return Counts(total("tests"), total("failures", "errors"), total("skipped"), round(seconds))


def run(part: tuple[str, ...], environment: Mapping[str, str]) -> Counts:
    """One part, its output shown; a part that reported nothing has failed."""
    with tempfile.TemporaryDirectory() as folder:
        report, began = Path(folder, "report.xml"), time.monotonic()
        command = [sys.executable, "-m", "pytest", "-q", *part, f"--junitxml={report}"]
        subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, check=False)
        seconds = time.monotonic() - began
        return counts_of(report.read_text(), seconds) if report.exists() else Counts(0, 1, 0, round(seconds))


def git(*words: str) -> str:
    """What git says; empty where there is no repository."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def age() -> str:
    """A sentence on the last run."""
    try:
        last = json.loads(SUMMARY.read_text())
    except FileNotFoundError:
        return "make soak has not been run yet"
    since = git("rev-list", "--count", f"{last['commit']}..HEAD") or "an unknown number of"
    failed = sum(part["failed"] for part in last["parts"].values())
    return f"make soak was run on {last['day']}, {since} commits ago: {failed} tests failed"


def main() -> int:
    """Exit code 1: something failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--age", action="store_true")
    wanted = parser.parse_args()
    if wanted.age:
        print(age())
        return 0
    environment = {
        "REMORA_SOAK_ROUNDS": str(wanted.rounds),
        "REMORA_SOAK_SEED": str(wanted.seed),
        "REMORA_CHAOS_SEEDS": "all",
    }
    day, commit = time.strftime("%Y-%m-%d", time.gmtime()), git("rev-parse", "HEAD")
    parts = {name: asdict(run(part, environment)) for name, part in PARTS.items()}
    summary = {"commit": commit, "day": day, "rounds": wanted.rounds, "seed": wanted.seed, "parts": parts}
    SUMMARY.write_text(json.dumps(summary, indent=2) + "\n")
    print(age())
    return int(any(part["failed"] for part in parts.values()))


if __name__ == "__main__":
    sys.exit(main())
