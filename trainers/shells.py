"""Shells beside the commands of workers: what the service, a driver and a supervisor say to each other about one.

A shell is a process with the user, the view and the variables of its worker's command.  Input and output are cut into
chunks, which are numbered from 1 in each direction, so that a chunk that is sent twice is taken once.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Bytes of one chunk.
CHUNK_BYTES = 8 * 1024
#: Bytes of output that wait for a client, and those that wait in a driver: then the shell waits.
UNREAD_BYTES, BUFFER_BYTES = 256 * 1024, 64 * 1024
#: Seconds after which a shell ends of which the service has said nothing.
FORGOTTEN_S = 90.0
#: The streams of chunks of output.
STDOUT, STDERR = 1, 2
#: Rows or columns of a terminal, at most.
MOST_CELLS = 4096
#: Ended by this signal: its exit status, as shells count it, is that much more.
SIGNAL_BASE = 128

#: A number and the bytes; no bytes: the input ends.
InputChunk = tuple[int, bytes]
#: A number, a stream and the bytes.
OutputChunk = tuple[int, int, bytes]


@dataclass(frozen=True, kw_only=True)
class ShellTurn:
    """What the service knows of one shell, and what is new for it."""

    #: Of the job's shells, from 1.
    number: int
    rank: int
    #: What is run; empty: a shell.
    command: tuple[str, ...]
    #: Rows and columns of its terminal; None: it has none.
    size: tuple[int, int] | None
    #: What the variable `TERM` says.
    term: str
    #: Input that it has not taken, as far as the service knows.
    inputs: tuple[InputChunk, ...]
    #: The last chunk of output that is stored.
    after: int
    #: Bytes of output that the service may still store.
    room: int
    #: The service knows that it is open.
    is_open: bool


@dataclass(frozen=True, kw_only=True)
class ShellAnswer:
    """What a driver says of one shell."""

    number: int
    is_open: bool
    #: The last chunk of input that it has taken.
    taken: int
    chunks: tuple[OutputChunk, ...] = ()
    #: It has ended, and all of its output is in `chunks` or was stored before; why, in one sentence.
    message: str | None = None
    exit_code: int | None = None


def as_answer(said: object) -> ShellAnswer:
    """An answer of a driver, which comes as a list.  Raises ValueError for what is none."""
    if type(said) is not list or len(said) != 6:
        raise ValueError("it is no answer about a shell")
    number, is_open, taken, chunks, message, exit_code = said
    kinds = [type(one) for one in (number, is_open, taken, chunks)]
    if kinds != [int, bool, int, list] or not isinstance(message, str | None):
        raise ValueError("it is no answer about a shell")
    if exit_code is not None and (type(exit_code) is not int or not 0 <= exit_code < 2 * SIGNAL_BASE):
        raise ValueError("its exit code is none")
    found = tuple(_chunk(one) for one in chunks)
    if sum(len(one[2]) for one in found) > UNREAD_BYTES + CHUNK_BYTES:
        raise ValueError("it has more output than was asked for")
    return ShellAnswer(
        number=number,
        is_open=is_open,
        taken=taken,
        chunks=found,
        # A database takes no NUL, and no half of a character.
        message=None if message is None else "".join(filter(str.isprintable, message[:500])),
        exit_code=exit_code,
    )


def _chunk(said: object) -> OutputChunk:
    if type(said) is not list or [type(one) for one in said] != [int, int, bytes]:
        raise ValueError("it is no chunk of output")
    number, stream, content = said
    if stream not in (STDOUT, STDERR) or not 0 < len(content) <= CHUNK_BYTES:
        raise ValueError("it is no chunk of output")
    return number, stream, content
