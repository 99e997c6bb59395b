"""Submissions of several jobs that have begun: their keys are kept in files until the last job is created.

The same submission, repeated after an interruption, gets the same key, and so finds the jobs that exist already.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from pathlib import Path

#: Seconds for which a key is good; the service knows it for a day longer.
USABLE_S = 6 * 86400.0
_LONGEST_KEY = 64


def folder() -> Path:
    """Where the keys of submissions are that have begun: below XDG_STATE_HOME, else ~/.local/state."""
    state = os.environ.get("XDG_STATE_HOME", "")
    above = Path(state) if Path(state).is_absolute() else Path.home() / ".local" / "state"
    return above / "remora" / "submissions"


def remembered(digest: str) -> str:
    """The key of the submission with this digest: the one of before the interruption, else a new one, stored first.

    A new key is used even if it cannot be stored; then a repetition makes new jobs.
    """
    path = folder() / digest
    with contextlib.suppress(OSError, ValueError):
        if time.time() - path.stat().st_mtime < USABLE_S and (key := _read(path)):
            return key
    key = uuid.uuid4().hex
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        unfinished = path.with_name(f".{key}")
        unfinished.write_text(key)
        unfinished.replace(path)
    return key


def forget(digest: str) -> None:
    """The submission is complete."""
    with contextlib.suppress(OSError):
        (folder() / digest).unlink()


def _read(path: Path) -> str | None:
    with path.open(encoding="ascii") as file:
        text = file.read(_LONGEST_KEY)
    return text if text.isalnum() else None
