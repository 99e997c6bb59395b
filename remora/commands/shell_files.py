"""Scripts for a shell that a command runs from its code: which launchers they start.  Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Sequence

from remora.commands.launchers import refuse_started
from remora.commands.started_commands import commands_in, started_by

#: Characters of a script that are looked at.
_LOOKED_AT = 64 * 1024


def check_scripts(command: Sequence[str], read: Callable[[str], str | None]) -> None:
    """Raise ValueError, in one sentence, for a launcher in such a script that would start in every worker.

    `read` gives the text of a file by its normalized name below the code, and None where there is none.
    """
    for name in scripts_of(command):
        for started in commands_in((read(name) or "")[:_LOOKED_AT]):
            refuse_started(f"{name} in the code", started)
            for _, inner in started_by(started):
                refuse_started(f"{name} in the code", inner)


def scripts_of(command: Sequence[str]) -> Iterator[str]:
    """Names of files below the code that may be such scripts, normalized."""
    texts = [
        word
        for started in (list(command), *(one for _, one in started_by(list(command))))
        for word in started
    ]
    for name in dict.fromkeys(posixpath.normpath(word) for word in texts if word.endswith((".sh", ".bash"))):
        if not name.startswith(("/", "..")):
            yield name
