"""A job that cannot train as it is described."""

from __future__ import annotations

from typing import NoReturn

from remora.training import open_link


class Refused(Exception):
    """The message is one sentence that says what to change."""


def end_refused(refused: Refused) -> NoReturn:
    """End this process with that sentence, so that the job ends with it and is not tried again."""
    link = open_link()
    if link is not None:
        link.send({"type": "refused", "message": str(refused)})
    raise SystemExit(f"remora: {refused}") from None
