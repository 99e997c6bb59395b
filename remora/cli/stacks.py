"""`remora stacks`: what the workers of a running job are doing, equal ones together."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from remora.cli import output
from remora.cli.exits import ExitCode
from remora.cli.options import JobArgument, JsonOption, ServerOption
from remora.cli.session import connect
from remora.terminal_text import neutral

if TYPE_CHECKING:
    from remora.client.blocking import Client
    from remora.views import Event

#: Seconds between two looks at the events.
_PAUSE_S = 0.3
#: What py-spy writes before a stack: the number of a process or thread, and what it does that moment.
_NUMBERS = re.compile(r"\b(Process|Thread) \d+(?: \([a-z+]+\))?")
#: Ranks that report at once.
MOST_RANKS = 64


def stacks(
    job: JobArgument,
    rank: Annotated[
        int | None,
        typer.Option(
            "--rank", min=0, max=MOST_RANKS - 1, help="Only this rank, of the first 64 that report."
        ),
    ] = None,
    wait: Annotated[int, typer.Option("--wait", min=1, max=600, help="Seconds to wait for the ranks.")] = 60,
    as_json: JsonOption = False,
    server: ServerOption = None,
) -> None:
    """Print the Python stacks of a running job's workers, equal ones together."""
    with connect(server) as client:
        found = ask(client, client.find(job).id, wait, rank)
    if not found:
        output.say(
            f"No rank has reported within {wait} s; the job may have ended, or its driver be of an older release."
        )
        raise typer.Exit(ExitCode.ERROR)
    if as_json:
        output.print_json({"ranks": [{"rank": one, "stack": text} for one, text in sorted(found.items())]})
        return
    for ranks, text in merged(found):
        output.print_line(f"{name_of(ranks)}:")
        output.print_line(neutral(text))


def ask(client: Client, job_id: str, wait_s: float, rank: int | None = None) -> dict[int, str]:
    """Request the stacks, and wait until each rank of the worker group has reported, `wait_s` at most."""
    last = max((event.seq for event in client.events(job_id)), default=0)
    size = client.request_stacks(job_id).world_size
    wanted = min(MOST_RANKS, size)
    if size > MOST_RANKS:
        output.say(f"The first {MOST_RANKS} of {size} ranks report.")
    deadline, pause = time.monotonic() + wait_s, threading.Event()

    def is_whole(found: Mapping[int, str]) -> bool:
        return rank in found if rank is not None else len(found) >= wanted

    return _until(lambda: reported(client.events(job_id, after=last), rank), is_whole, deadline, pause)


def _until(
    look: Callable[[], dict[int, str]],
    is_whole: Callable[[Mapping[int, str]], bool],
    deadline: float,
    pause: threading.Event,
) -> dict[int, str]:
    while not is_whole(found := look()) and time.monotonic() < deadline:
        pause.wait(_PAUSE_S)
    return found


def reported(events: Iterable[Event], rank: int | None = None) -> dict[int, str]:
    """The stacks that events report, by rank; the newest of each (pure)."""
    found = {
        int(event.data["rank"]): str(event.data.get("stack", ""))
        for event in events
        if event.kind == "worker.stack" and isinstance(event.data.get("rank"), int)
    }
    return found if rank is None else {one: text for one, text in found.items() if one == rank}


def merged(found: Mapping[int, str]) -> list[tuple[list[int], str]]:
    """Equal stacks once, with the ranks that have them; those of most ranks last, as the others stand out (pure).

    Stacks that differ in the numbers of processes and threads alone are equal: the first rank's is shown.
    """
    ranks: dict[str, list[int]] = {}
    for rank, text in sorted(found.items()):
        ranks.setdefault(_NUMBERS.sub(r"\1", text), []).append(rank)
    return sorted(
        ((those, found[those[0]]) for those in ranks.values()), key=lambda one: (len(one[0]), one[0])
    )


def name_of(ranks: list[int]) -> str:
    """`rank 3`, or `ranks 0-2, 5` (pure)."""
    parts: list[str] = []
    begin = previous = ranks[0]
    for one in [*ranks[1:], None]:
        if one is not None and one == previous + 1:
            previous = one
            continue
        parts.append(f"{begin}" if begin == previous else f"{begin}-{previous}")
        begin = previous = one if one is not None else previous
    return f"rank {parts[0]}" if len(ranks) == 1 else f"ranks {', '.join(parts)}"
