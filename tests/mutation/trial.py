"""A copy of the tree in which tests run against one fault after the other: the tree itself stays as it is."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from tests.mutation import profile
from tests.mutation.mutants import Mutant

#: `killed`: a test failed or did not end in its time, as with a loop that has no end any more.
Outcome = Literal["killed", "survived"]


class TestsFail(Exception):
    """Tests fail without any fault, or cannot be run."""

    __test__ = False


class Copy:
    """A copy of the repository's files, for one trial at a time."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._process: subprocess.Popen[bytes] | None = None
        self._is_stopped = False

    @classmethod
    def make(cls, tree: Path, root: Path) -> Copy:
        """Copy all files that git has or would take."""
        listed = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=tree, check=True, capture_output=True
        )
        for name in filter(None, listed.stdout.decode().split("\0")):
            source, target = tree / name, root / name
            if source.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(source.read_bytes())
        return cls(root)

    def run(self, tests: Sequence[str], limit_s: float, *, is_faulty: bool = False) -> Outcome:
        """Run the tests until one fails.  Raises TestsFail when pytest itself cannot.

        Where it can without a fault, what keeps it from that is the fault: a `conftest.py` may import the module.
        """
        command = [
            *(sys.executable, "-B", "-m", "pytest", "-x", "-q", "--no-header", "--tb=line", "-m", "not slow"),
            *("-p", "no:cacheprovider", "-p", profile.__name__, f"--hypothesis-profile={profile.NAME}"),
            *tests,
        ]
        environment = {**os.environ, "PYTHONPATH": str(self.root), "PYTHONDONTWRITEBYTECODE": "1"}
        output = self.root / ".mutation-output"
        with output.open("wb") as file:
            self._process = subprocess.Popen(
                command,
                cwd=self.root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
            try:
                code = 0 if self._is_stopped else self._process.wait(limit_s)
            except subprocess.TimeoutExpired:
                return "killed"
            finally:
                self._end()
        if self._is_stopped:
            raise TestsFail("nothing is tried any more")
        # 2: an import fails already; 3 and above: pytest was used wrongly, or found no tests; below 0: by a signal.
        if code <= 2 or is_faulty:
            return "survived" if code == 0 else "killed"
        raise TestsFail(f"pytest ended with {code}: {output.read_text(errors='replace')[-1000:]}")

    def stop(self) -> None:
        """End what runs, from another thread; nothing runs here from now on."""
        self._is_stopped = True
        self._end()

    def _end(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def measure(self, tests: Sequence[str], limit_s: float) -> float:
        """Seconds that the tests take without any fault.  Raises TestsFail unless they pass."""
        begun = time.monotonic()
        if self.run(tests, limit_s) == "killed":
            said = (self.root / ".mutation-output").read_text(errors="replace")[-1000:]
            raise TestsFail(f"tests fail without any fault, or take more than {limit_s:g} s: {said}")
        return time.monotonic() - begun

    def try_out(self, mutant: Mutant, tests: Sequence[str], limit_s: float) -> Outcome:
        """What the tests make of one fault."""
        path = self.root / mutant.path
        right = path.read_bytes()
        try:
            path.write_text(mutant.put_into(right.decode()))
            return self.run(tests, limit_s, is_faulty=True)
        finally:
            path.write_bytes(right)
