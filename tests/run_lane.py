"""`python -m tests.run_lane fast|slow`: the tests of a lane, several at a time.

A test that fails beside others on two processors may have had too little time.  Failed tests are run once more, one
after the other with nothing beside them; the run is red if one fails again, and otherwise names those that failed once.
Decision 0198 says why.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.slow_files import slow_files

#: With this number of failures a lane stops: then not the machine is at fault.
MOST_FAILURES = 10
#: tests/lanes.py says which tests follow one another in one process.  The slowest ones are listed at the end: what is
#: one of many there belongs to `make soak`.
LANE = (
    *("-q", "--dist", "loadscope", "--no-loadscope-reorder"),
    *(f"--maxfail={MOST_FAILURES}", "--durations=40", "--durations-min=3"),
)
AGAIN = ("-q", "--last-failed", "--last-failed-no-failures=none")

#: Which tests each lane has, by their marks, and how many run at a time: those of the fast one wait for half of their
#: time, and those of the slow one start processes of their own.
LANES = {"fast": ("not slow and not soak", 4), "slow": ("slow and not soak", 3)}

#: Runs pytest with arguments and returns its exit status.
Pytest = Callable[[Sequence[str]], int]


def run_lane(
    expression: str, run: Pytest, cache: Path, files: Sequence[str] = (), *, at_a_time: int = 3
) -> int:
    """The exit status of a lane: 0 if each test passed, at first or alone.

    `cache` is the folder in which pytest keeps which tests failed; each lane has its own.  `files`: where its tests
    are, everywhere if there are none.
    """
    select = ("-m", expression, "-o", f"cache_dir={cache}", *files)
    status = run([*LANE, "-n", str(at_a_time), "--cache-clear", *select])
    # Anything else than failed tests, as a lane that stopped early or tests that cannot be collected, leaves tests out.
    if status != pytest.ExitCode.TESTS_FAILED:
        return status
    print("\nThese tests failed beside others and run once more, alone.", flush=True)
    status = run([*AGAIN, *select])
    if status == pytest.ExitCode.OK:
        print("Each test that failed beside others passed alone: see the names above (FAILED).", flush=True)
    return status


def _pytest(arguments: Sequence[str]) -> int:
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], check=False).returncode


if __name__ == "__main__":
    lane = sys.argv[1]
    cache = Path(".pytest_cache", f"lane-{lane}").absolute()
    expression, at_a_time = LANES[lane]
    files = slow_files() if lane == "slow" else ()
    sys.exit(run_lane(expression, _pytest, cache, files, at_a_time=at_a_time))
