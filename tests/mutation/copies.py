"""A copy of the tree in which tests run against one fault after the other: the tree itself stays as it is."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tests.mutation import profile, resident
from tests.mutation.mutants import Mutant, function_of

#: `killed`: a test failed or did not end in its time, as with a loop that has no end any more.
Outcome = Literal["killed", "survived"]


class TestsFail(Exception):
    """Tests fail without any fault, or cannot be run."""

    __test__ = False


@dataclass(frozen=True)
class Measured:
    """The tests of a target without any fault."""

    #: Seconds, collection included.
    took_s: float
    #: Functions that ran while modules were imported: their results are in the modules.
    at_import: frozenset[str]
    #: Seconds of each test, and which functions with mutants it enters.
    tests: dict[str, tuple[float, list[str]]]

    def entering(self, function: str) -> dict[str, float]:
        """Tests that enter this function, the quickest first, with their seconds."""
        found = {test: took_s for test, (took_s, entered) in self.tests.items() if function in entered}
        return dict(sorted(found.items(), key=lambda one: one[1]))


class Copy:
    """A copy of the repository's files, for one trial at a time."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._process: subprocess.Popen[bytes] | None = None
        self._resident: _Resident | None = None
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

    def _start(self, tests: Sequence[str], *more: str, **pipes: int) -> subprocess.Popen[bytes]:
        command = [
            *(sys.executable, "-B", "-m", "pytest", "-x", "-q", "--no-header", "--tb=line", "-m", "not slow"),
            *("-p", "no:cacheprovider", "-p", profile.__name__, f"--hypothesis-profile={profile.NAME}"),
            *(*more, *tests),
        ]
        environment = {**os.environ, "PYTHONPATH": str(self.root), "PYTHONDONTWRITEBYTECODE": "1"}
        environment |= {name: str(number) for name, number in pipes.items()}
        with self._output.open("wb") as file:
            return subprocess.Popen(
                command,
                cwd=self.root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
                pass_fds=tuple(pipes.values()),
            )

    @property
    def _output(self) -> Path:
        return self.root / ".mutation-output"

    @property
    def _said(self) -> str:
        return self._output.read_text(errors="replace")[-1000:]

    def run(self, tests: Sequence[str], limit_s: float, *, is_faulty: bool = False) -> Outcome:
        """Run the tests in a process of their own until one fails.  Raises TestsFail when pytest itself cannot.

        Where it can without a fault, what keeps it from that is the fault: a `conftest.py` may import the module.
        """
        self._process = self._start(tests)
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
        raise TestsFail(f"pytest ended with {code}: {self._said}")

    def stop(self) -> None:
        """End what runs, from another thread; nothing runs here from now on."""
        self._is_stopped = True
        self._end()
        if self._resident is not None:
            self._resident.close()

    def _end(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def measure(self, tests: Sequence[str], mutants: Iterable[Mutant], limit_s: float) -> Measured:
        """The tests without any fault, and which functions of these mutants they enter.

        Raises TestsFail unless they pass.
        """
        begun, result = time.monotonic(), self.root / ".mutation-measured"
        served = self._serving(tests, limit_s)
        homes = {home for one in mutants if (home := self._home(one)) is not None}
        functions = [(one.key, str(self.root / one.path), one.line, one.name) for one in homes]
        code = served.ask({"measured": str(result), "functions": functions}, limit_s)
        if self._is_stopped:
            raise TestsFail("nothing is tried any more")
        if code != 0:
            raise TestsFail(f"tests fail without any fault, or take more than {limit_s:g} s: {self._said}")
        return Measured(time.monotonic() - begun, served.at_import, json.loads(result.read_text()))

    def _serving(self, tests: Sequence[str], limit_s: float) -> _Resident:
        """The process that has collected these tests."""
        if self._is_stopped:
            raise TestsFail("nothing is tried any more")
        if self._resident is not None and self._resident.tests == tests:
            return self._resident
        if self._resident is not None:
            self._resident.close()
        (requests, ask), (answer, replies) = os.pipe(), os.pipe()
        try:
            process = self._start(
                tests,
                *("-p", resident.__name__, f"--basetemp={self.root}t"),
                **{resident.REQUESTS: requests, resident.REPLIES: replies},
            )
        finally:
            os.close(requests)
            os.close(replies)
        self._resident = _Resident(tests, process, ask, answer)
        if not self._resident.is_ready(limit_s):
            self._resident.close()
            raise TestsFail(f"tests cannot be collected, or take more than {limit_s:g} s: {self._said}")
        return self._resident

    def try_out(self, mutant: Mutant, tests: Sequence[str], measured: Measured, limit_s: float) -> Outcome:
        """What the tests make of one fault: those that enter its function, or all where none does in this process."""
        path, home = self.root / mutant.path, self._home(mutant)
        right = path.read_bytes()
        text = mutant.put_into(right.decode())
        try:
            code = resident.CANNOT
            entering = {} if home is None else measured.entering(home.key)
            if home is not None and entering and home.key not in measured.at_import:
                served = self._serving(tests, limit_s)
                path.write_text(text)
                where = {"file": str(path), "name": home.name, "line": home.line, "text": text}
                code = served.ask({**where, "tests": entering}, limit_s)
                if self._is_stopped:
                    raise TestsFail("nothing is tried any more")
            path.write_text(text)
            if code != resident.CANNOT:
                return "survived" if code == 0 else "killed"
            naming, others = self._by_naming(tests, mutant.path)
            if naming and self.run(naming, limit_s, is_faulty=True) == "killed":
                return "killed"
            return self.run(others, limit_s, is_faulty=True) if others else "survived"
        finally:
            path.write_bytes(right)

    def _home(self, mutant: Mutant) -> _Function | None:
        found = function_of(mutant, (self.root / mutant.path).read_text())
        return None if found is None else _Function(mutant.path, *found)

    def _by_naming(self, tests: Sequence[str], path: str) -> tuple[list[str], list[str]]:
        """The tests that name the module, and the others."""
        module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        naming = [test for test in tests if module in (self.root / test).read_text()]
        return naming, [test for test in tests if test not in naming]


@dataclass(frozen=True)
class _Function:
    """A function with mutants in its body."""

    path: str
    name: str
    line: int

    @property
    def key(self) -> str:
        return resident.function_key(self.path, self.name, self.line)


class _Resident:
    """The other end of a process that stays (resident.py)."""

    def __init__(self, tests: Sequence[str], process: subprocess.Popen[bytes], ask: int, answer: int) -> None:
        self.tests = tests
        self.at_import: frozenset[str] = frozenset()
        self._process = process
        self._ask, self._answer = os.fdopen(ask, "w", buffering=1), os.fdopen(answer, "rb", buffering=0)
        self._forked: int | None = None

    def is_ready(self, limit_s: float) -> bool:
        """It has collected the tests."""
        reply = self._reply(limit_s)
        self.at_import = frozenset((reply or {}).get("entered", ()))
        return reply is not None

    def ask(self, request: dict[str, object], limit_s: float) -> int:
        """Exit code of the tests; below 0 where they were ended, as they did not end themselves.

        Raises TestsFail when the process that stays has ended, which says nothing about a mutant.
        """
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(request), file=self._ask)
        self._forked = self._expect(limit_s)["pid"]
        if not self._has_reply(limit_s):
            self._end_fork()
        code = int(self._expect(limit_s)["code"])
        self._forked = None
        return code

    def close(self) -> None:
        """End it, and what it has forked."""
        self._end_fork()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _end_fork(self) -> None:
        if (pid := self._forked) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)

    def _has_reply(self, limit_s: float) -> bool:
        return bool(select.select([self._answer], [], [], limit_s)[0])

    def _reply(self, limit_s: float) -> dict[str, Any] | None:
        """The next reply; None when there is none in that time, or when the process has ended."""
        line = self._answer.readline() if self._has_reply(limit_s) else b""
        return json.loads(line) if line else None

    def _expect(self, limit_s: float) -> dict[str, Any]:
        if (reply := self._reply(limit_s)) is None:
            raise TestsFail("the process that runs the tests has ended")
        return reply
