"""Replays that this process has started: one at a time in a process of its own, the newest answers kept in memory."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import service
from remora.views import FieldProblem, WhatIf
from service.api.problem_documents import ApiProblem
from service.steady_clock import CLOCK
from service.store.ids import new_id

log = logging.getLogger(__name__)

#: Replays whose answers are kept.
KEPT = 16
#: Seconds after which a replay is ended.
LONGEST_S = 900.0
#: Seconds that a replay's process may take to read its question.
QUESTION_S = 60.0
#: Bytes of one line: an answer has the reports and the picture.
_LINE_BYTES = 16 * 2**20
#: Where the packages of the service lie.
_ROOT = str(Path(service.__file__).resolve().parent.parent)


@dataclass(eq=False)
class _Run:
    view: WhatIf
    process: asyncio.subprocess.Process
    task: asyncio.Task[None] | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class Replays:
    """All replays of this process.  Used on its event loop only."""

    def __init__(self, clock: Callable[[], float] = CLOCK) -> None:
        self._clock = clock
        self._runs: dict[str, _Run] = {}
        self._starting = False

    async def start(self, body: bytes) -> WhatIf:
        """Begin one for a request's body.

        Raises ApiProblem `invalid_json` or `invalid_plan` with what is wrong, and `too_many_plans` while another runs.
        """
        if self._starting or any(not run.view.terminal for run in self._runs.values()):
            hint = "wait for its end, or ask again in some seconds"
            raise ApiProblem(
                429, "too_many_plans", "another replay runs", hint=hint, headers={"Retry-After": "5"}
            )
        self._starting = True
        try:
            process = await _process()
            try:
                async with asyncio.timeout(QUESTION_S):
                    return await self._accepted(process, body)
            except TimeoutError:
                await _end(process)
                message = f"the question could not be read within {QUESTION_S:.0f} s: ask about fewer jobs"
                raise ApiProblem(422, "invalid_plan", message) from None
            except BaseException:
                await _end(process)
                raise
        finally:
            self._starting = False

    async def _accepted(self, process: asyncio.subprocess.Process, body: bytes) -> WhatIf:
        first = await _ask(process, body)
        if refused := first.get("unreadable"):
            raise ApiProblem(400, "invalid_json", refused)
        if refused := first.get("refused"):
            problem = FieldProblem(field=refused["field"], message=refused["message"])
            raise ApiProblem(422, "invalid_plan", refused["message"], errors=[problem])
        now = self._clock()
        view = WhatIf(
            id=new_id("plan", now), state="running", terminal=False, created_at=now, **first["accepted"]
        )
        run = self._runs[view.id] = _Run(view, process)
        run.task = asyncio.create_task(self._follow(run))
        while len(self._runs) > KEPT:
            del self._runs[next(iter(self._runs))]
        return view

    async def get(self, plan_id: str, wait_s: float) -> WhatIf:
        """Where one stands, at the latest after `wait_s` or its next news.  Raises ApiProblem `plan_not_found`."""
        run = self._found(plan_id)
        if wait_s > 0 and not run.view.terminal:
            run.changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(run.changed.wait(), wait_s)
        return run.view

    async def cancel(self, plan_id: str) -> WhatIf:
        """End one that runs; one that is over stays as it is.  Raises ApiProblem `plan_not_found`."""
        run = self._found(plan_id)
        if not run.view.terminal and run.task is not None:
            news = {"message": "it was cancelled"}
            _update(run, state="cancelled", terminal=True, ended_at=self._clock(), **news)
            run.task.cancel()
            await asyncio.wait([run.task])
            # A task that is cancelled before its first step never ends what it was to follow.
            await _end(run.process)
        return run.view

    def _found(self, plan_id: str) -> _Run:
        run = self._runs.get(plan_id)
        if run is None:
            hint = f"the service keeps the newest {KEPT} until it stops"
            raise ApiProblem(404, "plan_not_found", f"there is no plan {plan_id[:80]!r}", hint=hint)
        return run

    async def close(self) -> None:
        """End what runs."""
        for run in self._runs.values():
            if run.task is not None:
                run.task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await run.task
            await _end(run.process)

    async def _follow(self, run: _Run) -> None:
        try:
            async with asyncio.timeout(LONGEST_S):
                await self._read(run)
            news: dict[str, Any] = {"message": "the replay ended early; the service's log says more"}
        except TimeoutError:
            news = {"message": f"the replay took more than {LONGEST_S:.0f} s: ask about fewer jobs"}
        finally:
            await _end(run.process)
        if not run.view.terminal:
            _update(run, state="failed", terminal=True, ended_at=self._clock(), **news)

    async def _read(self, run: _Run) -> None:
        while line := await _line(run.process):
            if "progress" in line:
                _update(run, progress=line["progress"])
            if "answer" in line:
                answered = WhatIf.model_validate({**run.view.model_dump(), **line["answer"]})
                fields = {name: getattr(answered, name) for name in ("reports", "notes", "plot")}
                _update(run, state="done", terminal=True, progress=1.0, ended_at=self._clock(), **fields)


def _update(run: _Run, **news: Any) -> None:
    run.view = run.view.model_copy(update=news)
    run.changed.set()


async def _process() -> asyncio.subprocess.Process:
    path = os.pathsep.join(filter(None, (_ROOT, os.environ.get("PYTHONPATH"))))
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-m",
        "service.what_if",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=_LINE_BYTES,
        env={**os.environ, "PYTHONPATH": path},
    )


async def _ask(process: asyncio.subprocess.Process, body: bytes) -> dict[str, Any]:
    """Hand the question over; the first line of what comes back."""
    assert process.stdin is not None
    with contextlib.suppress(ConnectionError):
        process.stdin.write(body)
        await process.stdin.drain()
        process.stdin.close()
    first = await _line(process)
    if not first:
        log.error("a replay ended before it said anything, with %s", await process.wait())
        raise ApiProblem(500, "internal_error", "the replay could not begin; the service's log says more")
    return first


async def _line(process: asyncio.subprocess.Process) -> dict[str, Any]:
    assert process.stdout is not None
    line = await process.stdout.readline()
    return json.loads(line) if line.endswith(b"\n") else {}


async def _end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()
