"""A command line as words, in time that grows with its length.  Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

#: One piece of a word or the space between two; each begins with a character that no other one begins with.
_PIECE = re.compile(
    r"""(?P<space>[ \t\r\n]+)|(?P<bare>[^ \t\r\n'"\\]+)|'(?P<single>[^']*)'"""
    r"""|"(?P<double>[^"\\]*+(?:\\.[^"\\]*+)*)"|\\(?P<escaped>.)""",
    re.DOTALL,
)
#: Within "", a backslash stands for itself but before these.
_ESCAPE = re.compile(r'\\(["\\])')


def pieces_of(line: str) -> Iterator[re.Match[str]]:
    """The pieces of words and the spaces between them; what a piece is, says the name of its group.

    Raises ValueError with the sentences of `shlex.split`: `No closing quotation`, `No escaped character`.
    """
    at = 0
    while at < len(line):
        piece = _PIECE.match(line, at)
        if piece is None:
            is_escape = line[at] == "\\" or _ends_in_escape(line, at)
            raise ValueError("No escaped character" if is_escape else "No closing quotation")
        at = piece.end()
        yield piece


def words_of(line: str) -> list[str]:
    """What `shlex.split` gives, which copies a word for each of its characters.  Raises ValueError as it does."""
    words: list[str] = []
    pieces: list[str] | None = None
    for piece in pieces_of(line):
        if piece["space"] is not None:
            if pieces is not None:
                words.append("".join(pieces))
            pieces = None
            continue
        pieces = [] if pieces is None else pieces
        text = piece[piece.lastgroup or 0]
        pieces.append(_ESCAPE.sub(r"\1", text) if piece.lastgroup == "double" else text)
    return words if pieces is None else [*words, "".join(pieces)]


def _ends_in_escape(line: str, at: int) -> bool:
    """True when the quote that is open at `at` is a " and the line ends behind a backslash that escapes nothing."""
    backslashes = len(line) - len(line.rstrip("\\"))
    return line[at] == '"' and backslashes % 2 == 1
