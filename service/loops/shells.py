"""Moves what is typed and printed between the rows of shells and the drivers of their attempts, and ends shells.

Each step sends a driver all shells of its attempt: one that is not named any more ends there.  Numbers make repeats
harmless: a chunk is forgotten at one end when its number has come back from the other one.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import sqlalchemy as sa

from remora.process_log import about
from service.interfaces import ShellTransport
from service.loops.tick import Tick
from service.queue.shells import ShellRow, after_answer, after_look, is_clear, new_chunks
from service.store import audit
from service.store import shells as store
from service.store.audit import AuditRow
from service.store.ids import new_id
from service.store.tables import jobs
from trainers.shells import UNREAD_BYTES, InputChunk, ShellAnswer, ShellTurn

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Followed:
    """A shell that is under way."""

    row: ShellRow
    attempt_id: str | None
    is_live: bool


class Shells:
    """The shells of a cluster; one thread calls it."""

    def __init__(self) -> None:
        self._calls = itertools.count(1)
        #: Some are under way.
        self.is_busy = False

    def step(self, tick: Tick, transport: ShellTransport | None) -> None:
        """Look at all shells once.  Raises Fenced."""
        # A step that fails is repeated at the pace of the other loops.
        self.is_busy = False
        known = tick.load(partial(store.under_way, cluster=tick.cluster))
        if not known or transport is None:
            return
        found = [_Followed(*one) for one in known]
        inputs, unread = tick.load(partial(store.waiting, rows=[one.row for one in found]))
        looked = [self._look(tick, one, unread) for one in found]
        _save(tick, [one.row for one in found], [one.row for one in looked])
        self._exchange(tick, transport, looked, inputs, unread)
        self.is_busy = True

    def _look(self, tick: Tick, one: _Followed, unread: Mapping[store.Place, int]) -> _Followed:
        row = after_look(one.row, is_live=one.is_live, is_allowed=tick.settings.shells, now=tick.now)
        if is_clear(row, unread[row.job_id, row.number], tick.now):
            row = replace(row, cleared_at=tick.now)
        return replace(one, row=row)

    def _exchange(
        self,
        tick: Tick,
        transport: ShellTransport,
        looked: Sequence[_Followed],
        inputs: Mapping[store.Place, list[InputChunk]],
        unread: Mapping[store.Place, int],
    ) -> None:
        states: dict[str, list[ShellTurn]] = {
            one.attempt_id: [] for one in looked if one.is_live and one.attempt_id is not None
        }
        rows: dict[tuple[str, int], ShellRow] = {}
        for one in looked:
            row = one.row
            if one.attempt_id in states and row.ended_at is None:
                place = (row.job_id, row.number)
                states[one.attempt_id].append(_state_of(row, inputs[place], UNREAD_BYTES - unread[place]))
                rows[one.attempt_id, row.number] = row
        tick.check()
        answers = transport.exchange((tick.lease.token, next(self._calls)), states)
        said = {(attempt_id, one.number): one for attempt_id, those in answers.items() for one in those}
        _take(tick, [(rows[place], answer) for place, answer in said.items() if place in rows])


def _state_of(row: ShellRow, inputs: Sequence[InputChunk], free_bytes: int) -> ShellTurn:
    return ShellTurn(
        number=row.number,
        rank=row.rank,
        command=row.command,
        size=row.size,
        term=row.term,
        inputs=tuple(inputs),
        after=row.output_seq,
        room=max(0, free_bytes),
        is_open=row.opened_at is not None,
    )


def _take(tick: Tick, pairs: Sequence[tuple[ShellRow, ShellAnswer]]) -> None:
    """Store what drivers have answered, in one transaction."""
    changes = []
    for row, answer in pairs:
        taken = min(answer.taken, row.input_seq)
        after = after_answer(row, answer, tick.now)
        if after != row or taken:
            changes.append((row, after, taken, new_chunks(row, answer)))

    def work(connection: sa.Connection) -> None:
        for row, _, taken, chunks in changes:
            store.take(connection, row, taken, chunks)
        _write(connection, tick, [row for row, *_ in changes], [after for _, after, *_ in changes])

    if changes:
        tick.apply(work)


def _save(tick: Tick, before: Sequence[ShellRow], after: Sequence[ShellRow]) -> None:
    if before != after:
        tick.apply(lambda connection: _write(connection, tick, before, after))


def _write(
    connection: sa.Connection, tick: Tick, before: Sequence[ShellRow], after: Sequence[ShellRow]
) -> None:
    """Store what has changed; the audit records each end."""
    store.save(connection, [new for old, new in zip(before, after, strict=True) if new != old])
    for old, new in zip(before, after, strict=True):
        if old.ended_at is None and new.ended_at is not None:
            _note_end(connection, tick, new)


def _note_end(connection: sa.Connection, tick: Tick, row: ShellRow) -> None:
    log.info("shell %d of %s ended: %s", row.number, row.job_id, row.message, extra=about(job=row.job_id))
    project = connection.execute(sa.select(jobs.c.project).where(jobs.c.id == row.job_id)).scalar_one()
    facts = {"shell": row.number, "rank": row.rank, "message": row.message, "exit_code": row.exit_code}
    entry = AuditRow(
        id=new_id("audit", tick.now),
        at=tick.now,
        principal=row.principal,
        credential=row.credential,
        address=None,
        agent=None,
        operation="end_shell",
        project=project,
        object=row.job_id,
        before=None,
        after=facts,
        request_id=None,
        outcome="done",
    )
    audit.append(connection, entry)
