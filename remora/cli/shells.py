"""`remora shell`: a terminal, or one command, beside the command of a running worker."""

from __future__ import annotations

import base64
import contextlib
import os
import select
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from remora.cli import output
from remora.cli.exits import ExitCode
from remora.cli.options import JobArgument, ServerOption
from remora.cli.raw_terminal import ending_on_signals, is_terminal, raw_terminal, size
from remora.cli.session import connect
from remora.errors import RemoraError
from remora.terminal_text import neutral

if TYPE_CHECKING:
    from remora.client.blocking import Client
    from remora.views import ShellSession

#: Ends the session at a terminal: Ctrl-].
_ESCAPE = b"\x1d"
#: Bytes of a chunk of input.
_CHUNK_BYTES = 8192
#: Seconds that a request waits for output, between two looks at the size of the terminal, and until input that was
#: not kept is sent again.
_WAIT_S, _LOOK_S, _AGAIN_S = 5.0, 0.1, 0.05


def shell(
    job: JobArgument,
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- COMMAND]", help="What to run there in place of a shell.", show_default=False
        ),
    ] = None,
    rank: Annotated[int, typer.Option("--rank", min=0, help="In which rank.")] = 0,
    server: ServerOption = None,
) -> None:
    """Open a shell in a rank of a running job, or run a command there; Ctrl-] or `exit` ends it."""
    is_typed = is_terminal()
    with connect(server) as client, ending_on_signals():
        job_id = client.find(job).id
        opened = client.open_shell(
            job_id,
            rank=rank,
            command=command or (),
            size=size() if is_typed else None,
            term=os.environ.get("TERM") or "dumb",
        )
        with _closed_at_the_end(client, opened, job_id), connect(server, patient=True) as typing:
            if is_typed:
                output.say(f"Shell {opened.number} in rank {rank} of {job_id}; Ctrl-] or exit ends it.")
            ended = _Session(client, typing, job_id, opened.number, is_typed=is_typed).run()
    if ended is not None:
        raise typer.Exit(_code_of(ended))


@contextlib.contextmanager
def _closed_at_the_end(client: Client, opened: ShellSession, job_id: str) -> Iterator[None]:
    """Whatever ends this process, the shell is not left open; the service ends it a minute later otherwise."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(RemoraError):
            client.close_shell(job_id, opened.number)
        raise


def _code_of(ended: ShellSession) -> int:
    if ended.exit_code is not None:
        return ended.exit_code
    output.say(f"The shell has ended: {neutral(ended.message or 'the service did not say why')}.")
    return ExitCode.ERROR


class _Session:
    """One shell: the main thread prints, another one types."""

    def __init__(self, client: Client, typing: Client, job_id: str, number: int, *, is_typed: bool) -> None:
        self._client, self._typing = client, typing
        self._job_id, self._number = job_id, number
        self._is_typed = is_typed
        self._is_over = threading.Event()
        #: It was closed here.
        self._is_left = False
        self._failure: Exception | None = None
        self._seq = 0
        self._size = size() if is_typed else None

    def run(self) -> ShellSession | None:
        """Print until the shell has ended, and return it as it is then; None: it was left by Ctrl-]."""
        thread = threading.Thread(target=self._type, name="typing", daemon=True)
        with raw_terminal() if self._is_typed else contextlib.nullcontext():
            thread.start()
            try:
                ended = self._print()
            finally:
                self._is_over.set()
                # It ends at its next look, and may not read what is typed for the next program.
                thread.join(2 * _LOOK_S if self._is_typed else 0)
        if self._is_left:
            return None
        return ended

    def _print(self) -> ShellSession:
        after = 0
        while True:
            found = self._client.exchange_shell(self._job_id, self._number, after=after, wait_s=_WAIT_S)
            if self._failure is not None:
                raise self._failure
            for chunk in found.output:
                _write(2 if chunk.stream == "stderr" else 1, base64.b64decode(chunk.data))
                after = chunk.seq
            if found.shell.state == "ended" and not found.output:
                return found.shell

    def _type(self) -> None:
        try:
            while not self._is_over.is_set() and self._type_once():
                pass
        except (RemoraError, OSError, ValueError) as error:
            self._failure = error

    def _type_once(self) -> bool:
        """Look at the terminal once; False when nothing more is to be typed."""
        now = size() if self._is_typed else None
        if now != self._size:
            self._size = now
            self._typing.exchange_shell(self._job_id, self._number, size=now)
        if not select.select([sys.stdin], [], [], _LOOK_S)[0]:
            return True
        content = os.read(sys.stdin.fileno(), _CHUNK_BYTES)
        before, escape, _ = content.partition(_ESCAPE) if self._is_typed else (content, b"", b"")
        if before or not content:
            self._send(before)
        if escape:
            self._is_left = True
            self._typing.close_shell(self._job_id, self._number)
        return bool(content) and not escape

    def _send(self, content: bytes) -> None:
        """Type a chunk, again until the service keeps it."""
        self._seq += 1
        while not self._is_over.is_set():
            found = self._typing.exchange_shell(self._job_id, self._number, seq=self._seq, data=content)
            if found.input_seq >= self._seq or found.shell.state == "ended":
                return
            self._is_over.wait(_AGAIN_S)


def _write(descriptor: int, content: bytes) -> None:
    while content:
        content = content[os.write(descriptor, content) :]
