"""python -m tests.soak [--rounds N] [--seed N] [PART ...] | --changed | --age: what `make test` leaves out.

`tests/soak.json` keeps of each part the commit, the day, the rounds and the seed, a digest of the files that it covers,
and how many tests ran, failed and were skipped, with their seconds.  `--changed` runs parts that have not passed on the
files as they are, as far as a budget of seconds goes, and records nothing; `--age` says when the parts ran, and which
of them are stale.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from tests.soak_parts import PARTS, ROOT, Ran, choose, stale

SUMMARY = ROOT / "tests" / "soak.json"
#: As `make test` does, so that the recorded seconds say how long a part takes there.
LANES = ("-n", "3", "--dist", "loadscope", "--no-loadscope-reorder")
#: Seconds of stale parts that a change waits for.
BUDGET_S = 60


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


def run(arguments: Iterable[str], environment: Mapping[str, str]) -> Counts:
    """One part, its output shown; a part that reported nothing has failed."""
    with tempfile.TemporaryDirectory() as folder:
        report, began = Path(folder, "report.xml"), time.monotonic()
        command = [sys.executable, "-m", "pytest", "-q", *LANES, *arguments, f"--junitxml={report}"]
        subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, check=False)
        seconds = time.monotonic() - began
        return counts_of(report.read_text(), seconds) if report.exists() else Counts(0, 1, 0, round(seconds))


def git(*words: str) -> str:
    """What git says; empty where there is no repository."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def recorded() -> dict[str, dict[str, Any]]:
    """How each part ended the last time, by name; a part that is none any more is left out."""
    parts = json.loads(SUMMARY.read_text()) if SUMMARY.exists() else {}
    return {name: part for name, part in parts.items() if name in PARTS}


def ran(parts: Mapping[str, Mapping[str, Any]]) -> dict[str, Ran]:
    """What decides whether a part runs again."""
    return {name: Ran(one["digest"], one["failed"], one["seconds"]) for name, one in parts.items()}


def stale_now(parts: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """Parts that have not passed on the files as they are."""
    return stale({name: part.digest() for name, part in PARTS.items()}, ran(parts))


def age() -> str:
    """Sentences on the last runs."""
    parts = recorded()
    if not parts:
        return "make soak has not been run yet"
    oldest = min(parts.values(), key=lambda part: part["day"])
    since = git("rev-list", "--count", f"{oldest['commit']}..HEAD") or "an unknown number of"
    failed = sum(part["failed"] for part in parts.values())
    said = f"make soak was run on {oldest['day']}, {since} commits ago: {failed} tests failed"
    old = stale_now(parts)
    return f"{said}; has not passed on the files as they are: {', '.join(old)}" if old else said


def environment(rounds: int, seed: int) -> dict[str, str]:
    """What shows, of tests of which there are more and fewer how many they are."""
    return {
        "REMORA_SOAK_ROUNDS": str(rounds),
        "REMORA_SOAK_SEED": str(seed),
        "REMORA_CHAOS_SEEDS": "all",
    }


def soak(names: Iterable[str], rounds: int, seed: int) -> int:
    """Run parts and record how they ended."""
    failed = False
    for name in names:
        # Before it runs: what is changed meanwhile was not tested.
        when = {
            "commit": git("rev-parse", "HEAD"),
            "day": time.strftime("%Y-%m-%d", time.gmtime()),
            "rounds": rounds,
            "seed": seed,
            "digest": PARTS[name].digest(),
        }
        counts = run(PARTS[name].arguments, environment(rounds, seed))
        parts = {**recorded(), name: {**when, **asdict(counts)}}
        SUMMARY.write_text(json.dumps({one: parts[one] for one in PARTS if one in parts}, indent=2) + "\n")
        failed = failed or counts.failed > 0
    print(age())
    return int(failed)


def soak_changed(budget_s: int, rounds: int, seed: int) -> int:
    """Run stale parts within a budget of seconds, and say which are left."""
    parts = recorded()
    choice = choose(stale_now(parts), ran(parts), budget_s)
    for name in choice.left:
        seconds = f"{parts[name]['seconds']} s" if name in parts else "never run"
        print(f"left to make soak: {name} ({seconds})")
    print(f"make soak-changed runs: {', '.join(choice.run) or 'nothing'}", flush=True)
    chosen = {name: PARTS[name].arguments for name in choice.run}
    failed = [name for name, words in chosen.items() if run(words, environment(rounds, seed)).failed]
    if failed:
        print(f"these failed and run once more: {', '.join(failed)}", flush=True)
    return int(any(run(chosen[name], environment(rounds, seed)).failed for name in failed))


def main() -> int:
    """Exit code 1: something failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"all of them by default: {', '.join(PARTS)}"
    )
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--changed", action="store_true")
    parser.add_argument("--budget", type=int, default=BUDGET_S, metavar="SECONDS", help="for --changed")
    parser.add_argument("--age", action="store_true")
    wanted = parser.parse_args()
    if unknown := set(wanted.parts) - PARTS.keys():
        parser.error(f"no part is called {', '.join(sorted(unknown))}")
    if wanted.age:
        print(age())
        return 0
    if wanted.changed:
        return soak_changed(wanted.budget, wanted.rounds, wanted.seed)
    return soak(wanted.parts or PARTS, wanted.rounds, wanted.seed)


if __name__ == "__main__":
    sys.exit(main())
