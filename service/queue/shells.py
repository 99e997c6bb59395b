"""Shells that people open in the workers of running jobs (pure)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from remora.states import JobState
from service.queue.lifecycle import Decision
from service.queue.owners_changes import ChangeRefused, check_not_ended
from service.queue.rows import JobRow, NewEvent
from trainers.shells import MOST_CELLS, OutputChunk, ShellAnswer

#: Shells of one job that are open at the same time, and rows of ended ones that are kept.
MOST_OPEN, MOST_KEPT = 4, 100
#: Seconds without input and output after which one ends, and for which one may be open.
IDLE_S, WHOLE_S = 15 * 60.0, 8 * 3600.0
#: Seconds within which one has to have been opened; without a request of its client after which one ends.
OPENED_WITHIN_S, AWAY_S = 60.0, 60.0
#: Seconds for which the output of one that has ended can still be read.
READ_WITHIN_S = 60.0
#: Words of a command, and bytes of all of them.
MOST_WORDS, MOST_COMMAND_BYTES = 128, 8192
#: Chunks of input that wait for a worker.
MOST_WAITING = 16
_TERM = re.compile(r"[A-Za-z0-9][A-Za-z0-9+._-]{0,63}")

ShellState = Literal["requested", "open", "ended"]


@dataclass(frozen=True, kw_only=True)
class ShellRow:
    """A shell in one worker; times are seconds since 1970."""

    job_id: str
    #: 1, 2, ... of the job's shells.
    number: int
    attempt: int
    rank: int
    #: Who has opened it, and the token that proved it.
    principal: str
    credential: str | None
    #: What is run; empty: a shell.
    command: tuple[str, ...]
    term: str
    #: Size of its terminal; None: it has none.
    rows: int | None
    columns: int | None
    requested_at: float
    #: When its client was heard of last, when its newest input came, and the number of that chunk.
    seen_at: float
    input_at: float
    input_seq: int = 0
    #: When its client asked for its end.
    close_requested_at: float | None = None
    opened_at: float | None = None
    #: When its newest output came, and the number of that chunk.
    output_at: float | None = None
    output_seq: int = 0
    ended_at: float | None = None
    #: Why it ended, in one sentence.
    message: str | None = None
    exit_code: int | None = None
    #: When its input and output were deleted; None: it is under way.
    cleared_at: float | None = None

    @property
    def state(self) -> ShellState:
        """How far it is."""
        if self.ended_at is not None:
            return "ended"
        return "requested" if self.opened_at is None else "open"

    @property
    def size(self) -> tuple[int, int] | None:
        """Rows and columns of its terminal."""
        return None if self.rows is None or self.columns is None else (self.rows, self.columns)


@dataclass(frozen=True, kw_only=True)
class WantedShell:
    """What is asked for; see `ShellRow`."""

    rank: int
    command: tuple[str, ...]
    term: str
    size: tuple[int, int] | None
    principal: str
    credential: str | None


def open_shell(
    job: JobRow, known: Sequence[ShellRow], wanted: WantedShell, now: float
) -> tuple[Decision, ShellRow]:
    """A shell in a rank of a running job; `known` are those that the job has.  Raises ChangeRefused."""
    check_not_ended(job, "entered")
    if job.state is not JobState.RUNNING:
        raise ChangeRefused(f"the job has no workers that train now: it is {job.state.value}")
    if not 0 <= wanted.rank < job.world_size:
        raise ChangeRefused(
            f"the job has no rank {wanted.rank}: it has {job.world_size} workers now, from rank 0"
        )
    if sum(one.ended_at is None for one in known) >= MOST_OPEN:
        raise ChangeRefused(f"{MOST_OPEN} shells of the job are open already, as many as may be: end one")
    rows, columns = wanted.size or (None, None)
    row = ShellRow(
        job_id=job.id,
        number=max((one.number for one in known), default=0) + 1,
        attempt=job.attempt,
        rank=wanted.rank,
        principal=wanted.principal,
        credential=wanted.credential,
        command=wanted.command,
        term=wanted.term,
        rows=rows,
        columns=columns,
        requested_at=now,
        seen_at=now,
        input_at=now,
    )
    event = NewEvent(
        at=now,
        kind="job.shell_requested",
        message=f"a shell in rank {row.rank} was asked for",
        data={"shell": row.number, "rank": row.rank},
    )
    return Decision(job, None, (event,)), row


def problem_of(command: Sequence[str], term: str, size: tuple[int, int] | None) -> str | None:
    """What is wrong with what is asked for; None: nothing."""
    if any("\ud800" <= one <= "\udfff" for word in command for one in word):
        return "the command has a word that no program can have"
    if len(command) > MOST_WORDS or sum(len(word.encode()) for word in command) > MOST_COMMAND_BYTES:
        return f"the command has more than {MOST_WORDS} words, or {MOST_COMMAND_BYTES} bytes"
    if any("\0" in word for word in command) or (command and not command[0]):
        return "the command has a word that no program can have"
    if _TERM.fullmatch(term) is None:
        return "term is no kind of terminal; write it as xterm-256color"
    if size is not None and not all(1 <= cells <= MOST_CELLS for cells in size):
        return f"a terminal has 1 to {MOST_CELLS} rows and columns"
    return None


def after_look(row: ShellRow, *, is_live: bool, is_allowed: bool, now: float) -> ShellRow:
    """The shell after a look at it; `is_live`: its attempt runs; `is_allowed`: the service has shells."""
    if row.ended_at is not None:
        return row
    why = _why_over(row, is_live, is_allowed, now)
    return row if why is None else replace(row, ended_at=now, message=why)


def _why_over(row: ShellRow, is_live: bool, is_allowed: bool, now: float) -> str | None:
    if not is_live:
        return "its attempt has ended, or was stopped"
    if not is_allowed:
        return "shells were turned off in this service"
    if row.close_requested_at is not None:
        return "it was closed"
    if row.opened_at is None:
        late = now - row.requested_at > OPENED_WITHIN_S
        return f"its rank has not opened it within {OPENED_WITHIN_S:g} s; ask again" if late else None
    if now - row.opened_at > WHOLE_S:
        return f"it was open for {WHOLE_S / 3600:g} h, which is the limit"
    if now - max(row.opened_at, row.input_at, row.output_at or 0.0) > IDLE_S:
        return f"nothing was typed or printed for {IDLE_S / 60:g} min, which is the limit"
    if now - row.seen_at > AWAY_S:
        return f"its client has not asked for output for {AWAY_S:g} s"
    return None


def is_clear(row: ShellRow, unread: int, now: float) -> bool:
    """Whether its input and output can be deleted; `unread` are the bytes that its client has not read."""
    return row.ended_at is not None and (not unread or now - row.ended_at > READ_WITHIN_S)


def new_chunks(row: ShellRow, answer: ShellAnswer) -> list[OutputChunk]:
    """Those chunks of an answer that follow what is stored, without a gap."""
    found: list[OutputChunk] = []
    for chunk in answer.chunks:
        if row.ended_at is None and chunk[0] == row.output_seq + len(found) + 1:
            found.append(chunk)
    return found


def after_answer(row: ShellRow, answer: ShellAnswer, now: float) -> ShellRow:
    """The shell after its driver has answered, and the new chunks are stored."""
    if row.ended_at is not None:
        return row
    if found := new_chunks(row, answer):
        row = replace(row, output_seq=found[-1][0], output_at=now)
    if answer.is_open and row.opened_at is None:
        row = replace(row, opened_at=now)
    if answer.message is not None:
        row = replace(row, ended_at=now, message=answer.message, exit_code=answer.exit_code)
    return row
