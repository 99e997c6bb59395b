"""Values put into a shell's script so that it takes each for what it is.  Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass

#: A text that means the same in every place of a command.
_PLAIN = re.compile(r"[\w@%+=:,./-]*", re.ASCII)
_UNCLEAR = "?"
#: What changes the place, or is stepped over as a whole; simple substitutions are, which hold no quotes and no `case`.
_WHOLE = r"\\.|\$\{[^{}'\"`\\$\n]*\}|\$\((?![^)]*\bcase\b)[^()'\"`\\#$<\n]*\)"
_STEPS = {
    "": re.compile(
        rf"{_WHOLE}|<<<|(?P<unclear>\\\Z|`|\$[({{\['\"]|\$\Z|<<|\(\(|(?<=\\[\s;&|()<>])\#)"
        r"|(?P<quote>['\"]|(?<![^\s;&|()<>])\#)",
        re.DOTALL,
    ),
    '"': re.compile(rf"{_WHOLE}|(?P<unclear>\\\Z|`|\$[({{\[]|\$\Z)|(?P<quote>\")", re.DOTALL),
    "'": re.compile("(?P<quote>')"),
    "#": re.compile(r"(?P<quote>\n)"),
}


@dataclass(frozen=True)
class Value:
    """What stands for an expression."""

    text: str
    #: True for an expression of our own specifications, which is a path by the time that the command runs.
    is_expression: bool = False


def fill(template: str, expression: re.Pattern[str], value: Callable[[re.Match[str]], Value]) -> str:
    """Put values in place of expressions, quoted for the place where each stands: bare, in '' or in "".

    Raises ValueError with one sentence for a value that needs quotes in a place where none can be put safely.
    """
    parts: list[str] = []
    place, at = "", 0
    for match in expression.finditer(template):
        place = _place_after(template, at, match.start(), place)
        parts += [template[at : match.start()], _quoted(value(match), place, match.group())]
        at = match.end()
    return "".join([*parts, template[at:]])


def _place_after(template: str, at: int, end: int, place: str) -> str:
    """Where a shell is behind a part of a command: bare "", in a quote, in a comment #, or unknown ?."""
    while place != _UNCLEAR and (step := _STEPS[place].search(template, at, end)) is not None:
        if step.lastgroup == "unclear":
            place = _UNCLEAR
        elif step.lastgroup == "quote":
            place = step.group() if place == "" else ""
        at = step.end()
    return place


def _quoted(value: Value, place: str, expression: str) -> str:
    text = value.text
    if place in (_UNCLEAR, "#"):
        if not value.is_expression and not _PLAIN.fullmatch(text):
            raise ValueError(
                f"{expression[:80]} has a value that needs quotes, and stands where they cannot be put: in a comment,"
                " or in or behind $(...), `...`, ${...}, a heredoc or a backslash; write NAME=EXPRESSION at the"
                ' beginning of the command, and "$NAME" there'
            )
        return text
    if place == '"':
        return text if value.is_expression else re.sub(r'([\\"$`])', r"\\\1", text)
    if place == "'":
        return f"'\"{text}\"'" if value.is_expression else text.replace("'", "'\"'\"'")
    return f'"{text}"' if value.is_expression else shlex.quote(text)
