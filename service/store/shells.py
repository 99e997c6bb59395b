"""Shells of jobs, and what is typed and printed in them until it is taken."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from service.queue.shells import MOST_KEPT, ShellRow
from service.store.tables import attempts, jobs, shell_pieces, shells
from trainers.shells import InputChunk, OutputChunk

#: What the controller alone changes of a row.
_FOLLOWED = ("opened_at", "output_at", "output_seq", "ended_at", "message", "exit_code", "cleared_at")
_SAVE = (
    sa.update(shells)
    .where(shells.c.job_id == sa.bindparam("of"), shells.c.number == sa.bindparam("at"))
    .values({name: sa.bindparam(f"new_{name}", type_=shells.c[name].type) for name in _FOLLOWED})
)
#: A shell, by its job and its number.
Place = tuple[str, int]


def add(connection: sa.Connection, row: ShellRow) -> None:
    """A shell was asked for; rows of long ago go."""
    connection.execute(sa.insert(shells).values(**{**vars(row), "command": list(row.command)}))
    old = sa.delete(shells).where(
        shells.c.job_id == row.job_id,
        shells.c.number <= row.number - MOST_KEPT,
        shells.c.cleared_at.is_not(None),
    )
    connection.execute(old)


def of_job(connection: sa.Connection, job_id: str) -> list[ShellRow]:
    """Those of a job that are kept, the oldest first."""
    mine = sa.select(shells).where(shells.c.job_id == job_id).order_by(shells.c.number)
    return [_row(dict(one._mapping)) for one in connection.execute(mine)]


def get(connection: sa.Connection, job_id: str, number: int) -> ShellRow | None:
    """One of a job, or None."""
    mine = sa.select(shells).where(shells.c.job_id == job_id, shells.c.number == number)
    found = connection.execute(mine).one_or_none()
    return None if found is None else _row(dict(found._mapping))


# --- what the API writes


def note_client(connection: sa.Connection, row: ShellRow) -> None:
    """Store what the API alone changes of a row."""
    names = ("seen_at", "input_at", "input_seq", "rows", "columns", "close_requested_at")
    values = {name: getattr(row, name) for name in names}
    connection.execute(sa.update(shells).where(*_of(shells, row)).values(values))


def put_input(connection: sa.Connection, row: ShellRow, content: bytes) -> None:
    """Keep the newest chunk of input until its worker has it."""
    _insert(connection, [(row, False, row.input_seq, 0, content)])


def count_input(connection: sa.Connection, row: ShellRow) -> int:
    """Chunks of input that wait."""
    mine = sa.select(sa.func.count()).where(*_of(shell_pieces, row), shell_pieces.c.is_output.is_(False))
    return int(connection.execute(mine).scalar_one())


def read_output(connection: sa.Connection, row: ShellRow, after: int, most: int) -> list[OutputChunk]:
    """Chunks of output after that one, `most` at most."""
    mine = (
        sa.select(shell_pieces.c.seq, shell_pieces.c.stream, shell_pieces.c.content)
        .where(*_of(shell_pieces, row), shell_pieces.c.is_output.is_(True), shell_pieces.c.seq > after)
        .order_by(shell_pieces.c.seq)
        .limit(most)
    )
    return [(one.seq, one.stream, bytes(one.content)) for one in connection.execute(mine)]


def has_output(connection: sa.Connection, row: ShellRow, until: int) -> bool:
    """Whether there is output up to that chunk."""
    mine = [*_of(shell_pieces, row), shell_pieces.c.is_output.is_(True), shell_pieces.c.seq <= until]
    return bool(connection.execute(sa.select(sa.exists().where(*mine))).scalar())


def forget_output(connection: sa.Connection, row: ShellRow, until: int) -> None:
    """Delete the output up to that chunk, which its client has."""
    mine = [*_of(shell_pieces, row), shell_pieces.c.is_output.is_(True), shell_pieces.c.seq <= until]
    connection.execute(sa.delete(shell_pieces).where(*mine))


# --- what the controller reads and writes


def under_way(connection: sa.Connection, cluster: str) -> list[tuple[ShellRow, str | None, bool]]:
    """Those of a cluster that are not cleared, each with the id of its attempt and whether that runs."""
    joined = shells.join(jobs, jobs.c.id == shells.c.job_id).outerjoin(
        attempts, sa.and_(attempts.c.job_id == shells.c.job_id, attempts.c.attempt == shells.c.attempt)
    )
    found = (
        sa.select(shells, attempts.c.id.label("attempt_id"), attempts.c.ended_at.label("attempt_ended_at"))
        .select_from(joined)
        .where(shells.c.cleared_at.is_(None), jobs.c.cluster == cluster)
        .order_by(shells.c.job_id, shells.c.number)
    )
    rows = [dict(one._mapping) for one in connection.execute(found)]
    parted = [(row.pop("attempt_id"), row.pop("attempt_ended_at"), row) for row in rows]
    return [(_row(row), attempt, attempt is not None and end is None) for attempt, end, row in parted]


def waiting(
    connection: sa.Connection, rows: Sequence[ShellRow]
) -> tuple[Mapping[Place, list[InputChunk]], Mapping[Place, int]]:
    """The input of these that waits, and the bytes of output that are not read."""
    inputs: dict[Place, list[InputChunk]] = {}
    unread: dict[Place, int] = {}
    for row in rows:
        place = (row.job_id, row.number)
        size = sa.func.coalesce(sa.func.sum(sa.func.length(shell_pieces.c.content)), 0)
        mine = [*_of(shell_pieces, row), shell_pieces.c.is_output.is_(True)]
        unread[place] = int(connection.execute(sa.select(size).where(*mine)).scalar_one())
        typed = (
            sa.select(shell_pieces.c.seq, shell_pieces.c.content)
            .where(*_of(shell_pieces, row), shell_pieces.c.is_output.is_(False))
            .order_by(shell_pieces.c.seq)
        )
        inputs[place] = [(one.seq, bytes(one.content)) for one in connection.execute(typed)]
    return inputs, unread


def save(connection: sa.Connection, rows: Iterable[ShellRow]) -> None:
    """Store what the controller alone changes of these; the chunks of those that are cleared go."""
    for row in rows:
        if row.cleared_at is not None:
            connection.execute(sa.delete(shell_pieces).where(*_of(shell_pieces, row)))
        values = {f"new_{name}": getattr(row, name) for name in _FOLLOWED}
        connection.execute(_SAVE, {"of": row.job_id, "at": row.number, **values})


def take(connection: sa.Connection, row: ShellRow, taken: int, chunks: Sequence[OutputChunk]) -> None:
    """The worker has the input up to that chunk, and has printed these."""
    if taken:
        mine = [*_of(shell_pieces, row), shell_pieces.c.is_output.is_(False), shell_pieces.c.seq <= taken]
        connection.execute(sa.delete(shell_pieces).where(*mine))
    _insert(connection, [(row, True, *chunk) for chunk in chunks])


def _insert(connection: sa.Connection, chunks: Sequence[tuple[ShellRow, bool, int, int, bytes]]) -> None:
    if chunks:
        values = [
            {
                "job_id": row.job_id,
                "number": row.number,
                "is_output": is_output,
                "seq": seq,
                "stream": stream,
                "content": content,
            }
            for row, is_output, seq, stream, content in chunks
        ]
        connection.execute(sa.insert(shell_pieces), values)


def _of(table: sa.Table, row: ShellRow) -> tuple[sa.ColumnElement[bool], sa.ColumnElement[bool]]:
    return table.c.job_id == row.job_id, table.c.number == row.number


def _row(values: Mapping[str, Any]) -> ShellRow:
    return ShellRow(**{**values, "command": tuple(values["command"])})
