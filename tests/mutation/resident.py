"""A pytest process that collects the tests once, and runs them in a fork of itself for each mutant.

Given to pytest as a plugin.  A request is a line of JSON, and so are the two replies to it: the process id of the fork,
and its exit code.  A mutant is in the file that a process of a test would import, and in the function that exists
already: its code is replaced, so that everything that refers to the function runs it.  Code that ran while modules were
imported has left its results in them; mutants of it need another process, as do those outside of functions.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import gc
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest
from _pytest.main import pytest_runtestloop as run_tests

from tests.mutation.mutants import first_line
from tests.mutation.profile import end_with_parent

#: Names of the environment variables with the file descriptors of requests and replies.
REQUESTS, REPLIES = "MUTATION_REQUESTS", "MUTATION_REPLIES"
#: Exit code where the code of the function cannot be replaced.
CANNOT = 77
#: A test may take that much longer with a mutant, as a factor and in seconds, before it counts as hanging.
SLOWER, SLOWER_S = 10.0, 30.0

#: Code that ran, by its id.  Hashing code itself is slow.
_entered: dict[int, CodeType] = {}


def _enter(frame: FrameType, event: str, argument: object) -> None:
    code = frame.f_code
    if id(code) not in _entered:
        _entered[id(code)] = code


def _trace(to: Callable[[FrameType, str, object], None] | None) -> None:
    sys.settrace(to)
    threading.settrace(to)  # type: ignore[arg-type]


def _take_entered(root: Path) -> list[str]:
    """Functions of the repository that ran since the last call, as `function_key` names them."""
    codes, prefix = list(_entered.values()), f"{root}/"
    _entered.clear()
    return sorted(
        {
            function_key(one.co_filename.removeprefix(prefix), one.co_qualname, one.co_firstlineno)
            for one in codes
            if one.co_filename.startswith(prefix)
        }
    )


def function_key(path: str, name: str, line: int) -> str:
    """One name for a function: its path from the root, its qualified name, and its first line, decorators included."""
    return f"{path}:{line}:{name}"


class Resident:
    """Serves requests in the place of the loop over the tests."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Run the tests once for each request, until there are no more requests."""
        _trace(None)
        if session.testsfailed:
            return None  # a module cannot be imported; pytest says which
        with (
            os.fdopen(int(os.environ[REQUESTS])) as requests,
            os.fdopen(int(os.environ[REPLIES]), "w", buffering=1) as replies,
        ):
            print(json.dumps({"entered": _take_entered(session.config.rootpath)}), file=replies)
            for line in requests:
                pid = os.fork()
                if pid == 0:
                    for inherited in (requests, replies):
                        os.close(inherited.fileno())
                    _run_and_exit(session, json.loads(line))
                print(json.dumps({"pid": pid}), file=replies)
                _, status = os.waitpid(pid, 0)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
                print(json.dumps({"code": os.waitstatus_to_exitcode(status)}), file=replies)
        return True


def _run_and_exit(session: pytest.Session, request: Mapping[str, Any]) -> None:
    code = 1
    try:
        os.setsid()
        end_with_parent()
        if "measured" in request:
            code = _measure(session, request["functions"], Path(request["measured"]))
        elif not replace_code(request["file"], request["line"], request["name"], request["text"]):
            code = CANNOT
        else:
            code = _try_out(session, request["tests"])
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _measure(session: pytest.Session, functions: list[list[Any]], result: Path) -> int:
    """Run the tests in reverse order, as mutants are tried in any order; write what each enters, and its seconds."""
    measured: dict[str, tuple[float, list[str]]] = {}
    entered: set[str] = set()
    for key, file, line, name in functions:
        tree = ast.parse(Path(file).read_text())
        _note_entry(tree, line, name, key)
        replace_code(file, line, name, tree)
    builtins._note_entry = entered.add  # type: ignore[attr-defined]

    class Measure:
        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
            begun = time.monotonic()
            result = yield
            measured[item.nodeid] = (time.monotonic() - begun, sorted(entered))
            entered.clear()
            return result  # type: ignore[return-value]

    session.config.pluginmanager.register(Measure())
    session.items.reverse()
    try:
        return _run(session)
    finally:
        result.write_text(json.dumps(measured))


def _note_entry(tree: ast.Module, line: int, name: str, key: str) -> None:
    """Have the function at this place note each call under its key."""
    for node in ast.walk(tree):
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if is_function and node.name == name.rpartition(".")[2] and line == first_line(node):
            node.body[:0] = ast.parse(f"_note_entry({key!r})").body
    ast.fix_missing_locations(tree)


def _try_out(session: pytest.Session, took_s: Mapping[str, float]) -> int:
    """Run these tests in this order; the process dies where one does not end."""

    class Limit:
        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_logstart(self, nodeid: str) -> None:
            signal.setitimer(signal.ITIMER_REAL, SLOWER * took_s[nodeid] + SLOWER_S)

    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    session.config.pluginmanager.register(Limit())
    by_id = {item.nodeid: item for item in session.items}
    session.items[:] = [by_id[nodeid] for nodeid in took_s]
    return _run(session)


def _run(session: pytest.Session) -> int:
    with contextlib.suppress(session.Failed, session.Interrupted):
        run_tests(session)
    failed = session.testsfailed
    session._setupstate.teardown_exact(None)
    return 1 if failed else 0


def replace_code(file: str, line: int, name: str, text: str | ast.Module) -> bool:
    """Give each function that was made from this place of a file the code that another text has there.

    False where there is no such function, or its variables are others.
    """
    codes = _codes(compile(text, file, "exec", dont_inherit=True))
    new = next((one for one in codes if _is(one, line, name)), None)
    functions = [
        one
        for one in gc.get_objects()
        if isinstance(one, FunctionType)
        and one.__code__.co_filename == file
        and _is(one.__code__, line, name)
    ]
    if new is None or not functions or any(one.__code__.co_freevars != new.co_freevars for one in functions):
        return False
    for one in functions:
        one.__code__ = new
    return True


def _codes(code: CodeType) -> Iterator[CodeType]:
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield one
            yield from _codes(one)


def _is(code: CodeType, line: int, name: str) -> bool:
    return code.co_firstlineno == line and code.co_qualname == name


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """See what runs while modules are imported; the first are imported by `conftest.py`."""
    _trace(_enter)


def pytest_configure(config: pytest.Config) -> None:
    """Take the place of the loop over the tests."""
    config.pluginmanager.register(Resident())
