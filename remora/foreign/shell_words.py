"""Command lines with expressions: values are put in so that a shell takes each for what it is.  Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass

#: What only a shell can do; quotes and spaces are understood without one.
_SHELL = re.compile(r"[|&;<>()$`\\*?\[\]{}~#!\n]")
_OURS = re.compile(r"\$\{\{outputs\.[\w.-]+\}\}")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
#: First words that no program stands for.
_BUILTINS = frozenset(
    (
        *(
            ".",
            ":",
            "alias",
            "case",
            "cd",
            "command",
            "declare",
            "eval",
            "exec",
            "exit",
            "export",
            "for",
            "function",
        ),
        *(
            "if",
            "let",
            "local",
            "popd",
            "pushd",
            "read",
            "readonly",
            "return",
            "set",
            "shift",
            "shopt",
            "source",
        ),
        *("time", "times", "trap", "type", "typeset", "ulimit", "umask", "unset", "until", "wait", "while"),
    )
)


@dataclass(frozen=True)
class Value:
    """What stands for an expression."""

    text: str
    #: True for an expression of our own specifications, which is a path by the time that the command runs.
    is_expression: bool = False


def fill(template: str, expression: re.Pattern[str], value: Callable[[re.Match[str]], Value]) -> str:
    """Put values in place of expressions, quoted for the place where each stands: bare, in '' or in ""."""
    parts: list[str] = []
    quote, at = "", 0
    for match in expression.finditer(template):
        between = template[at : match.start()]
        quote = _quote_after(between, quote)
        parts += [between, _quoted(value(match), quote)]
        at = match.end()
    return "".join([*parts, template[at:]])


def _quote_after(text: str, quote: str) -> str:
    """The quote that is open behind the text, if one is."""
    at = 0
    while at < len(text):
        letter = text[at]
        if letter == "\\" and quote != "'":
            at += 1
        elif quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        at += 1
    return quote


def _quoted(value: Value, quote: str) -> str:
    text = value.text
    if quote == '"':
        return text if value.is_expression else re.sub(r'([\\"$`])', r"\\\1", text)
    if quote == "'":
        return f"'\"{text}\"'" if value.is_expression else text.replace("'", "'\"'\"'")
    return f'"{text}"' if value.is_expression else shlex.quote(text)


def needs_shell(command: str) -> bool:
    """True when the command means something else, or nothing, without a shell."""
    bare = re.sub(r"'[^']*'|\"[^\"$`\\]*\"", "''", _OURS.sub("x", command.strip()))
    first = bare.split(None, 1)[0] if bare else ""
    return bool(_SHELL.search(bare)) or bool(_ASSIGNMENT.match(first)) or first in _BUILTINS


def argument_list(command: str) -> list[str]:
    """The command as an argument list: its words, or bash with the whole as a script.

    Raises ValueError for a command without words or with a quote that is not closed.
    """
    if not command.strip():
        raise ValueError("it is empty")
    return ["bash", "-c", command.strip()] if needs_shell(command) else shlex.split(command)
