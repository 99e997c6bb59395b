"""Watching a job: a live bar on a terminal, lines in a pipe, JSON lines when asked."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from remora.cli import output
from remora.terminal_text import neutral

if TYPE_CHECKING:
    from remora.client.blocking import Client
    from remora.views import Event, Job, MetricPoint

#: Pause between two looks.
LOOK_S = 0.5
#: Seconds between two lines about steps in a pipe.
REPORT_S = 5.0


@dataclass(frozen=True)
class Look:
    """What is new since the look before."""

    job: Job
    events: list[Event]
    #: Newest reported values, or None before the first.
    point: MetricPoint | None


def looks(client: Client, job_id: str, pause: Callable[[float], None] = time.sleep) -> Iterator[Look]:
    """Look at a job again and again until it has ended; the last look has its last events."""
    seen = 0
    point: MetricPoint | None = None
    while True:
        job = client.job(job_id)
        events = list(client.events(job_id, after=seen))
        seen = events[-1].seq if events else seen
        points = client.metrics(job_id, after_step=None if point is None else point.step)
        point = points[-1] if points else point
        yield Look(job, events, point)
        if job.terminal:
            return
        pause(LOOK_S)


def watch(client: Client, job: Job, *, as_json: bool = False, quiet: bool = False) -> Job:
    """Show a job until it has ended; its final state is returned."""
    show: contextlib.AbstractContextManager[Callable[[Look], None]]
    if as_json:
        show = _json_lines()
    elif quiet:
        show = contextlib.nullcontext(lambda _look: None)
    else:
        show = _live_bar() if sys.stdout.isatty() else _plain_lines()
    with show as display:
        for look in looks(client, job.id):
            display(look)
            job = look.job
    if as_json:
        output.print_json_line(job)
    elif not quiet:
        output.print_line(output.summary(job))
    return job


def describe(look: Look) -> str:
    """Step, first reported value and workers in a few words."""
    parts = [f"step {output.steps(look.job)}"]
    if look.point is not None:
        for name, value in list(look.point.values.items())[:1]:
            parts.append(f"{neutral(name)} {'not finite' if value is None else f'{value:.4g}'}")
    count = look.job.world_size
    return ", ".join([*parts, f"{count} worker{'' if count == 1 else 's'}"])


def event_line(event: Event) -> str:
    """An event for people."""
    return f"{output.clock(event.at)}  {event.kind:24}  {neutral(event.message)}"


@contextlib.contextmanager
def _json_lines() -> Iterator[Callable[[Look], None]]:
    def display(look: Look) -> None:
        for event in look.events:
            output.print_json_line(event)

    yield display


@contextlib.contextmanager
def _plain_lines() -> Iterator[Callable[[Look], None]]:
    shown: dict[str, float] = {"at": -REPORT_S, "step": -1}

    def display(look: Look) -> None:
        for event in look.events:
            output.print_line(event_line(event))
        step = -1 if look.job.step is None else look.job.step
        if step != shown["step"] and (look.job.terminal or time.monotonic() - shown["at"] >= REPORT_S):
            shown.update(at=time.monotonic(), step=step)
            output.print_line(f"{output.clock(time.time())}  {describe(look)}")

    yield display


@contextlib.contextmanager
def _live_bar() -> Iterator[Callable[[Look], None]]:
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.fields[state]}", markup=False),
        BarColumn(),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=output.console()) as progress:
        bar = progress.add_task("waiting", total=None, state="queued")

        def display(look: Look) -> None:
            for event in look.events:
                progress.console.print(event_line(event))
            progress.update(
                bar,
                total=look.job.total_steps,
                completed=look.job.step or 0,
                description=describe(look),
                state=str(look.job.state),
            )

        yield display
